"""Products in fewer bits on a GPU.

In reading order: `products` (float32, bfloat16 or FP8, chosen in one place), `mlp_fp8` (the feed-forward half of a
block in 8 bits), `quantise_kernels` (Triton kernels that quantise matrices), `mxfp8` (blocks of 32, emulated).
"""
