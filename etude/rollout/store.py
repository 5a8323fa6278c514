"""Rollouts on disk: the trajectory, what reached the grader, the outcome; and grading them again without a model.

    ROOT/NAME/            messages.jsonl, tokens.safetensors, trajectory.json (see harness/trajectory_files.py)
    ROOT/NAME/carried/    the agent's files as they reached the grader
    ROOT/NAME/outcome.json
    ROOT/tasks/DIGEST/    tasks that had no directory of their own, once each

A rollout appears whole or not at all. A folder may come from anywhere, so reading trusts nothing. Knows no policy.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pydantic

from etude.core import durable
from etude.core.errors import EtudeError
from etude.harness.trajectory import Trajectory
from etude.harness.trajectory_files import FACTS, load_trajectory, save_trajectory
from etude.rollout.rollout import Cause, Outcome, RolloutSetup, Scored, Void, score
from etude.sandbox.hosts import StoringHost
from etude.tasks.format.config import PromptStyle
from etude.tasks.format.file_tree import Files, TreeLimits
from etude.tasks.format.task import Task
from etude.tasks.grading.submission import Refused, Submission, SubmittedFile
from etude.tasks.grading.verdict import Grade

OUTCOME, CARRIED, TASKS = "outcome.json", "carried", "tasks"
LARGEST = 16 << 20  # bytes of an outcome.json
CARRIED_LIMITS = TreeLimits(files=1000, file_bytes=4 << 20, total_bytes=32 << 20)


class TaskRef(pydantic.BaseModel, extra="forbid", strict=True):
    """Where a task lies."""

    name: str
    digest: str
    directory: str | None  # None: below ROOT/tasks
    asked: PromptStyle | None = None  # in which of its registers, where it has any


class _Void(pydantic.BaseModel, extra="forbid", strict=True):
    cause: Cause
    retry: bool
    message: str


class _Saved(pydantic.BaseModel, extra="forbid", strict=True):
    """outcome.json."""

    format: Literal[1] = 1
    task: TaskRef
    void: _Void | None = None
    grade: dict[str, Any] | None = None
    reward: pydantic.FiniteFloat | None = None
    parts: dict[str, pydantic.FiniteFloat] = {}
    deleted: list[str] = []
    executable: list[str] = []
    refused: list[tuple[str, str]] = []
    seconds: pydantic.FiniteFloat = 0.0
    starting: pydantic.FiniteFloat = 0.0


@dataclass(frozen=True)
class SavedRollout:
    """A rollout as it was saved."""

    path: Path
    task: Task
    trajectory: Trajectory | None
    changes: Submission
    passed: bool
    reward: float | None  # None: it was void
    void: str  # whose failure, or nothing
    seconds: float = 0.0
    starting: float = 0.0  # of these, until its sandbox was there


@dataclass(frozen=True)
class Regraded:
    """A saved rollout, before and after."""

    before: SavedRollout
    after: Scored

    @property
    def changed(self) -> bool:
        return self.before.passed != self.after.passed


# Saving


def save_rollout(outcome: Outcome, root: Path, name: str) -> Path:
    """Writes an outcome below `root`; a full disk is an `EtudeError` and leaves nothing behind."""
    target, working = root / name, root / f".{name}.saving"
    if target.exists():
        raise EtudeError(f"{target} exists already; give the rollout another name")
    try:
        shutil.rmtree(working, ignore_errors=True)
        root.mkdir(parents=True, exist_ok=True)
        if outcome.trajectory is None:
            working.mkdir()
        else:
            save_trajectory(outcome.trajectory, working)
        changes = outcome.changes if isinstance(outcome, Scored) else Submission()
        Files({each.path: each.data for each in changes.files if each.data is not None}).write(working / CARRIED)
        saved = _saved(outcome, changes, keep_task(outcome.task, root))
        (working / OUTCOME).write_text(json.dumps(saved.model_dump(), indent=1) + "\n")
        working.rename(target)
    except OSError as error:
        shutil.rmtree(working, ignore_errors=True)
        raise EtudeError(f"cannot save a rollout to {target}: {durable.why_not(error)}") from error
    except EtudeError:
        shutil.rmtree(working, ignore_errors=True)
        raise
    return target


def _saved(outcome: Outcome, changes: Submission, task: TaskRef) -> _Saved:
    facts: dict[str, Any] = {
        "task": task,
        "seconds": outcome.seconds,
        "deleted": [each.path for each in changes.files if each.data is None],
        "executable": [each.path for each in changes.files if each.executable],
        # An agent's file names may hold bytes that are no text, which JSON cannot say.
        "refused": [(each.path.encode("utf-8", "replace").decode(), each.why) for each in changes.refused],
    }
    if isinstance(outcome, Void):
        return _Saved(**facts, void=_Void(cause=outcome.cause, retry=outcome.retry, message=outcome.message))
    facts |= {"reward": outcome.reward, "parts": outcome.parts, "starting": outcome.starting}
    return _Saved(**facts, grade=_plain(outcome.grade))


def _plain(grade: Grade) -> dict[str, Any]:
    facts = dataclasses.asdict(grade)
    facts["refused"] = []  # they stand beside it
    plain: dict[str, Any] = json.loads(json.dumps(facts).encode("ascii", "replace"))
    return plain


def keep_task(task: Task, root: Path) -> TaskRef:
    """Where the task lies, for `load_task`; one that has no directory of its own is written below `root`."""
    directory = task.files.directory
    if directory is not None:
        return TaskRef(
            name=task.name, digest=task.digest, directory=str(directory.resolve()), asked=task.facts.prompt_style
        )
    kept = root / TASKS / task.digest
    if not kept.exists():
        working = kept.with_name(f".{task.digest}.saving")
        shutil.rmtree(working, ignore_errors=True)
        task.save(working)
        working.rename(kept)
    return TaskRef(name=task.name, digest=task.digest, directory=None)


# Reading


def load_rollout(directory: Path) -> SavedRollout:
    """A saved rollout with its task, both checked; `EtudeError` says what is wrong."""
    file = directory / OUTCOME
    # A link could lead to any file of whoever reads this.
    if not file.is_file() or file.is_symlink() or file.stat().st_size > LARGEST:
        raise EtudeError(f"{directory} is no saved rollout: it has no {OUTCOME} that can be read")
    try:
        saved = _Saved.model_validate_json(file.read_bytes())
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise EtudeError(f"{file} cannot be read: {place}: {first['msg']}".replace(": :", ":")) from None
    task = load_task(saved.task, directory.parent, str(directory / OUTCOME))
    files = Files.scan(directory / CARRIED, CARRIED_LIMITS) if (directory / CARRIED).is_dir() else Files({})
    if any(files.kind(path) == "link" for path in files):
        raise EtudeError(f"{directory / CARRIED} holds a link, which no grader would be given")
    carried = [SubmittedFile(path, data, path in saved.executable) for path, data in files.items()]
    carried += [SubmittedFile(path, None) for path in saved.deleted]
    return SavedRollout(
        path=directory,
        task=task,
        trajectory=load_trajectory(directory) if (directory / FACTS).exists() else None,
        changes=Submission(tuple(carried), tuple(Refused(*each) for each in saved.refused)),
        passed=bool(saved.grade and saved.grade.get("passed")),
        reward=saved.reward,
        void=saved.void.cause if saved.void else "",
        seconds=saved.seconds,
        starting=saved.starting,
    )


def load_task(found: TaskRef, root: Path, named_by: str) -> Task:
    """The task that `keep_task` kept below `root`; refused if it is not the same any more."""
    # The digest becomes part of a path.
    if found.directory is None and not found.digest.isalnum():
        raise EtudeError(f"{named_by} names a task by {found.digest!r}, which is no digest")
    place = Path(found.directory) if found.directory is not None else root / TASKS / found.digest
    task = Task.load(place)
    if found.asked is not None:
        task = task.worded(found.asked)
    if task.digest != found.digest:
        raise EtudeError(f"the task {place} has changed since {named_by} named it; regrading would compare apples")
    return dataclasses.replace(task, name=found.name)


def saved_rollouts(root: Path) -> Iterator[Path]:
    """The folders of rollouts below `root`, or `root` itself when it is one."""
    if (root / OUTCOME).is_file():
        yield root
        return
    if not root.is_dir():
        raise EtudeError(f"there is no folder {root}")
    for path in sorted(root.iterdir()):
        if (path / OUTCOME).is_file() and not path.name.startswith("."):
            yield path


async def regrade(root: Path, host: StoringHost, setup: RolloutSetup) -> AsyncIterator[Regraded]:
    """Grades every saved rollout below `root` again, and rewards it as `setup` says. Void ones are left out.

    Nothing is written; what the machinery does wrong is raised.
    """
    for path in saved_rollouts(root):
        saved = load_rollout(path)
        if not saved.void and saved.trajectory is not None:
            yield Regraded(saved, await score(saved.task, saved.trajectory, saved.changes, host, setup))
