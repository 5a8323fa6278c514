"""Changes larger than what they change: a whole file written anew for a few lines, or an edit that repeats most of it.

Read from the calls alone: how far a result is from the reference's size is the reward `diff`.
"""

from __future__ import annotations

import pydantic

from etude.behaviours.base import Behaviour, Site, steps_of
from etude.behaviours.written_code import Written, written_code
from etude.harness.trajectory import Trajectory

NAME = "minimal_diff"


class MinimalDiff(Behaviour):
    class Settings(pydantic.BaseModel, extra="forbid", frozen=True):
        lines: int = pydantic.Field(12, ge=2, description="lines from which on repeating them is worth a word")
        share: float = pydantic.Field(0.7, gt=0, le=1, description="share of them that did not change")

    settings: Settings

    def sites(self, trajectory: Trajectory) -> list[Site]:
        known: dict[str, str] = {}  # what files are known to hold, by path
        reads = [step for step in steps_of(trajectory) if step.call.name == "read"]
        found = []
        for change in written_code(trajectory):
            for step in (step for step in reads if step.turn < change.step.turn):
                known.setdefault(step.call.arguments.get("path", ""), step.answer)
            whole = change.step.call.name == "write"
            before = known.get(change.path, "") if whole else change.before
            if self._repeats(change, before):
                hint = "Edit the lines that change" if whole else "Take fewer lines into old and new"
                found.append(Site(change.step.turn, NAME, f"{hint}; most of this is as it was."))
            if whole:
                known[change.path] = change.after
        return found

    def _repeats(self, change: Written, before: str) -> bool:
        old, new = set(before.splitlines()), [line for line in change.after.splitlines() if line.strip()]
        same = sum(line in old for line in new)
        return len(new) >= self.settings.lines and same >= self.settings.share * len(new)
