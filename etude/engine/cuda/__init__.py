"""The engine on a GPU: pages, fused kernels, recorded graphs of steps, tokens that stay on the device.

Read in this order: pages (the cache), ops (what a step is made of: the seam), fused (the operations as Triton kernels:
attention_kernels, token_kernels, few_token_kernels, sampling_kernels, accept_kernels; in plain torch they stand in
benchmarks/reference_ops.py, for tests), weights (the decoder's matrices side by side), forward (a step's computation in
those operations), batch (a step's inputs on their way to the device), graphs (recorded steps), mixed_step (the inputs
of a step with prompts), runner (the whole behind the engine's `Runner`); then the same with drafts: draft_tensors (the
tensors of such a step), draft_graphs (recorded steps), draft_cache (the memory of all other steps). Only fused and the
kernels need Triton.
"""
