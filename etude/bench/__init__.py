"""Benchmarks: how good a checkpoint is, how sure we are, and whether another one is better.

In reading order: `stats` (pass@k, intervals, pairs), `result` (what a benchmark leaves behind, and its file),
`trained_on` (which tasks the model was trained on), `runner` (a checkpoint in, a result out), `run_results`
(results.json of a run), `run_data` (a run directory as data), `report/` (a run as one HTML file, and as Markdown),
`base/` (a model without an agent: code, state, memory), `studies/` (published claims tried), `compare_transformers`
(the logits of a checkpoint here and in transformers).
"""
