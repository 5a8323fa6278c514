"""Studies: a published claim, arms that differ in what it speaks of, seeds, a figure, a table and a verdict.

In reading order: `study` (what a study is, and how its folder is read), `bases` (models that arms start from, made once
and shared), `run_arms` (one arm and seed after another, each a chain of commands), `many_arms` (many side by side until
a deadline), `measures` (what studies measure alike), `nano` (what studies of that size start from), `page`
(figure, table and verdict as a page). The studies themselves lie in `studies/`.
"""
