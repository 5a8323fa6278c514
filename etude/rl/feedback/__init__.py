"""Targeted textual feedback: a hint above a turn as a teacher, beside whatever the algorithm asks.

Read in this order: schedule (how much it counts at a step), streams (from hints to streams of a batch).
"""
