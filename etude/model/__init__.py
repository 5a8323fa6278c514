"""The decoder that trains and samples, one code for both.

Read in this order: config (the shape), yarn, rope, precision (the seam of products), attention (the seam `Attend`),
mla, mlp, mlp_fp8 and quantise_kernels (8 bits on a GPU), experts, decoder, stages and training (training fast), head
and packed (log-probabilities), then quantised, stored and checkpoint (HF directories), exchange (weights between a
learner and an engine process), size, and torch_process (threads and memory of a process that computes).
"""
