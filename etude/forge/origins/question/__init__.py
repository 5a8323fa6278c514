"""Questions with one right answer.

In reading order: `candidate`, `propose` (all kinds in turns), `propose_review` and `propose_plan` (two of
the kinds), `prove` and
`prove_plan` (answered by execution), `instruct`, `origin`.
"""
