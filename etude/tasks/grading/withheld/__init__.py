"""Tests without their answers: the test process records what the code gave, and the grader compares outside of it.

In reading order: `sites` (an assertion as the grader knows it), `assertions` (from an assertion to what is recorded and
what is expected), `purity` (which side of a comparison is the expected one), `spell_out` (names that stand for text),
`parameters` (tables and helpers that carry expected values), `rewrite` (a test module without its answers), `compare`
(a recorded value against what is expected), `bits` (what withheld answers are worth), `estimate` (the same before
anything has run), `javascript_assertions`, `javascript_rewrite` and `javascript_values` (the same for test files of
JavaScript), `answers` (what a task keeps of its reference's values) and `record` (how those values are found).
"""
