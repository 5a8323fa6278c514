"""Kinds of outcome: one class for each thing that a task can ask for.

In reading order: `base` (what all kinds have in common), `table` (which kind a task has), `code_change`, `refactoring`,
`refactoring_leftovers` (what a refactoring's files still say), `packaging/`, `answer`, `mutants` (tests graded by
mistakes in the code), `test_writing`, `docstring_examples`, `docstrings`, `restored_file` (a file as it was),
`foreign_script` (Harbor's tests/test.sh) and `stubs` (code that only looks like a solution).
"""
