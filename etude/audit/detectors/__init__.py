"""The rules, by what they watch.

`leftovers` (the answer taken from somewhere), `judges` (tests and their settings), `machinery` (everything around
them), `code` (the changed sources), `words` (what is told), `broken` (the task itself).
"""
