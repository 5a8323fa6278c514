"""Algorithms: how the rewards of a group become streams for the learner.

Read in this order: base (what an algorithm is), dr_grpo, grpo, rloo, dapo, gspo, cispo, single_rollout (one
each), self_distillation (three that learn from themselves), table (their names, and which settings they refuse).
"""
