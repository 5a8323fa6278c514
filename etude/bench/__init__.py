"""Benchmarks: how good a checkpoint is, how sure we are, and whether another one is better.

In reading order: `stats` (pass@k, intervals, pairs), `outcome` (what a benchmark leaves behind, and its file),
`runner` (a checkpoint in, a result out), `results` (results.json of a run), `report` (a run as one HTML file), and
`base` (a model without an agent: code, state, memory).
"""
