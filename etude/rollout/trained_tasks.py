"""Which tasks a run has trained on: RUN/trained_tasks.jsonl, one line for each; benchmarks read it.

A task is known by what it asks for and how it is graded, and not by its wording: asked in fewer words it is the same
task. The list may hold a task too many, of a step that a kill took back, and never one too few.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from etude.core import durable
from etude.core.errors import EtudeError
from etude.tasks.format.task import Task

FILE = "trained_tasks.jsonl"
ASKED = {"answer", "deleted", "refactor", "documentation", "testing"}  # facts that tell two tasks of one suite apart


def task_identity(task: Task) -> str:
    """Names a task whatever its wording, its split and its place on disk."""
    facts = task.facts.model_dump(mode="json", include=ASKED, exclude_defaults=True, exclude_none=True)
    whole = json.dumps([task.tests.digest(), task.solution.digest(), facts], sort_keys=True)
    return hashlib.sha256(whole.encode()).hexdigest()


class TrainedTasks:
    """The list of one run, to be added to."""

    def __init__(self, run: Path) -> None:
        self.file = run / FILE
        durable.cut_torn_line(self.file)  # a killed process may have left half a line
        self._known = {(row["task"], row["stage"]) for row in _rows(self.file) or []}
        self._identities: dict[Path, str] = {}  # a made task is asked many times: its files are read once

    def add(self, task: Task, stage: str) -> None:
        directory = task.files.directory
        identity = self._identities.get(directory) if directory else None
        if identity is None:
            identity = task_identity(task)
        if directory is not None:
            self._identities[directory] = identity
        if (identity, stage) not in self._known:
            self._known.add((identity, stage))
            row = {"task": identity, "name": task.name, "stage": stage}
            durable.append_line(self.file, json.dumps(row))


def read_trained_tasks(run: Path, stage: str = "") -> dict[str, str] | None:
    """Identity -> name of each task that the run has trained on, in one stage or in all; None where it kept no list."""
    rows = _rows(run / FILE)
    return None if rows is None else {row["task"]: row["name"] for row in rows if stage in ("", row["stage"])}


def _rows(file: Path) -> list[dict[str, str]] | None:
    try:
        lines = file.read_text().splitlines()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise EtudeError(f"{file} cannot be read: {error}") from None
    found = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            found.append({name: str(row[name]) for name in ("task", "name", "stage")})
        except (ValueError, KeyError, TypeError):
            if number < len(lines):  # the last line may be half a row of a process that is still writing
                raise EtudeError(f"{file} line {number} is no task; remove that line") from None
    return found
