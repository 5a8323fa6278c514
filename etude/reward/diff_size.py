"""How much more than the reference a rollout changed: 0 for no more, -1 from `lines` more on.

Counts lines added and removed in what reached the grader; a line that is longer than anybody writes counts as several.
A task without a reference is compared with no change.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator, Mapping

import pydantic

from etude.reward.base import GradedRollout, Part
from etude.tasks.format.task import Task

MOST_PAIRS = 1_000_000  # of lines of two files that are compared in their order
WIDEST = 160  # characters of one line


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
        total += sum(1 + len(line) // WIDEST for line in _differing(before, after))
    return total


def _differing(before: list[bytes], after: list[bytes]) -> Iterator[bytes]:
    """Lines of either that the other has not: in their order, or of long files in any."""
    # With few different lines a comparison in order takes as long as there are pairs, and the files are the agent's.
    if len(before) * len(after) > MOST_PAIRS:
        old, new = Counter(before), Counter(after)
        yield from (old - new).elements()
        yield from (new - old).elements()
        return
    # autojunk would leave frequent lines out of long files, and count too much.
    for kind, i, j, k, m in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if kind != "equal":
            yield from before[i:j]
            yield from after[k:m]
