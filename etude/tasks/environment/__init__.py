"""What a task's sandboxes are made of: `layers`, `services` that listen in them, `suite_run` (a suite that is no grade)."""
