"""JavaScript repositories.

In reading order: `source` (a file: where functions lie, edits of them), `repository` (all that is known about one),
`deletions`, `mutations` (small mistakes), `task_files`.
"""
