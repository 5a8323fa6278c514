"""Policies: whatever answers a context with a sample. Never imports torch.

In reading order: `scripted` (turns written before anything runs), `engine_client` (an engine server, and its start),
`endpoint/` (hosted models), `table` (policies by name).
"""
