"""A group: one task and the rollouts of it, each in a slot; and a rollout in the compact form that is learnt from.

A slot is queued, running, grading, ready, trained or void. A group may be trained when every slot is ready or void and
at most one is void. Knows neither the journal that remembers all this nor the loop that moves it.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save

from etude.behaviours.base import Site
from etude.core.errors import EtudeError
from etude.core.policy import Assistant
from etude.core.terms import Terms
from etude.core.transport import from_json, to_json
from etude.harness.hinted import Hinted
from etude.harness.metrics import measure
from etude.harness.trajectory import PARTS, Segment, Trajectory
from etude.rl.rollout_files import INLINE, RolloutFile, RolloutFiles
from etude.rollout.rollout import Scored
from etude.tasks.format.task import Task

State = Literal["queued", "running", "grading", "ready", "trained", "void"]
STATES: tuple[State, ...] = get_args(State)
SPENT = ("sampling", "tools", "starting")  # what the seconds of a rollout went into, but for its end
LONG = 4096  # tokens from which on a rollout is packed in a thread without a look at its size
LIMITS = ("turns", "tokens", "context", "time")  # why a rollout stopped that did not come to an end by itself


@dataclass(frozen=True, eq=False)
class Trace:
    """One segment as a learner wants it; entry t of every array is about token t."""

    ids_T: npt.NDArray[np.int32]
    sampled_T: npt.NDArray[np.bool_]  # sampled here: what may be trained
    logprob_T: npt.NDArray[np.float32]
    version_T2: npt.NDArray[np.int32]  # lineage and step of the weights that sampled it
    experts_TBK: npt.NDArray[np.int16] | None = None  # of a model with experts: where it was routed, -1 unknown
    # A row a span: entry of the trajectory (-1 unknown), part (place in harness.trajectory.PARTS), start, end, own.
    spans_S5: npt.NDArray[np.int32] = field(default_factory=lambda: np.empty((0, 5), np.int32))
    cause: str = "start"  # why the segment was opened


@dataclass(frozen=True, eq=False)
class Rollout:
    """What is learnt from of a scored rollout: tokens, reward, what happened where, and a few counts."""

    reward: float
    parts: dict[str, float]
    passed: bool
    stop: str
    turns: int
    malformed: int  # turns that broke the format
    tool_errors: int
    tokens: int  # the whole of it, prompts and observations included
    temperature: float
    seconds: float
    traces: tuple[Trace, ...]
    verdict: str = ""  # of its audit, where it had one
    task: str = ""
    source: str = ""  # which of several mixed sources the task came from
    terms: Terms = field(default_factory=Terms)
    errors: dict[str, int] = field(default_factory=dict)  # of tools by class, and "malformed" turns
    sites: tuple[Site, ...] = ()
    hints: tuple[Hinted, ...] = ()
    tools: dict[str, dict[str, int]] = field(default_factory=dict)  # of each: calls, and errors by class
    parallel_calls: float = 0.0  # share of the calling turns that made more than one call
    spent: dict[str, float] = field(default_factory=dict)  # of `seconds`, by `SPENT`
    submission: str = ""  # digest of what it handed in
    edited: bool = False  # it left changed files that reach the grader

    @property
    def behaviours(self) -> dict[str, int]:
        """Sites by kind."""
        return dict(Counter(site.kind for site in self.sites))

    @property
    def summaries(self) -> int:
        """How often it went on from a summary."""
        return sum(trace.cause == "summary" for trace in self.traces)

    @property
    def sampled_tokens(self) -> int:
        return sum(int(trace.sampled_T.sum()) for trace in self.traces)

    @property
    def thinking_tokens(self) -> int:
        part = PARTS.index("thinking")
        rows = np.concatenate([trace.spans_S5 for trace in self.traces]) if self.traces else np.empty((0, 5), np.int32)
        chosen = rows[(rows[:, 1] == part) & (rows[:, 4] != 0)]
        return int((chosen[:, 3] - chosen[:, 2]).sum())

    @property
    def overlong(self) -> bool:
        return self.stop in LIMITS


def compact(scored: Scored, source: str = "", terms: Terms | None = None) -> Rollout:
    """A scored rollout in the form that is learnt from; `source` and `terms` are its group's."""
    trajectory = scored.trajectory
    counts = measure([trajectory])
    traces = []
    for segment in trajectory.segments:
        arrays = segment.arrays()
        facts = arrays["ids"], segment.trained(), arrays["logprob"], arrays["version"], arrays.get("experts")
        traces.append(Trace(*facts, _spans(segment, arrays["spans"]), segment.cause))
    errors: Counter[str] = Counter({str(kind): times for kind, times in counts.total.errors.items()})
    errors["malformed"] = counts.malformed_turns
    tools = {name or "unknown": {"calls": c.calls, **c.errors} for name, c in sorted(counts.tools.items())}
    return Rollout(
        reward=scored.reward,
        parts=scored.parts,
        passed=scored.passed,
        stop=trajectory.stop,
        turns=counts.turns,
        malformed=counts.malformed_turns,
        tool_errors=counts.total.errors.total(),
        tokens=sum(len(trace.ids_T) for trace in traces),
        temperature=trajectory.sampling.temperature,
        seconds=scored.seconds,
        traces=tuple(traces),
        verdict=scored.ruling.verdict if scored.ruling is not None else "",
        task=scored.task.name,
        source=source,
        terms=terms or Terms(),
        errors=dict(+errors),
        sites=scored.sites,
        hints=scored.hints,
        tools=tools,
        parallel_calls=counts.parallel_rate,
        spent=spent_seconds(trajectory, scored.starting),
        submission=scored.changes.digest,
        edited=bool(scored.changes.files),
    )


def spent_seconds(trajectory: Trajectory, starting: float) -> dict[str, float]:
    """What sampling its turns, running its tools and, before both, `starting` its sandbox took."""
    found = dict.fromkeys(SPENT, 0.0) | {"starting": starting}
    for entry in trajectory.entries:
        if entry.segment >= 0:
            found["sampling" if isinstance(entry.message, Assistant) else "tools"] += entry.seconds
    return found


def _spans(segment: Segment, spans_S5: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """With the message of each span as its entry in the trajectory."""
    # The message of a turn that was opened and never sampled has no entry.
    entries = np.array([*segment.messages, -1], np.int32)
    found_S5 = spans_S5.copy()
    found_S5[:, 0] = entries[np.minimum(spans_S5[:, 0], len(segment.messages))]
    return found_S5


_FACTS = ("reward", "parts", "passed", "stop", "turns", "malformed", "tool_errors", "tokens", "temperature", "seconds")
# Facts that rollouts of earlier versions do not have, which then take their defaults.
_LATER: dict[str, Any] = {
    "verdict": str,
    "task": str,
    "source": str,
    "terms": Terms,
    "errors": dict[str, int],
    "sites": tuple[Site, ...],
    "hints": tuple[Hinted, ...],
    "tools": dict[str, dict[str, int]],
    "parallel_calls": float,
    "spent": dict[str, float],
    "submission": str,
    "edited": bool,
}
_ARRAYS = {"ids_T": np.int32, "sampled_T": np.bool_, "logprob_T": np.float32, "version_T2": np.int32}


def pack(rollout: Rollout) -> bytes:
    """A rollout as bytes: one safetensors file, a few kilobytes."""
    arrays = {f"{i}.{name}": getattr(trace, name) for i, trace in enumerate(rollout.traces) for name in _ARRAYS}
    arrays |= {f"{i}.experts_TBK": t.experts_TBK for i, t in enumerate(rollout.traces) if t.experts_TBK is not None}
    arrays |= {f"{i}.spans_S5": trace.spans_S5 for i, trace in enumerate(rollout.traces)}
    facts = {name: to_json(getattr(rollout, name)) for name in (*_FACTS, *_LATER)}
    facts["causes"] = [trace.cause for trace in rollout.traces]
    data: bytes = save(arrays, {"facts": json.dumps(facts)})
    return data


async def packed(
    scored: Scored, source: str, terms: Terms, files: RolloutFiles, name: tuple[int, int, int]
) -> tuple[Rollout, bytes | RolloutFile]:
    """A rollout in the form that is learnt from, and what of it goes to the journal; `name` is that of its file."""
    shape = partial(compact, scored, source=source, terms=terms)
    if sum(len(segment.ids) for segment in scored.trajectory.segments) < LONG:
        rollout = shape()
        data = pack(rollout)
        if len(data) <= INLINE:
            return rollout, data

    # In a thread: everybody else would wait while 190 MB are packed and written.
    def write() -> tuple[Rollout, RolloutFile]:
        rollout = shape()
        return rollout, files.write(*name, pack(rollout))

    return await asyncio.to_thread(write)


def unpack(data: bytes) -> Rollout:
    """The rollout that `pack` wrote; anything else raises."""
    try:
        arrays = load(data)
        size = int.from_bytes(data[:8], "little")
        facts: dict[str, Any] = json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["facts"])
        traces = []
        for i in range(sum(name.endswith(".ids_T") for name in arrays)):
            columns: dict[str, Any] = {
                name: arrays[f"{i}.{name}"].astype(kind, copy=False) for name, kind in _ARRAYS.items()
            }
            if f"{i}.experts_TBK" in arrays:
                columns["experts_TBK"] = arrays[f"{i}.experts_TBK"].astype(np.int16, copy=False)
            # Damaged bytes have to fail here, and not as a shape error inside the learner.
            if {len(column) for column in columns.values()} != {len(columns["ids_T"])}:
                raise ValueError("columns of different lengths")
            if f"{i}.spans_S5" in arrays:
                columns["spans_S5"] = arrays[f"{i}.spans_S5"].astype(np.int32, copy=False).reshape(-1, 5)
            if "causes" in facts:
                columns["cause"] = str(facts["causes"][i])
            traces.append(Trace(**columns))
        known = {name: facts[name] for name in _FACTS}
        known |= {name: from_json(kind, facts[name]) for name, kind in _LATER.items() if name in facts}
        return Rollout(**known, traces=tuple(traces))
    except (SafetensorError, ValueError, KeyError, TypeError, IndexError, EtudeError) as error:
        raise EtudeError(f"a saved rollout cannot be read: {error}") from None


@dataclass(frozen=True)
class Finished:
    """A rollout that a worker ran; what people may read of it stays with the worker."""

    task: Task
    rollout: Rollout
    data: bytes | RolloutFile
    broken: str = ""  # why its audit calls the task broken


@dataclass
class Slot:
    """Where one rollout of a group is in its life."""

    state: State = "queued"
    rollout: Rollout | None = None  # from ready on, unless it waits on the disk (workers/ready_rollouts.py)
    reward: float | None = None  # of one that waits there


def slot_name(number: int, slot: int) -> str:
    return f"{number:06d}-{slot:02d}"


def slot_of(name: str) -> tuple[int, int]:
    number, _, slot = name.partition("-")
    return int(number), int(slot)


@dataclass
class RolloutGroup:
    """One task, its rollouts, and the step of the oldest weights that any of them may have begun with."""

    number: int
    began: int
    slots: list[Slot] = field(default_factory=list)
    task: Task | None = None  # made when the first of its slots runs
    terms: Terms = field(default_factory=Terms)  # fixed when it was admitted

    @property
    def ready(self) -> bool:
        return not self.void and all(slot.state in ("ready", "void") for slot in self.slots)

    @property
    def void(self) -> bool:
        """Fewer than all but one of its members can be valid, or its only one."""
        return sum(slot.state == "void" for slot in self.slots) > (len(self.slots) > 1)

    @property
    def signal(self) -> bool:
        """Whether its rewards differ."""
        found = {slot.rollout.reward if slot.rollout is not None else slot.reward for slot in self.slots}
        return len(found - {None}) > 1

    @property
    def members(self) -> list[int]:
        """The slots that have a rollout."""
        return [index for index, slot in enumerate(self.slots) if slot.rollout is not None]

    @property
    def rollouts(self) -> list[Rollout]:
        return [slot.rollout for slot in self.slots if slot.rollout is not None]
