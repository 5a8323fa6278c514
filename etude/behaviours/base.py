"""What a behaviour is: settings, and the sites of a trajectory where it happened.

One file serves three readers: a reward counts the sites, feedback puts the hint above the message, a monitor watches
the rate. Knows trajectories; neither tasks, grades nor tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pydantic

from etude.core.policy import Assistant, Call, ToolResult
from etude.harness.trajectory import MessageRecord, Trajectory

CHANGING = ("edit", "write", "delete", "run", "agent")  # tools that may change the workspace


@dataclass(frozen=True)
class Site:
    """One place where a behaviour happened."""

    message: int  # entry of the trajectory: the turn that did it
    kind: str  # name of the behaviour, or that and one of its classes: `tool_errors.unknown_tool`
    hint: str  # what would have helped, in a sentence or two; empty: nothing to say there


class Behaviour:
    """Base of all behaviours. One instance serves a whole run."""

    class Settings(pydantic.BaseModel, extra="forbid", frozen=True):
        """What a recipe may set beside `use`."""

    def __init__(self, settings: Any) -> None:
        self.settings = settings

    def sites(self, trajectory: Trajectory) -> list[Site]:
        """Where it happened, in the order of the messages."""
        raise NotImplementedError

    async def find(self, trajectory: Trajectory) -> list[Site]:
        """The same, for one that has to ask somebody; a failure to get an answer raises `PolicyFailure`."""
        return self.sites(trajectory)


class Step(NamedTuple):
    """One call of a rollout and what came back."""

    turn: int  # entry of the turn that called
    call: Call
    result: MessageRecord | None  # None: the call that ended the rollout, or one that was never run

    @property
    def answer(self) -> str:
        """What the tool said."""
        message = self.result.message if self.result is not None else None
        return message.text if isinstance(message, ToolResult) else ""


def turns_of(trajectory: Trajectory) -> Iterator[tuple[int, MessageRecord, Assistant]]:
    """The turns of this rollout, with their entries; what was said before it is left out, and so are its summaries,
    which are for nobody but the agent and call nothing.
    """
    for entry, record in enumerate(trajectory.entries):
        if record.segment >= 0 and isinstance(record.message, Assistant) and record.purpose != "summary":
            yield entry, record, record.message


def own_turns(trajectory: Trajectory) -> list[tuple[int, Assistant]]:
    """Those that speak to the user. What sub-agents said is for the agent, and stands behind all of its own entries."""
    behind = (entry for entry, record in enumerate(trajectory.entries) if record.purpose == "sub-agent")
    first = next(behind, len(trajectory.entries))
    return [(entry, turn) for entry, _, turn in turns_of(trajectory) if entry < first]


def steps_of(trajectory: Trajectory) -> list[Step]:
    """Every call of turns that could be read, in order, with its result."""
    steps: list[Step] = []
    waiting: list[int] = []  # steps whose result has not come yet
    for entry, record in enumerate(trajectory.entries):
        if record.segment < 0:
            continue
        if isinstance(record.message, Assistant):
            calls = record.message.calls if record.error is None else ()
            waiting = list(range(len(steps), len(steps) + len(calls)))
            steps += [Step(entry, call, None) for call in calls]
        elif isinstance(record.message, ToolResult) and waiting:
            place = waiting.pop(0)
            steps[place] = steps[place]._replace(result=record)
    return steps
