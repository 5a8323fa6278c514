"""Rollouts: task, policy and harness, grade, audit and reward; the one way anything is tried.

In reading order: `rollout` (one rollout), `agent_environments` (its tools and limits, by kind of task),
`prompt_context` (recent files, history), `privileged` (what a teacher may know of it), `scheduler` (many at once),
`turn_records` (rollouts that go on after a kill), `store` (on disk, and grading again), `effort_curve` (tokens by
difficulty), `audit_saved` (saved rollouts audited), `trained_tasks` (which tasks a run trained on), `listing` (saved
rollouts in a list), `view` (in the terminal).
"""
