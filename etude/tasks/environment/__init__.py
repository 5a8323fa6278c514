"""What a task's sandboxes are made of.

`layers`, `hide_file_digests` (what an installer wrote down is covered), the `network` that an agent may reach,
`services` that listen there, `shadow_backend` (issues, logs and metrics beside them), `suite_run` (a run without a
grade).
"""
