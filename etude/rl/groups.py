"""A group: one task and the rollouts of it, each in a slot; and a rollout in the compact form that is learnt from.

A slot is queued, running, grading, ready, trained or void. A group may be trained when every slot is ready or void and
at most one is void. Knows neither the journal that remembers all this nor the loop that moves it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save

from etude.core.errors import EtudeError
from etude.harness.metrics import measure
from etude.rollout.rollout import Scored
from etude.tasks.format.task import Task

State = Literal["queued", "running", "grading", "ready", "trained", "void"]
STATES: tuple[State, ...] = get_args(State)
LIMITS = ("turns", "tokens", "context", "time")  # why a rollout stopped that did not come to an end by itself


@dataclass(frozen=True, eq=False)
class Trace:
    """One segment as a learner wants it; entry t of every array is about token t."""

    ids_T: npt.NDArray[np.int32]
    sampled_T: npt.NDArray[np.bool_]  # sampled here: what may be trained
    logprob_T: npt.NDArray[np.float32]
    version_T2: npt.NDArray[np.int32]  # lineage and step of the weights that sampled it
    experts_TBK: npt.NDArray[np.int16] | None = None  # of a model with experts: where it was routed, -1 unknown


@dataclass(frozen=True, eq=False)
class Rollout:
    """What is learnt from of a scored rollout: tokens, reward and a few counts."""

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

    @property
    def sampled_tokens(self) -> int:
        return sum(int(trace.sampled_T.sum()) for trace in self.traces)

    @property
    def overlong(self) -> bool:
        return self.stop in LIMITS


def compact(scored: Scored) -> Rollout:
    """A scored rollout in the form that is learnt from."""
    trajectory = scored.trajectory
    counts = measure([trajectory])
    traces = []
    for segment in trajectory.segments:
        arrays = segment.arrays()
        traces.append(
            Trace(arrays["ids"], segment.trained(), arrays["logprob"], arrays["version"], arrays.get("experts"))
        )
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
    )


_FACTS = ("reward", "parts", "passed", "stop", "turns", "malformed", "tool_errors", "tokens", "temperature", "seconds")
_ARRAYS = {"ids_T": np.int32, "sampled_T": np.bool_, "logprob_T": np.float32, "version_T2": np.int32}


def pack(rollout: Rollout) -> bytes:
    """A rollout as bytes: one safetensors file, a few kilobytes."""
    arrays = {f"{i}.{name}": getattr(trace, name) for i, trace in enumerate(rollout.traces) for name in _ARRAYS}
    arrays |= {f"{i}.experts_TBK": t.experts_TBK for i, t in enumerate(rollout.traces) if t.experts_TBK is not None}
    facts = {name: getattr(rollout, name) for name in (*_FACTS, "verdict")}
    data: bytes = save(arrays, {"facts": json.dumps(facts)})
    return data


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
            traces.append(Trace(**columns))
        known = {name: facts[name] for name in _FACTS}
        return Rollout(**known, traces=tuple(traces), verdict=facts.get("verdict", ""))
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise EtudeError(f"a saved rollout cannot be read: {error}") from None


@dataclass
class Slot:
    """Where one rollout of a group is in its life."""

    state: State = "queued"
    rollout: Rollout | None = None  # from ready on


@dataclass
class RolloutGroup:
    """One task, its rollouts, and the step of the oldest weights that any of them may have begun with."""

    number: int
    began: int
    slots: list[Slot] = field(default_factory=list)
    task: Task | None = None  # made when the first of its slots runs

    @property
    def ready(self) -> bool:
        return not self.void and all(slot.state in ("ready", "void") for slot in self.slots)

    @property
    def void(self) -> bool:
        """Fewer than all but one of its members can be valid."""
        return sum(slot.state == "void" for slot in self.slots) > 1

    @property
    def rollouts(self) -> list[Rollout]:
        return [slot.rollout for slot in self.slots if slot.rollout is not None]
