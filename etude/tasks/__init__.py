"""Tasks: what an agent is asked to do, on disk or in memory, and how an attempt is judged.

In reading order: `files` (trees of files that nobody trusts), `config` (task.toml), `format` (Task, a Harbor
directory), `lint` (what is wrong with a task, without a model), `services` (what listens in its sandboxes), `place`
(its environment and workspace as a sandbox's layers), `packaged` and `carried` (what of an agent's work reaches the
grader), `grader` (whether it solved the task), with `plan` (what is run), `reading`, `twists` and `canaries` (tests as
source, changed so that they must fail, and made up), `javascript/` (the same for another language), `inside/` (what
runs in the grading sandbox) and `verdict` (what came of it); `answers` (an answer instead of changes), `start`,
`rewording` and `mutants` (tests instead of changes); `check` (whether a task is fit to be used).
"""
