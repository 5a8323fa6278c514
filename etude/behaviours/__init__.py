"""Behaviours: where an agent did something worth changing, and the hint that would have helped it there.

Read in this order: base (what a behaviour is), written_code (what the agent wrote); then one each: tool_errors,
unfinished_todos, style, communication, questions, claims, thinking_in_comments, terminal_only, minimal_diff,
needless_effort, and reader (a model that is asked); table (their names).
"""
