"""The decoder that trains and samples, one code for both.

Read in this order: config (the shape), rope, attention (the seam `Attend`), mlp, block, decoder, mtp, then
checkpoint (HF directories) and exchange (weights between a learner and an engine process).
"""
