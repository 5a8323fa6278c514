"""The engine on a GPU: pages, fused kernels, graphs of the decoding step, tokens that stay on the device.

Read in this order: pages (the cache), ops (what a step is made of: the seam), reference (the same in torch, on any
device), fused (the same as Triton kernels: attention_kernels, token_kernels, thin_kernels, sampling_kernels,
accept_kernels), weights (the decoder's matrices side by side), forward (a step's computation in those operations),
batch (what a step is told), graphs (recorded steps), runner (the whole behind the engine's `Runner`); then the same
with drafts: drafted (the tensors of such a step), steady (recorded steps), drafts (the memory of all other steps).
Only fused and the kernels need Triton.
"""
