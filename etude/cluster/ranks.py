"""The ranks of one learner as programs of a placement: started together, and ended as soon as one of them ends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from etude.cluster.placement import LEARNER, Placement, Program, Running

RANK, READY = "etude.learn.parallel.launch", "etude rank ready"


class Ranks:
    """A `Running`: the first rank, which takes the verbs, with the others beside it."""

    def __init__(self, ranks: Sequence[Running]) -> None:
        self.ranks = ranks
        self.said = ranks[0].said

    @property
    def pid(self) -> int:
        return self.ranks[0].pid

    @property
    def ended(self) -> bool:
        return any(rank.ended for rank in self.ranks)

    async def wait(self) -> None:
        waits = [asyncio.ensure_future(rank.wait()) for rank in self.ranks]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def last_words(self) -> str | None:
        """Of the rank that ended; of several, one that is not the first, which ends when it loses another."""
        said = await asyncio.gather(*(rank.last_words() for rank in self.ranks))
        return next((words for words in [*said[1:], said[0]] if words), None)

    def log_end(self) -> str:
        return self.ranks[0].log_end()

    async def close(self, seconds: float) -> None:
        await self.ranks[0].close(seconds)
        await asyncio.gather(*(rank.close(0) for rank in self.ranks[1:]))


async def start_ranks(placement: Placement, first: Program, count: int, threads: int, seconds: float) -> Running:
    """The first rank, with all others that a placement starts beside it; elsewhere it starts them by itself."""
    names = [f"{LEARNER}-{rank}" for rank in range(count)]
    variables = await placement.ranks(names) if count > 1 else []
    if not variables:
        return await placement.start(first, seconds)
    programs = [replace(first, environment=variables[0])]
    for rank in range(1, count):
        log = first.log and first.log.with_name(first.log.name.replace(LEARNER, f"{LEARNER}-rank-{rank}", 1))
        arguments = ("--torchrun", f"--threads={threads}", f"--deadline={seconds}")
        programs.append(Program(names[rank], RANK, arguments, READY, log, environment=variables[rank]))
    # All at once: the first says that it is ready when it has met the others.
    started = await asyncio.gather(*(placement.start(program, seconds) for program in programs), return_exceptions=True)
    there = [one for one in started if not isinstance(one, BaseException)]
    if len(there) < count:
        await asyncio.gather(*(one.close(0) for one in there))
        raise next(one for one in started if isinstance(one, BaseException))
    return Ranks(there)
