"""In which numbers a decoder computes: float32, bfloat16 or FP8.

In reading order: `products` (every product with a weight goes through it), `mlp_fp8` (the feed-forward part in 8 bits),
`quantise_kernels` (Triton kernels that make the 8-bit copies).
"""
