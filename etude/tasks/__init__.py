"""Tasks: what an agent is asked to do, on disk or in memory, and how a rollout is graded.

In reading order: `format/` (the task directory), `kinds/` (one class for each kind of outcome that a task can ask
for), then the three verbs that ask a task's kind: `grade` (whether a submission solves its task;
`grade_folder` for a folder that somebody made), `lint` (what is wrong
with a task, without running anything) and `check` (whether it is fit to be used, without a model; `check_many` for
several). Below them: `grading/` (submissions, test plans, verdicts), `javascript/` (reading sources that are no
Python), `environment/` (the layers and services of a task's sandboxes) and `sandbox_side/` (what runs inside them).
"""
