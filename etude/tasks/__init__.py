"""Tasks: what an agent is asked to do, on disk or in memory, and how an attempt is judged.

In reading order: `files` (trees of files that nobody trusts), `config` (task.toml), `format` (Task, a Harbor
directory), `lint` (what is wrong with a task, without running it); then `place`, `carried`, `plan`, `twists`, `grader`,
`inside/` and `verdict` (whether an attempt solved it), and `check` (whether a task is fit to be used).
"""
