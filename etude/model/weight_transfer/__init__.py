"""Weights from a learner process to the engine processes of the same machine.

In reading order: `shared_memory` (the weight board, a file with two slots), `device_memory` (the same with its slots on
the GPU).
"""
