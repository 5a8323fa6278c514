"""What the orchestrator and a rollout worker say to each other: dataclasses, sent in frames."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from etude.core.policy import Version
from etude.rl.editions import Edition

READY = "etude rollout worker ready at"


@dataclass(frozen=True)
class WorkerSpec:
    """What a worker process is started with."""

    recipe: Path  # TOML
    model: Path  # for its dialect
    home: Path  # RUN/rl
    store: Path  # of its sandboxes' layers
    tasks: Path  # below which lie tasks that have no directory of their own
    backend: str
    lineage: int


@dataclass(frozen=True)
class TaskPlace:
    """Where a task lies (`rollout/store.py`)."""

    name: str
    digest: str
    directory: str | None = None
    asked: str | None = None


@dataclass(frozen=True)
class RolloutRequest:
    """One rollout to run."""

    name: str  # of its record of turns and its file; empty keeps neither
    task: TaskPlace
    seed: int
    engine: str  # address
    edition: Edition
    effort: str = ""
    source: str = ""  # which of several mixed sources the task came from
    version: Version | None = None  # an evaluation's: pinned
    temperature: float | None = None  # an evaluation's


@dataclass(frozen=True)
class RolloutAnswer:
    """How it went: a file, or its bytes where they are few (an array of the frame), or a Void."""

    path: str = ""
    digest: str = ""
    broken: str = ""  # why its audit calls the task broken
    void: str = ""  # whose failure
    retry: bool = False
    message: str = ""
    resumed_tokens: int = 0
    grades: tuple[int, ...] = (0, 0)  # asked of this worker so far, and how many of them were reused


@dataclass(frozen=True)
class SolvableRequest:
    """Does the grader accept the reference of this task?"""

    task: TaskPlace


@dataclass(frozen=True)
class EnginesRequest:
    """The engines that are sampled from now on, by address; rollouts of others ask one of these at their next turn."""

    present: tuple[str, ...]
    pinned: tuple[str, ...]  # those that have the version of an evaluation


@dataclass(frozen=True)
class ReadableRequest:
    """Write the newest rollouts for people."""

    root: Path
    keep: int
