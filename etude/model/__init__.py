"""The decoder that trains and samples, one code for both.

Read in this order: config (the shape), yarn, rope, norm, matrices, attention (the seam `Attend`), cpu_causal_attention,
mla, mlp, experts, replicas, lora_linear, decoder; low_precision/ (products in fewer bits on a GPU), compile_regions and
training (training fast), head and packed_forward (log-probabilities), then checkpoint/ (HF directories),
weight_transfer/ (weights between a learner and an engine process), size, describe (what a directory holds), and
torch_process (threads and memory of a process that computes).
"""
