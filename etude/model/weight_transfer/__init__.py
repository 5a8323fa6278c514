"""Weights from a learner to engines.

On one machine: `shared_memory` (a board in host memory), `device_memory` (the same in the memory of a GPU).
Across machines: `fewer_bits` (matrices in FP8 or INT4), `deltas` (what changed, without loss), `object_store` (a
directory or a bucket), `delta_chain` (the versions in it).
Either: `publish` (how a learner gives a version away), `receive` (how an engine comes to one), `vllm_plugin` (the
same inside vLLM).
"""
