"""What a benchmark of one checkpoint leaves behind: a row for each task, counts for each set, and the file of it.

`bench/NAME.json` in a run holds one. It may come from anywhere, so reading checks every type; the `summary` in the
file is for readers with no more than a JSON parser, and all of it follows from the rest.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pydantic

from etude.bench.stats import Interval, Tally, mean_pass_at, paired_gain
from etude.core import durable
from etude.core.errors import EtudeError
from etude.core.recipe import first_problem

TaskSet = Literal["held_out", "unseen"]  # families that were trained on, and those that never were
SETS: tuple[TaskSet, ...] = ("held_out", "unseen")
LARGEST = 256 << 20  # bytes of a result


@dataclass(frozen=True)
class Turn:
    """One message of a trajectory, for people."""

    role: Literal["system", "user", "assistant", "tool"]
    text: str = ""  # of an assistant: its final words
    thinking: str = ""
    calls: list[tuple[str, dict[str, str]]] = field(default_factory=list)  # name, arguments
    name: str = ""  # of the tool that answers
    error: str = ""  # class of a tool's error, or what was wrong with an unreadable turn


@dataclass(frozen=True)
class Shown:
    """A trajectory to read, and how it ended."""

    turns: list[Turn]
    passed: bool
    stop: str
    reason: str = ""  # why it did not pass
    tokens: int = 0


@dataclass(frozen=True)
class TaskRow:
    """One task. Entry i of each list is about rollout i; None where the machinery spoiled it."""

    name: str
    digest: str  # of the task's content: equal names alone prove nothing
    set: TaskSet
    family: str
    level: int
    passed: list[bool | None]
    tokens: list[int | None]  # that the policy wrote
    shown: Shown | None = None  # rollout 0
    identity: str = ""  # of the task whatever its wording; empty in files of earlier versions

    @property
    def tally(self) -> Tally:
        counted = [passed for passed in self.passed if passed is not None]
        return Tally(len(counted), sum(counted))


@dataclass(frozen=True)
class Counts:
    """All rollouts of one set together."""

    rollouts: int = 0  # without void ones
    turns: int = 0
    malformed_turns: int = 0  # that broke the format
    cut_turns: int = 0  # that a token limit cut off
    calls: int = 0
    parallel_turns: int = 0  # with more than one call
    tool_errors: dict[str, int] = field(default_factory=dict)  # by class
    tools: dict[str, dict[str, int]] = field(default_factory=dict)  # tool -> calls, and errors by class
    stops: dict[str, int] = field(default_factory=dict)
    summaries: int = 0  # turns that summed up a full context
    summary_tokens: int = 0  # of those turns, with thinking and calls

    @property
    def format_errors(self) -> float:
        return self.malformed_turns / self.turns if self.turns else 0.0

    @property
    def turns_a_rollout(self) -> float:
        return self.turns / self.rollouts if self.rollouts else 0.0


@dataclass(frozen=True)
class BenchResult:
    """A benchmark of one checkpoint."""

    model: str
    samples: int  # rollouts of each task
    seed: int
    temperature: float
    backend: str  # of the sandboxes
    seconds: float
    tasks: list[TaskRow]
    counts: dict[TaskSet, Counts]
    void: int = 0  # rollouts that stayed void
    retried: int = 0  # void rollouts that were made again
    void_causes: dict[str, int] = field(default_factory=dict)  # both together
    engine: dict[str, float] = field(default_factory=dict)  # what the sampler says about itself
    trained_on: int | None = None  # tasks of the benchmark that the model was trained on; None: nobody knows
    agent: dict[str, Any] = field(default_factory=dict)  # what the policy acted with; empty: an older result
    # The audit's verdicts on what passed, where it looks (tasks made from repositories); empty: an older result, too.
    audited: dict[str, int] = field(default_factory=dict)

    def rows(self, which: TaskSet = "held_out") -> list[TaskRow]:
        return [row for row in self.tasks if row.set == which]

    def pass_at(self, k: int, which: TaskSet = "held_out") -> Interval | None:
        return mean_pass_at(k, [row.tally for row in self.rows(which)])

    def tokens(self, which: TaskSet = "held_out") -> float:
        """Mean tokens that the policy wrote in a rollout."""
        return mean_tokens(self.rows(which))

    @property
    def ks(self) -> list[int]:
        """The k worth reporting: 1, 4, and all samples."""
        return sorted({k for k in (1, 4, self.samples) if k <= self.samples})


def mean_tokens(rows: Sequence[TaskRow]) -> float:
    counted = [tokens for row in rows for tokens in row.tokens if tokens is not None]
    return sum(counted) / len(counted) if counted else 0.0


def check_pairs(before: BenchResult, tasks: Sequence[tuple[TaskSet, str, str]]) -> None:
    """Refuse an earlier result that these tasks (set, name, digest) cannot be paired with."""
    old = [(row.set, row.name, row.digest) for row in before.tasks if row.set == "held_out"]
    new = [task for task in tasks if task[0] == "held_out"]
    if old != new:
        here = {name: digest for _, name, digest in new}
        changed = [name for _, name, digest in old if here.get(name, digest) != digest]
        why = f"{changed[0]} has changed" if changed else f"{len(old)} tasks there, {len(new)} here"
        raise EtudeError(
            f"the benchmark of {before.model} is not of the same tasks ({why}), so no gain can be measured in pairs; "
            "run both with the same recipe and the same tasks"
        )


def differences(before: BenchResult, after: BenchResult) -> list[str]:
    """How the agents of two benchmarks differed: then a gain is not of the model alone."""
    here = after.agent | {"temperature": after.temperature, "samples": after.samples}
    there = before.agent | {"temperature": before.temperature, "samples": before.samples}
    if not before.agent or not after.agent:
        return ["the older result does not say what the agent acted with"]
    return [
        f"{name} {there.get(name, 'none')} there, {here.get(name, 'none')} here"
        for name in sorted(here.keys() | there.keys())
        if here.get(name) != there.get(name)
    ]


def compare(before: BenchResult, after: BenchResult, k: int = 1, which: TaskSet = "held_out") -> Interval | None:
    """The paired gain in pass@k. The two must be of the same tasks; a task without k rollouts on a side is left out."""
    old, new = before.rows(which), after.rows(which)
    if [(row.name, row.digest) for row in old] != [(row.name, row.digest) for row in new]:
        raise EtudeError(
            f"the benchmarks of {before.model} and {after.model} are not of the same tasks, so they cannot be paired; "
            "run both with the same recipe"
        )
    return paired_gain(k, [row.tally for row in old], [row.tally for row in new])


def summarise(result: BenchResult, which: TaskSet = "held_out") -> dict[str, Any]:
    """The figures of one set, as results.json has them."""
    counts = result.counts.get(which, Counts())
    first = result.pass_at(1, which)
    rest = {f"pass@{k}": at.mean if (at := result.pass_at(k, which)) else None for k in {4, *result.ks} - {1}}
    return {
        "pass@1": list(first) if first else None,
        **dict(sorted(rest.items())),
        "tokens": result.tokens(which),
        "format_errors": counts.format_errors,
    }


# The file


def save_result(result: BenchResult, path: Path) -> None:
    summary = {which: summarise(result, which) for which in SETS if result.rows(which)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        durable.write_whole(path, json.dumps({"summary": summary} | dataclasses.asdict(result)) + "\n")
    except OSError as error:
        raise EtudeError(f"cannot save the benchmark to {path}: {durable.why_not(error)}") from error


def load_result(path: Path) -> BenchResult:
    try:
        if path.stat().st_size > LARGEST:
            raise EtudeError(f"{path} has more than {LARGEST} bytes, which no benchmark of ours has")
        data = json.loads(path.read_bytes())
        if not isinstance(data, dict):
            raise EtudeError(f"{path} is no benchmark that can be read: it is not a JSON object")
        data.pop("summary", None)
        return pydantic.TypeAdapter(BenchResult).validate_python(data)
    except OSError as error:
        raise EtudeError(f"cannot read the benchmark {path}: {error.strerror}") from None
    except pydantic.ValidationError as error:
        raise EtudeError(f"{path} is no benchmark that can be read: {first_problem(error)}") from None
    except (ValueError, RecursionError) as error:
        raise EtudeError(f"{path} is no benchmark that can be read: {error}") from None
