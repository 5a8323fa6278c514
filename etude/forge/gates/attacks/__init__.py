"""Attacks on a grader: ways to look right without being right, as files in a workspace or turns of an agent.

They follow the measured families of reward hacking and know no particular grader, which is good when it rejects all
of them. The gates try `refactoring` and `javascript` on every task of those kinds and `oracles` on every task whose
tests hold no answers; the others are policies
(`attack:NAME`) for trying out a task or a grader. Attacks that only tests run are in `redteam/`.

In reading order: `base` (what attacks are made of), `inside_the_code`, `around_the_code`, `outside_the_workspace`,
`refactoring`, `table` (all by name, and as scripts), `javascript`, `oracles`.
"""
