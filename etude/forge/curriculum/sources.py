"""Where tasks come from: the built-in sources by name, and a recipe's entry turned into one.

A source is a component with `tasks(start)`: the stream of its tasks from number `start` on, the same every time, so
that a resumed run goes on where it was. One that `Listens` also hears how its tasks went, and has to remember what it
gave. Adding one touches no file here: a recipe names `./mine.py:Mine`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import pydantic
from pydantic import Field

from etude.audit.quarantine import quarantined
from etude.core.component import resolve
from etude.core.errors import EtudeError
from etude.tasks.format.config import read
from etude.tasks.format.task import CONFIG, Task, task_folders

SOURCES = {
    "katas": "etude.forge.katas.task_source:Katas",
    "folder": "etude.forge.curriculum.sources:Folder",
    "curriculum": "etude.forge.curriculum.curriculum:Curriculum",
}


def curriculum_file(run: Path) -> Path:
    """Where a run keeps what its curriculum asked and heard; runs of earlier versions go on with `supply.db`."""
    earlier = run / "supply.db"
    return earlier if earlier.is_file() else run / "curriculum.db"


class TaskSource(Protocol):
    def tasks(self, start: int = 0) -> Iterator[Task]: ...


@runtime_checkable
class Listens(Protocol):
    """A source whose tasks depend on how the earlier ones went."""

    def remember(self, path: Path) -> None:
        """Where to keep what has to be known after a resume."""
        ...

    def heard(self, number: int, passed: int, tried: int, step: int) -> None:
        """Of the group with task `number`, so many rollouts passed; it made the optimiser's step `step`."""
        ...


@runtime_checkable
class Quarantines(Protocol):
    """A source that gives a task no more once nobody can solve it."""

    def broken(self, number: int, why: str) -> bool:
        """The task that had this number is broken; False where that was known."""
        ...


def open_source(spec: Mapping[str, Any], where: str = "tasks") -> TaskSource:
    """The source that an entry such as `{"use": "katas", "split": "train"}` asks for."""
    settings = dict(spec)
    if not isinstance(use := settings.pop("use", None), str):
        raise EtudeError(f"{where} does not say where tasks come from: add use = 'katas' or another")
    source = resolve("task source", use, settings, SOURCES, where)
    if not callable(getattr(source, "tasks", None)):
        raise EtudeError(f"task source {use} needs a method tasks(start) that yields tasks")
    found: TaskSource = source
    return found


class Folder:
    """The task directories of a folder, by name: `use = "folder"`. Those that were found broken are `aside`."""

    class Settings(pydantic.BaseModel, extra="forbid"):
        path: str = Field(description="folder whose folders are tasks, or have such folders")
        count: int = Field(0, ge=0, description="tasks; 0 is all")
        split: Literal["", "train", "held_out"] = Field(default="", description="only tasks that say so; empty is any")

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        root = Path(settings.path).expanduser()
        if not root.is_dir():
            raise EtudeError(f"the folder of tasks {root} does not exist")
        there = task_folders(root)
        aside = {folder: quarantined(folder) for folder in {path.parent for path in there}}
        self.aside = {path: why for path in there if (why := aside[path.parent].get(path.name)) is not None}
        fit = [path for path in there if path not in self.aside and self._fits(path)]
        self.found = fit[: settings.count or None]
        if there and not fit and settings.split:
            raise EtudeError(f"no task in {root} has split = {settings.split!r} in its {CONFIG}")
        if not self.found:
            raise EtudeError(f"no folder in {root} has a {CONFIG}: name a folder of task directories")

    def _fits(self, path: Path) -> bool:
        if not self.settings.split:
            return True
        return read((path / CONFIG).read_bytes(), str(path / CONFIG))[1].split == self.settings.split

    def tasks(self, start: int = 0) -> Iterator[Task]:
        return map(Task.load, islice(self.found, start, None))
