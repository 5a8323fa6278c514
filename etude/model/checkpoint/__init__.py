"""Checkpoints on disk, as Hugging Face directories.

In reading order: `directory` (decoders to and from directories), `tensors` (where each tensor lies, and its values),
`outlines` (decoders whose weights are read or drawn later), `quantised_formats` (weights stored in fewer bits),
`quantise` (how they are made), `write_back` (a trained model in the format of the one that it came from).
"""
