"""Reinforcement learning: rollouts to batches, batches to weights, weights back to the engines, all at once.

Read in this order. What runs: orchestrator (opens it all), loop (the steps), dispatcher (which rollout begins next),
rollout_environment (how a task is tried), broken_tasks. What there is: groups (a task and its rollouts), journal (what
happened, in SQLite), rollout_files (large rollouts beside it), checkpoint, editions (settings that change while a run
goes on). What is decided: admission (who may begin, who is trained), algorithms/ (rewards to streams), reference (KL
from the starting model), importance (ratios of whole rollouts), feedback (hints to streams), batches (groups to the
learner's batch), probe (are engine and learner the same model), evaluate (held-out tasks, the best model), metrics (the
numbers of a step). What a person sees: display/. Halves of the loop for debugging: rollouts_only, train_only. The
learner's process: learner/. Rollouts in processes of their own: workers/.
"""
