"""Behaviours: where an agent did something worth changing, and the hint that would have helped it there.

Read in this order: base (what a behaviour is), tool_errors (calls that failed, by class), table (their names).
"""
