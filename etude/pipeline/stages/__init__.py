"""The stages of a run, one file for each group of them.

In reading order: `base` (what a stage is), `pretraining` (corpus, pretrain, mtp, extend), `fine_tuning` (demos, sft,
sft-more), `reinforcement` (rl), `evaluation` (the benchmarks and the report), `table` (all of them, in their order).
"""
