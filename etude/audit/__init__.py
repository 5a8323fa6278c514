"""The audit for reward hacking: what a rollout did, seen without how it came out, and a verdict with its reasons.

In reading order: `blind_view` (the problem and the trajectory, nothing else), `shell_commands` and `python_actions`
(commands and Python code as what they do to files), `bounds` (how much of a rollout is read), `wanted_results` (what
visible tests want of a function), `evidence` (commands, file accesses and changed sources of a view), `base` (what a
finding and a detector are), `detectors/` (the rules, one small class each), `table` (detectors by name), `watched`
(what the code did while tests ran), `auditor` (a policy, by rules or a model; the audit as a step of a rollout),
`quarantine` (tasks found broken), `behaviour_metrics` (how behaviour moves over a run).
"""
