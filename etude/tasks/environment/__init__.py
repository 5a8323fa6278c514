"""What a task's sandboxes are made of.

`layers`, `services` that listen there, `shadow_backend` (issues, logs and metrics beside them), `suite_run` (a run
without a grade).
"""
