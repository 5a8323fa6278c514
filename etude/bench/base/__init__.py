"""What a base model knows, measured without an agent: code, state, memory.

Reinforcement learning changes how a model acts so much that agent benchmarks say little about which base to start from.
In reading order: `tested` (the model under test), `code` (text to measure on), `codebase` (bits per byte), `distance`
(between texts), `history` and `invented` (files and how they changed), `tracking` (the state after many diffs),
`needle` (a fact in a long text), `suite` (all three).
"""
