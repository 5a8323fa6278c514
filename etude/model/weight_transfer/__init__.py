"""Weights from a learner to engines on the same machine.

In reading order: `shared_memory` (a board in host memory), `device_memory` (the same in the memory of a GPU).
"""
