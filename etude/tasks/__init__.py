"""Tasks: what an agent is asked to do, on disk or in memory, and how an attempt is judged.

In reading order: `files` (trees of files that nobody trusts), `config` (task.toml), `format` (Task, a Harbor
directory), `lint` (what is wrong with a task, without a model), `place` (its workspace as a sandbox's layer),
`carried` (what of an agent's work reaches the grader), `grader` (whether it solved the task), with `plan` (what is
run), `reading` and `twists` (tests as source, and changed so that they must fail), `inside/` (what runs in the grading
sandbox) and `verdict` (what came of it); `check` (whether a task is fit to be used).
"""
