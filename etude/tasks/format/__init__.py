"""The task directory, as Harbor's format has it.

In reading order: `file_tree` (trees of files that nobody trusts), `config` (task.toml), `task` (the whole directory),
`function_bodies` (functions in Python text), `patches` (unified diffs) and `swe_rows` (rows of SWE-bench as tasks).
"""
