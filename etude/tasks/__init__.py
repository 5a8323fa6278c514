"""Tasks: what an agent is asked to do, on disk or in memory, and how an attempt is judged.

In reading order: `files` (trees of files that nobody trusts), `config` (task.toml), `format` (Task, a Harbor
directory), `lint` (what is wrong with a task, without a model), `grader` (whether an attempt solved it).
"""
