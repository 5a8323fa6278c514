"""The monitor of reward hacking: what an attempt did, seen without how it came out, and a verdict with its reasons.

In reading order: `dossier` (the problem and the trajectory, nothing else), `shell` and `script` (commands and Python
code as what they do to files), `evidence` (acts, file accesses and changed sources of a dossier), `base` (what a
finding and a detector are), `detectors/` (the rules, one small class each), `table` (detectors by name), `auditor`
(the blind auditor: a policy, by rules or a model), `quarantine` (tasks that were found broken), `drift` (how behaviour
moves over a run).
"""
