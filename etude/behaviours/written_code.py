"""Code that an agent wrote: the texts of its edits and writes, turn by turn. What several behaviours read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from etude.behaviours.base import Step, steps_of
from etude.harness.trajectory import Trajectory


class Written(NamedTuple):
    """One change that a tool accepted."""

    step: Step
    path: str
    before: str  # what an edit replaced; empty for a written file
    after: str

    @property
    def new_lines(self) -> list[str]:
        """Lines that were not in what it replaced."""
        old = set(self.before.splitlines())
        return [line for line in self.after.splitlines() if line not in old]


def written_code(trajectory: Trajectory) -> Iterator[Written]:
    """Every edit and write that was carried out, in order."""
    for step in steps_of(trajectory):
        given = step.call.arguments
        if step.result is None or step.result.error is not None:
            continue
        if step.call.name == "edit":
            yield Written(step, given.get("path", ""), given.get("old", ""), given.get("new", ""))
        elif step.call.name == "write":
            yield Written(step, given.get("path", ""), "", given.get("text", ""))
