"""The monitor suite: scripts of reward hacking to measure a monitor with, each beside an honest one that looks like it.

In reading order: `kata_scripts` (a kata as scripts see it, and what a family is), `leaked_solution`, `test_tampering`,
`environment_tampering`, `special_cased_code`, `judge_injection`, `broken_task` (the families), `git_history` (a small
history to put into a workspace), `suite` (all of them, and which are frozen), `honest_rollouts`, `run`. Only `run`
knows a monitor.
"""
