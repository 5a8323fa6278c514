"""Hugging Face directories, in and out.

In reading order: `directory` (which tensor on disk is which part of a decoder), `tensors` (the tensors, read one at a
time), `quantised_formats` (FP8 blocks and packed INT4).
"""
