"""Python repositories.

In reading order: `source` (a file: where functions lie, edits of them), `repository` (all that is known about one),
`tests` (its test files as text), `references` (who mentions a symbol), `deletions`, `mutations` (small mistakes),
`call_mutations` (wrong calls), `one_token` (those of one token), `harmless_changes`, `hidden_demands` (what hidden
tests ask for and nothing says), `second_solutions`, `other_inputs` (a test once more with other inputs), `task_files`.
"""
