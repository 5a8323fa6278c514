"""Effort that brings nothing: a call that was made before, with the same arguments, and nothing changed in between."""

from __future__ import annotations

from bisect import bisect

from etude.behaviours.base import CHANGING, Behaviour, Site, steps_of
from etude.harness.trajectory import Trajectory

NAME = "needless_effort"
ASKED_AGAIN = ("background",)  # tells what a command wrote since it was last asked


class NeedlessEffort(Behaviour):
    def sites(self, trajectory: Trajectory) -> list[Site]:
        found, seen = [], set[tuple[object, ...]]()
        # What was read before a summary, or by another agent, is not there any more.
        contexts = [i for i, each in enumerate(trajectory.entries) if each.purpose in ("restart", "sub-agent")]
        for step in steps_of(trajectory):
            if step.result is None or step.call.name in ASKED_AGAIN:
                continue
            key = bisect(contexts, step.turn), step.call.name, *sorted(step.call.arguments.items())
            # The same command again is a check where something changed meanwhile, and nothing else where not.
            if key in seen:
                hint = f"{step.call.name} was called with these arguments before, and nothing changed since: go on."
                found.append(Site(step.turn, NAME, hint))
            elif step.call.name in CHANGING and step.result.error is None:
                seen.clear()
            seen.add(key)
        return found
