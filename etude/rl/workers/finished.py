"""A finished rollout in the form that is learnt from, with what the journal keeps of it.

Small rollouts are bytes for a row of the journal, large ones a file. Knows neither who ran it nor what comes next.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial

from etude.core.terms import Terms
from etude.rl.groups import Rollout, compact, pack
from etude.rl.rollout_files import INLINE, RolloutFile, RolloutFiles
from etude.rollout.rollout import Scored
from etude.tasks.format.task import Task

LONG = 4096  # tokens from which on a rollout is packed in a thread without a look at its size


@dataclass(frozen=True)
class Finished:
    """A rollout that a worker ran; what people may read of it stays with the worker."""

    task: Task
    rollout: Rollout
    data: bytes | RolloutFile
    broken: str = ""  # why its audit calls the task broken


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


def slot_name(number: int, slot: int) -> str:
    return f"{number:06d}-{slot:02d}"


def slot_of(name: str) -> tuple[int, int]:
    number, _, slot = name.partition("-")
    return int(number), int(slot)
