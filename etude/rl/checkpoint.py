"""What a checkpoint of the loop holds beside the learner's state, and which rollouts are kept on disk for people.

A checkpoint names the last journal row that it knows. It counts from the moment its folder is renamed into place.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from etude.core.errors import EtudeError
from etude.rl.metrics import Totals
from etude.rollout.rollout import Scored
from etude.rollout.store import OUTCOME, TASKS, save_rollout

FILE = "rl.json"


@dataclass(frozen=True)
class Checkpoint:
    """Where a resume goes on."""

    step: int = 0
    row: int = 0
    totals: Totals = field(default_factory=Totals)
    unmoved: list[int] = field(default_factory=list)  # steps that left the weights as they were
    algorithm: dict[str, Any] = field(default_factory=dict)  # what it keeps from step to step
    edition: int = 0  # of the settings that may change

    def write(self, directory: Path) -> None:
        (directory / FILE).write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, directory: Path) -> Checkpoint:
        try:
            found: dict[str, Any] = json.loads((directory / FILE).read_text())
            # Unknown totals are dropped, so that a checkpoint of another version still opens.
            known = {each.name for each in fields(Totals)}
            found.pop("evaluations", None)  # until November 2026 it had those that had ended before it
            totals = Totals(**{name: value for name, value in found.pop("totals").items() if name in known})
            return cls(**found, totals=totals)
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise EtudeError(
                f"{directory / FILE} cannot be read ({error}); remove {directory} to continue from the one before it"
            ) from None


def keep_readable(newest: Iterable[tuple[str, Scored]], root: Path, keep: int) -> None:
    """Writes these rollouts for people, and removes all but the newest `keep` of what lies there."""
    for name, outcome in newest:
        # A killed process may have written it already.
        if not (root / name).exists():
            save_rollout(outcome, root, name)
    if not root.is_dir():
        return
    there = sorted(path for path in root.iterdir() if (path / OUTCOME).is_file())
    for old in there[: max(0, len(there) - keep)]:
        shutil.rmtree(old, ignore_errors=True)
    used = {json.loads((path / OUTCOME).read_text())["task"]["digest"] for path in there[-keep:]} if keep else set()
    for task in (root / TASKS).iterdir() if (root / TASKS).is_dir() else ():
        if task.name not in used:
            shutil.rmtree(task, ignore_errors=True)
