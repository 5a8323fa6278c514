"""The sampler: many requests decoded together over one cache, with the weights swapped under them.

Read in this order: request (one answer in the making), blocks (who owns which piece of cache memory), scheduler
(who computes what in the next step), cache (the tensors), row_attention (attention over them), logit_rules (what bends
logits), sampler (logits to tokens), prompt_scores (log-probabilities of prompts), dense_cpu_step (the forward of a
dense model on a CPU), runner (what computes a step), draft_acceptance and speculate (steps that have drafts),
step_costs (what steps took), engine (the step that joins them), resident (a second version beside it), cuda (the runner
of a GPU), thread (the engine beside an event loop), inline (the engine as a policy in this process). The server is in
`etude.serve`, its clients in `etude.policies`.
"""
