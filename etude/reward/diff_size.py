"""How much more than the reference a rollout changed: 0 for no more, -1 from `lines` more on.

Counts lines added and removed in what reached the grader. A task without a reference is compared with no change.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

import pydantic

from etude.reward.base import GradedRollout, Part
from etude.tasks.format.task import Task

LONGEST = 20_000  # lines of one file that are compared line by line


class Diff(Part):
    class Settings(pydantic.BaseModel, extra="forbid", frozen=True):
        lines: int = pydantic.Field(50, ge=1, description="changed lines beyond the reference's that cost all of it")

    settings: Settings

    def score(self, rollout: GradedRollout) -> float:
        made = changed_lines(rollout.task, {each.path: each.data for each in rollout.changes.files})
        excess = made - changed_lines(rollout.task, rollout.task.reference)
        return -min(1.0, max(0, excess) / self.settings.lines)


def changed_lines(task: Task, files: Mapping[str, bytes | None]) -> int:
    """Lines added and removed by these files over the task's workspace."""
    total = 0
    for path, data in files.items():
        before = task.workspace[path].splitlines() if path in task.workspace else []
        after = (data or b"").splitlines()
        if max(len(before), len(after)) > LONGEST:
            total += abs(len(after) - len(before))
            continue
        # autojunk would leave frequent lines out of long files, and count too much.
        for kind, i, j, k, m in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
            total += (j - i) + (m - k) if kind != "equal" else 0
    return total
