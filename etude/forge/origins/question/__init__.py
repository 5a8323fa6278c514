"""Questions with one right answer.

In reading order: `candidate`, `propose` (all kinds in turns), `reviews` and `plans` (two of the kinds), `prove` and
`prove_plan` (answered by execution), `instruct`, `origin`.
"""
