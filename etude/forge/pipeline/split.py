"""Which made tasks are for training and which are held out: `split` in task.toml, by groups that have code in common.

Tasks about one file are one group, and so are tasks whose solutions are alike; where nearly all of a repository is one
file, tasks about one function or class are. With several packages a package is the group. A group is on one side. A
task that would join groups of both sides is refused while tasks are made. Knows tasks; runs nothing.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from etude.core import durable
from etude.core.errors import EtudeError
from etude.forge.gates.near_duplicates import sketch
from etude.forge.languages.base import Repository
from etude.tasks.format import config as toml
from etude.tasks.format.task import CONFIG, Task, matches
from etude.tasks.kinds.table import kind_of

Side = Literal["train", "held_out"]
Unit = Literal["file", "symbol"]
SHARE: Final = 0.2  # of the tasks that are held out
ALIKE: Final = 0.4  # of what two solutions put back: less than what makes them the same task, more than chance
ONE_FILE: Final = 0.6  # of a repository's tested functions in one file: then files tell too little apart


class SplitDraw:
    """The sides of the tasks so far, to ask of each new one on which it is. Follows from the tasks' order alone."""

    def __init__(self, unit: Unit = "file", share: float = SHARE) -> None:
        self.unit, self.share = unit, share
        self._sides: dict[str, Side] = {}  # by unit
        self._changes: list[tuple[str, Side, Any]] = []
        self.counts: Counter[str] = Counter()

    def side(self, task: Task) -> Side | None:
        """Where a task belongs; None where it has something in common with both sides."""
        near = {self._sides[unit] for unit in units(task, self.unit) if unit in self._sides}
        change = sketch(task).change
        near |= {side for _, side, other in self._changes if _jaccard(change, other) >= ALIKE}
        if len(near) > 1:
            return None
        if near:
            return near.pop()
        # The first ones are for training: a handful of tasks is of use there and none at all as a benchmark.
        return "held_out" if self.counts["held_out"] + 1 <= self.share * (self.counts.total() + 1) else "train"

    def add(self, task: Task, side: Side) -> None:
        """A task that is on this side from now on."""
        for unit in units(task, self.unit):
            self._sides.setdefault(unit, side)
        self._changes.append((task.name, side, sketch(task).change))
        self.counts[side] += 1


def unit_of(repository: Repository[Any]) -> Unit:
    """What keeps the tasks of a repository apart: files, unless nearly all that tests reach is in one."""
    files = Counter(name.partition(":")[0] for name in repository.reach)
    largest = files.most_common(1)[0][1] if files else 0
    return "symbol" if len(files) < 4 or largest > ONE_FILE * files.total() else "file"


def units(task: Task, unit: Unit) -> set[str]:
    """What a task is about: files, or functions and classes at the top of one."""
    named = kind_of(task).subjects(task)
    if unit == "symbol" and named:
        return {f"{path}:{name.partition('.')[0]}" for path, _, name in (each.partition(":") for each in named)}
    files = {each.partition(":")[0] for each in named}
    files |= {path for path in task.solution if path not in task.tests and _is_code(task, path)}
    return files or set(task.solution)


def split_tasks(folders: Sequence[Path], share: float = SHARE) -> dict[str, int]:
    """Gives every one of these tasks a side: whole packages where there are several, else groups of one package.

    Groups go to the side that is to be held out in an order that follows from their names, the smallest ones that fill
    the share best. The number of tasks on each side.
    """
    tasks = {folder: Task.load(folder) for folder in folders}
    if not tasks:
        raise EtudeError("there is no task to split: name folders of task directories")
    packages: dict[str, list[Path]] = {}
    for folder, task in tasks.items():
        packages.setdefault(package_of(task), []).append(folder)
    groups = list(packages.values()) if len(packages) > 1 else _groups(tasks)
    groups.sort(key=lambda group: hashlib.sha256(sorted(tasks[each].name for each in group)[0].encode()).digest())
    wanted = share * len(tasks)
    held: set[Path] = set()
    for group in groups:
        # Something is for training in any case, and a group that is far more than what is wanted is no benchmark.
        after = len(held) + len(group)
        if len(held) < wanted and after <= max(1.5 * wanted, 1) and after < len(tasks):
            held.update(group)
    for folder, task in tasks.items():
        write_side(folder, task, "held_out" if folder in held else "train")
    return {"train": len(tasks) - len(held), "held_out": len(held)}


def write_side(folder: Path, task: Task, side: Side) -> None:
    """Writes it into the task's own table of task.toml; all else stays as it is."""
    facts = task.facts.model_copy(update={"split": side})
    durable.write_whole(folder / CONFIG, toml.write(task.config, facts).decode())


def package_of(task: Task) -> str:
    """The repository that a made task comes from."""
    return task.facts.family.partition(":")[0] or task.facts.provenance.partition(" ")[0]


def _groups(tasks: dict[Path, Task]) -> list[list[Path]]:
    """Tasks of one package that have a file, or else a function, in common or solutions that are alike."""
    found = _joined(tasks, "file")
    return found if max(map(len, found)) <= ONE_FILE * len(tasks) else _joined(tasks, "symbol")


def _joined(tasks: dict[Path, Task], unit: Unit) -> list[list[Path]]:
    groups: list[tuple[set[str], list[Any], list[Path]]] = []
    for folder, task in tasks.items():
        own, change = units(task, unit), sketch(task).change
        near = [each for each in groups if own & each[0] or any(_jaccard(change, other) >= ALIKE for other in each[1])]
        merged = (own.union(*(each[0] for each in near)), [change], [folder])
        for each in near:
            groups.remove(each)
            merged[1].extend(each[1])
            merged[2].extend(each[2])
        groups.append(merged)
    return [folders for _, _, folders in groups]


def sides(tasks: Iterable[Task]) -> dict[str, int]:
    """How many tasks are on each side; those without one are not counted."""
    return dict(Counter(task.facts.split for task in tasks if task.facts.split is not None))


def _is_code(task: Task, path: str) -> bool:
    return any(matches(path, pattern) for pattern in task.facts.allowed_paths)


def _jaccard(one: Any, other: Any) -> float:
    both = len(np.intersect1d(one, other, assume_unique=True))
    return both / max(1, len(one) + len(other) - both)
