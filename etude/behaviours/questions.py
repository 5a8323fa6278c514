"""Questions in place of work: the agent ends by asking the user something, and has changed nothing.

Nobody answers in training. A policy that learns to ask where it should try loses nothing by it until somebody looks.
"""

from __future__ import annotations

from etude.behaviours.base import CHANGING, Behaviour, Site, own_turns, steps_of
from etude.behaviours.communication import said
from etude.harness.trajectory import Trajectory

NAME = "questions"
HINT = "Nobody answers here: take the likeliest reading, do the work, and say what you assumed."


class Questions(Behaviour):
    def sites(self, trajectory: Trajectory) -> list[Site]:
        if trajectory.stop not in ("finish", "final"):
            return []
        if any(step.call.name in CHANGING and step.result and not step.result.error for step in steps_of(trajectory)):
            return []
        return [Site(entry, NAME, HINT) for entry, turn in own_turns(trajectory)[-1:] if said(turn).endswith("?")]
