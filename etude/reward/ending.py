"""Who ended the work: 0 for a rollout that its agent ended itself, -1 for one that a limit or unreadable turns ended.

The limit on time is no such limit: time is the machine's, and what a machine does never becomes reward.

Tests alone pay for a right change however the rollout went on after it, and an agent that is paid so may forget to
stop: its rollouts grow to the limit, and training slows down with them.
"""

from __future__ import annotations

from etude.reward.base import GradedRollout, Part

UNPUNISHED = ("finish", "final", "time")


class Ending(Part):
    def score(self, rollout: GradedRollout) -> float:
        return 0.0 if rollout.trajectory.stop in UNPUNISHED else -1.0
