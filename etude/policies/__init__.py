"""Policies: who can act. None of them loads torch.

In reading order: `table` (policies by name), `scripted` (the reference, nobody, a stub), `script_summaries` (how
they sum up), `engine_protocol` (what the training loop asks of an engine), `engine_client` (our engine by its address),
`vllm_client` (vLLM), `engine_conformance` (what both must do), `replicas` (several engines as one policy), `endpoint/`
(hosted models).
"""
