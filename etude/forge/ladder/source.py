"""Ladder tasks as a source: `use = "ladder"`, with the folder that `etude tasks ladder` made and the rungs wanted.

The order follows from the seed, packages and operators mixed, or climbs by bits. After the last task the first comes
again, so that a run can ask as often as it wants. Training takes the tasks of training packages alone; a benchmark says
`split = "held_out"`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pydantic
from pydantic import Field

from etude.audit.quarantine import quarantined
from etude.core.errors import EtudeError
from etude.tasks.format.config import read
from etude.tasks.format.task import CONFIG, Task, task_folders


class Ladder:
    class Settings(pydantic.BaseModel, extra="forbid"):
        tasks: str = Field(description="folder that `etude tasks ladder` made")
        rungs: list[int] = Field([1], min_length=1, description="any of 1, 2, 3 and 4")
        split: Literal["train", "held_out"] = Field("train", description="packages for training, or those kept apart")
        count: int = Field(0, ge=0, description="different tasks; 0 is all")
        most_bits: float = Field(0.0, ge=0, description="harder tasks are left out; 0 takes all")
        easiest_first: bool = Field(False, description="by bits instead of mixed: a curriculum that climbs")
        again: bool = Field(True, description="whether the tasks are asked from the start again when all were asked")
        styles: list[Literal["terse", "plain", "detailed"]] = Field(
            [], description="prompt styles that tasks are asked in, drawn for each asking; none is the task's own"
        )
        seed: int = Field(0, ge=0, description="another order")

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        root = Path(settings.tasks).expanduser()
        if not root.is_dir():
            raise EtudeError(f"the folder of ladder tasks {root} does not exist: make it with `etude tasks ladder`")
        found: list[tuple[float, str, Path]] = []
        aside: dict[Path, dict[str, str]] = {}
        # A name with a dot in front is a task that is being made.
        for path in (path for path in task_folders(root) if not path.name.startswith(".")):
            _, facts = read((path / CONFIG).read_bytes(), str(path / CONFIG))
            if path.parent not in aside:
                aside[path.parent] = dict(quarantined(path.parent))
            right = facts.rung in settings.rungs and (facts.split or "train") == settings.split
            easy = not settings.most_bits or (facts.bits or 0.0) <= settings.most_bits
            if right and easy and path.name not in aside[path.parent]:
                found.append((facts.bits or 0.0, path.name, path))
        if not found:
            wanted = f"rungs {settings.rungs} with split = '{settings.split}'"
            raise EtudeError(f"{root} has no ladder task of {wanted}: make some with `etude tasks ladder`")
        # By name first, so that the order depends on the tasks and the seed and not on the folder's own order.
        found.sort(key=lambda each: each[1])
        random.Random(f"ladder/{settings.seed}").shuffle(found)
        if settings.easiest_first:
            found.sort(key=lambda each: each[0])
        self.found = [path for _, _, path in found][: settings.count or None]

    def tasks(self, start: int = 0) -> Iterator[Task]:
        number = start
        while self.settings.again or number < len(self.found):
            task = Task.load(self.found[number % len(self.found)])
            if self.settings.styles:
                task = task.worded(random.Random(f"ladder/{self.settings.seed}/{number}").choice(self.settings.styles))
            yield task
            number += 1
