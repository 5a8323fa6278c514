"""Rollouts: task, policy and harness, grade, audit and reward; the one way anything is tried.

In reading order: `rollout` (one rollout), `scheduler` (many at once), `store` (on disk, and grading again), `view` (in
the terminal), `audit_saved` (saved rollouts audited).
"""
