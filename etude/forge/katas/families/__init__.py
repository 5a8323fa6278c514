"""Families of katas, by subject: each function draws one small piece of ordinary programming.

Level 1 (one expression): `arithmetic`, `strings`, `sequences`, `mappings`. Level 2 (a loop or a branch): `loops`,
`branches`, `scanning`. Level 3 (two functions in two files): `two_file_text`,
`two_file_data_structures`. Each file ends with its table.
"""
