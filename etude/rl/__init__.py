"""Reinforcement learning: rollouts to batches, batches to weights, weights back to the engines, all at once.

Read in this order. The learner's process: wire (a batch as bytes), worker (the process), learner_client (its verbs
from outside). What there is: groups (a task and its rollouts), journal (what happened, in SQLite), commit (what a
checkpoint knows). What is decided: admission (who may begin, who is trained), algorithms (rewards to streams), batches
(groups to the learner's batch), probe (are engine and learner the same model), figures (the numbers of a step),
evaluate (held-out tasks, the best model), doubt (tasks that seem broken). What runs: world (how a task is tried),
producer (rollouts in flight), training (the learner's side), orchestrator (opens it all).
"""
