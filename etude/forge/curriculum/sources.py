"""Where tasks come from: the built-in sources by name, and a recipe's entry turned into one.

A source is a component with `tasks(start)`: the stream of its tasks from number `start` on, the same every time, so
that a resumed run goes on where it was. One that `Listens` also hears how its tasks went, and has to remember what it
gave. Adding one touches no file here: a recipe names `./mine.py:Mine`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal, Protocol, runtime_checkable

import pydantic
from pydantic import Field

from etude.audit.quarantine import quarantined
from etude.core.component import resolve
from etude.core.errors import EtudeError
from etude.sandbox.hosts import StoringHost
from etude.tasks.format.config import read
from etude.tasks.format.task import CONFIG, Task, task_folders

TRAINING: Final = ("rl.tasks", "demos.tasks")  # entries of a recipe whose tasks are learned from
OF_FOLDERS: Final = ("folder", "curriculum", "supply")  # sources of task directories, which may be held out
SOURCES = {
    "katas": "etude.forge.katas.task_source:Katas",
    "kata_chains": "etude.forge.katas.kata_chains:KataChains",
    "kata_trails": "etude.forge.katas.kata_trails:KataTrails",
    "reported_katas": "etude.forge.katas.reported_katas:ReportedKatas",
    "folder": "etude.forge.curriculum.sources:Folder",
    "curriculum": "etude.forge.curriculum.curriculum:Curriculum",
    "ladder": "etude.forge.ladder.source:Ladder",
    "mends": "etude.forge.ladder.mends:Mends",
    "questions": "etude.forge.curriculum.questions:Questions",
    "mixture": "etude.forge.curriculum.mixture:Mixture",
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
class HearsEffort(Protocol):
    """A source that also wants to know what its tasks took."""

    def effort(self, number: int, turns: float, thinking: float) -> None:
        """The group with task `number` took so many turns and thinking tokens for each rollout; told after `heard`."""
        ...


@runtime_checkable
class Mixes(Protocol):
    """A source made of several."""

    def source_of(self, number: int) -> str:
        """What the one is called that task `number` came from."""
        ...


@runtime_checkable
class Rewinds(Protocol):
    """A source that can be taken back to what the weights of a checkpoint know."""

    def rewind(self, step: int, number: int) -> None:
        """Forgets what groups came to after `step`, and which tasks it chose from `number` on."""
        ...


@runtime_checkable
class Quarantines(Protocol):
    """A source that gives a task no more once nobody can solve it."""

    def broken(self, number: int, why: str) -> bool:
        """The task that had this number is broken; False where that was known."""
        ...


@runtime_checkable
class MakesTasks(Protocol):
    """A source that makes further tasks while a run goes on."""

    async def make_harder(self, host: StoringHost) -> str:
        """Makes at most one, checked in sandboxes of this host: a line about it, or nothing where none can be made."""
        ...


def open_source(spec: Mapping[str, Any], where: str = "tasks") -> TaskSource:
    """The source that an entry such as `{"use": "katas", "split": "train"}` asks for."""
    settings = for_training(spec, where) if where in TRAINING else dict(spec)
    if not isinstance(use := settings.pop("use", None), str):
        raise EtudeError(f"{where} does not say where tasks come from: add use = 'katas' or another")
    source = resolve("task source", use, settings, SOURCES, where)
    if not callable(getattr(source, "tasks", None)):
        raise EtudeError(f"task source {use} needs a method tasks(start) that yields tasks")
    found: TaskSource = source
    return found


def for_training(spec: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The entry, and those of a mixture: a folder gives tasks for training; who asks for held-out ones is refused."""
    settings = dict(spec)
    if settings.get("split") == "held_out":
        raise EtudeError(f"{where} asks for held-out tasks, which training refuses: leave split out, or say 'train'")
    if settings.get("use") in OF_FOLDERS:
        settings.setdefault("split", "train")
    if settings.get("use") == "mixture" and isinstance(entries := settings.get("sources"), list):
        settings["sources"] = [
            for_training(each, f"{where}.sources[{number}]") if isinstance(each, Mapping) else each
            for number, each in enumerate(entries)
        ]
    return settings


class Folder:
    """The task directories of a folder, by name: `use = "folder"`. Those that were found broken are `aside`."""

    class Settings(pydantic.BaseModel, extra="forbid"):
        path: str = Field(description="folder whose folders are tasks, or have such folders")
        count: int = Field(0, ge=0, description="tasks; 0 is all")
        split: Literal["", "train", "held_out"] = Field(
            "", description="only these, and with train those that have no split; empty is all, in training it is train"
        )

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        root = Path(settings.path).expanduser()
        if not root.is_dir():
            raise EtudeError(f"the folder of tasks {root} does not exist")
        every = task_folders(root)
        there = [path for path in every if is_on_side(path, settings.split)]
        if every and not there:
            raise EtudeError(f"none of the {len(every)} tasks in {root} is for split = '{settings.split}'")
        aside = {folder: quarantined(folder) for folder in {path.parent for path in there}}
        self.aside = {path: why for path in there if (why := aside[path.parent].get(path.name)) is not None}
        self.found = [path for path in there if path not in self.aside][: settings.count or None]
        if not self.found:
            raise EtudeError(f"no folder in {root} has a {CONFIG}: name a folder of task directories")

    def tasks(self, start: int = 0) -> Iterator[Task]:
        return map(Task.load, islice(self.found, start, None))


def is_on_side(path: Path, side: str) -> bool:
    """Whether a task directory is for this split; one without a split is for training."""
    if not side:
        return True
    _, facts = read((path / CONFIG).read_bytes(), str(path / CONFIG))
    return (facts.split or "train") == side


def refuse_held_out(task: Task) -> Task:
    """The task, unless it is held out: whoever trained on one would measure nothing with it."""
    if task.facts.split == "held_out":
        raise EtudeError(f"the task {task.name} is held out (split in its task.toml), and training refuses it")
    return task
