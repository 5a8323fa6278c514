"""Policies: who can act. None of them loads torch.

In reading order: `table` (policies by name), `scripted` (the reference, nobody, a stub), `ladder_script` (the
reference on ladder tasks), `script_summaries` (how they sum up), `engine_protocol` (what an engine can do for a run),
`engine_client` (an engine by its address), `vllm_client` (vLLM by the same protocol), `engine_conformance` (checks that
hold for every engine), `placement` (which engine samples a rollout), `replicas` (several engines as one policy),
`endpoint/` (hosted models).
"""
