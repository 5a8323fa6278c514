"""What a base model knows, measured without an agent: code, state, memory, fresh facts; and what serving it costs.

Reinforcement learning changes how a model acts so much that agent benchmarks say little about which base to start from.
In reading order: `model_under_test` (scores and continues), `code_text` (text to measure on), `bits_per_byte`,
`edit_distance` (between texts), `git_history` and `synthetic_history` (files and how they changed), `state_tracking`
(the state after many diffs), `needle` (a fact in a long text), `fresh` (questions about libraries as they are now),
`fresh_questions` (made from traces), `serving` (memory and speed), `suite` (all of them), `comparison` (several models
side by side), `private_code` (measured while training), `loss_fit` (that loss as a line over training).
"""
