"""What a base model knows, measured without an agent: code, state, memory.

Reinforcement learning changes how a model acts so much that agent benchmarks say little about which base to start from.
In reading order: `model_under_test` (scores and continues), `code_text` (text to measure on), `bits_per_byte`,
`edit_distance` (between texts), `git_history` and `synthetic_history` (files and how they changed), `state_tracking`
(the state after many diffs), `needle` (a fact in a long text), `suite` (all three).
"""
