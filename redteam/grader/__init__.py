"""Attacks on the grader: `targeted_attacks` (by somebody who has read it), `javascript_attacks`, and on made tasks
`forgers` in five families (`forger_families`, `forger_parts`), run by `made_tasks`."""
