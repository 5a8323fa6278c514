"""What a task's sandboxes are made of: `layers`, `services` that listen there, `suite_run` (a run without a grade)."""
