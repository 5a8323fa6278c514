"""Saved rollouts as lines of a list: which task, how it ended, what it was worth; read without their tasks and tokens.

A folder may come from anywhere: what is not a plain file of ours is left out, and nothing of a text is trusted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from etude.core.errors import EtudeError
from etude.harness.trajectory_files import FACTS
from etude.rollout.store import LARGEST, OUTCOME, saved_rollouts

OF_A_RUN = ("rl", "trajectories")  # where a run keeps its newest rollouts


@dataclass(frozen=True)
class RolloutLine:
    """One saved rollout."""

    path: Path
    task: str
    passed: bool
    reward: float | None  # None: it was void
    stop: str  # why the agent ended, or whose failure made it void
    reason: str  # why it did not pass
    turns: int
    tokens: int  # that the policy wrote
    seconds: float
    parts: dict[str, float] = field(default_factory=dict)
    tests: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def outcome(self) -> str:
        return "void" if self.reward is None else "passed" if self.passed else "failed"


@dataclass(frozen=True)
class Wanted:
    """Which rollouts to list; empty means any."""

    outcome: str = ""  # passed, failed or void
    task: str = ""  # part of the task's name
    stop: str = ""
    text: str = ""  # in its messages

    def fits(self, line: RolloutLine) -> bool:
        return (
            self.outcome in ("", line.outcome)
            and self.task in line.task
            and self.stop in ("", line.stop)
            and (not self.text or self.text in _messages(line.path))
        )


def rollout_folder(path: Path) -> Path:
    """Where the rollouts of a run lie; any other folder is meant itself."""
    if not (path / "run.json").exists():
        return path
    folder = path.joinpath(*OF_A_RUN)
    if not folder.is_dir():
        raise EtudeError(f"the run {path} has kept no rollouts: reinforcement learning keeps its newest ones")
    return folder


def list_rollouts(path: Path, wanted: Wanted | None = None) -> list[RolloutLine]:
    """The saved rollouts of a run or a folder that fit, by name."""
    lines = (read_line(folder) for folder in saved_rollouts(rollout_folder(path)))
    return [line for line in lines if line is not None and (wanted is None or wanted.fits(line))]


def find_rollout(path: Path, name: str) -> RolloutLine:
    """The one with this name, or the only one whose name begins so."""
    found = [line for line in list_rollouts(path) if line.name.startswith(name)]
    exact = [line for line in found if line.name == name]
    if len(exact or found) != 1:
        several = f"{len(found)} begin with it" if found else f"`etude rollouts {path}` lists them"
        raise EtudeError(f"there is no rollout {name!r} in {rollout_folder(path)}: {several}")
    return (exact or found)[0]


def read_line(folder: Path) -> RolloutLine | None:
    """A rollout's line; None where its outcome cannot be read."""
    outcome, facts = _json(folder / OUTCOME), _json(folder / FACTS) or {}
    if outcome is None:
        return None
    grade, void = outcome.get("grade") or {}, outcome.get("void") or {}
    effort = facts.get("effort") or {}
    written = sum(_whole(effort.get(f"{part}_tokens")) for part in ("thinking", "call", "final"))
    try:
        return RolloutLine(
            path=folder,
            task=str(outcome["task"]["name"]),
            passed=bool(grade.get("passed")),
            reward=None if outcome.get("reward") is None else float(outcome["reward"]),
            stop=str(void.get("cause") if void else facts.get("stop", "")),
            reason=str(void.get("message") if void else grade.get("reason", "")),
            turns=_whole(effort.get("turns")),
            tokens=written,
            seconds=float(outcome.get("seconds", 0.0)),
            parts={str(name): float(value) for name, value in (outcome.get("parts") or {}).items()},
            tests={str(name): str(status) for name, status in (grade.get("tests") or {}).items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


@dataclass(frozen=True)
class TaskRate:
    """How often one task was tried and solved."""

    task: str
    passed: int
    rollouts: int


def rates_by_task(tried: Iterable[tuple[str, int, int]]) -> list[TaskRate]:
    """(task, passed, rollouts) summed by task; those that fail most come first."""
    sums: dict[str, list[int]] = {}
    for task, passed, rollouts in tried:
        found = sums.setdefault(task, [0, 0])
        found[0] += passed
        found[1] += rollouts
    rates = [TaskRate(task, passed, rollouts) for task, (passed, rollouts) in sums.items()]
    return sorted(rates, key=lambda rate: (rate.passed / max(1, rate.rollouts), rate.task))


def _json(file: Path) -> dict[str, Any] | None:
    try:
        if not file.is_file() or file.is_symlink() or file.stat().st_size > LARGEST:
            return None
        found = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _messages(folder: Path) -> str:
    file = folder / "messages.jsonl"
    try:
        return file.read_text(errors="replace") if file.is_file() and not file.is_symlink() else ""
    except OSError:
        return ""


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
