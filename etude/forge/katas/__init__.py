"""Katas: small generated tasks, without end, the same for the same seed.

In reading order: `vocabulary` (the words, and what is held out), `draft` (what a family is), `families/`,
`kata_repository` (drafts to files and tests), `instructions` (three prompt styles), `task_source` (tasks),
`kata_chains` (several as one task), `kata_trails` (one behind several files), `reported_katas` (told by an issue
tracker), `training_text` (their text, for pretraining).
"""
