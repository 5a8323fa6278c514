"""Policies: who can act. None of them loads torch.

In reading order: `table` (policies by name), `scripted` (the reference, nobody, a stub), `script_summaries` (how
they sum up), `engine_client` (an engine by its address), `placement` (which engine samples a rollout), `replicas`
(several engines as one policy), `endpoint/` (hosted models).
"""
