"""Who ended the work: 0 for a rollout that its agent ended itself, -1 for one that a limit or unreadable turns ended.

Tests alone pay for a right change however the rollout went on after it, and an agent that is paid so may forget to
stop: its rollouts grow to the limit, and training slows down with them.
"""

from __future__ import annotations

from etude.reward.base import GradedRollout, Part

BY_ITSELF = ("finish", "final")


class Ending(Part):
    def score(self, rollout: GradedRollout) -> float:
        return 0.0 if rollout.trajectory.stop in BY_ITSELF else -1.0
