"""Engines that come and go while a run goes on: as many of its own as are wanted, and those that others lend.

A lender (`etude serve --lend RUN`) writes a file below RUN/rl/lent that says how it is reached (`core/tcp_address`); it
is sampled from while the file is there, it answers, and its owner does not want it back (`serve/lend.py`). Looks once a
second. What cannot be started or joined costs an engine and a line, never the run; it is tried again after a while.
Knows engines; nothing of training.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from etude.cluster.engines import Engines
from etude.cluster.local import Supervisor
from etude.core.errors import EtudeError
from etude.core.tcp_address import FILE
from etude.serve.messages import GIVE_BACK

LOOK = 1.0  # seconds between two looks
AGAIN = 30.0  # seconds until something that failed is tried again


class ElasticEngines:
    """Call `look`, or let `run` do that. `changed` hears how many engines are sampled from."""

    def __init__(
        self,
        engines: Engines,
        wanted: Callable[[], int],
        lent: Path,
        *,
        watch: Callable[[Supervisor], None],
        changed: Callable[[int], None],
        say: Callable[[str], None],
        drain_seconds: float,
    ) -> None:
        self.engines, self.wanted, self.lent = engines, wanted, lent
        self.watch, self.changed, self.say = watch, changed, say
        self.drain_seconds = drain_seconds
        self._told = len(engines.replicas.present)
        self._failed: dict[str, tuple[int, float]] = {}  # what, of which time, and when it failed

    async def run(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(LOOK)

    async def look(self) -> None:
        await self._own()
        await self._lent()
        if (count := len(self.engines.replicas.present)) != self._told:
            self._told = count
            self.changed(count)

    async def _own(self) -> None:
        wanted, own = self.wanted(), self.engines.own
        if len(own) < wanted and self._may("own", wanted):
            try:
                supervisor = await self.engines.start()
            except EtudeError as failed:
                self._refused("own", wanted)
                self.say(f"a further engine could not be started, and {len(own)} go on: {failed}")
                return
            self.watch(supervisor)
            self.say(f"{len(self.engines.own)} of {wanted} engines are there")
        # The newest first: the oldest is the one that every evaluation has pinned. One under way keeps its engines.
        elif len(own) > wanted and (free := [each for each in own[1:] if each not in self.engines.replicas.leased]):
            left = await self.engines.leave(free[-1], self.drain_seconds)
            late = f"; {left} rollouts had not left it, and go on from their recorded tokens" if left else ""
            self.say(f"engine {free[-1]} was taken out, as {wanted} are wanted{late}")

    async def _lent(self) -> None:
        try:
            paths = set(self.lent.glob("[!.]*"))
        except OSError:
            return  # a folder out of reach says nothing about the engines
        back = {path.with_name(path.name.removesuffix(GIVE_BACK)) for path in paths if path.name.endswith(GIVE_BACK)}
        addresses = [path for path in paths - back if not path.name.endswith(GIVE_BACK)]
        offered = {f"{FILE}{path}": _time(path) for path in addresses}
        for number, address in list(self.engines.lent.items()):
            if address not in offered:
                left = await self.engines.leave(number, self.drain_seconds)
                self.say(f"engine {number}, which was lent, was given back ({left} rollouts under way)")
            elif not await self._answers(number):
                await self.engines.leave(number, 0.0)
                self._refused(address, offered[address])
                self.say(f"engine {number} at {address} does not answer, and is taken out")
        # A lender has the weights of its own model: it can be asked once there is a version that it can read.
        if self.engines.replicas.version == self.engines.first:
            return
        for address in offered.keys() - set(self.engines.lent.values()):
            if not self._may(address, offered[address]):
                continue
            try:
                number = await self.engines.join(address)
            except EtudeError as failed:
                # A killed lender's file stays until somebody removes it: that is told once, however often it is tried.
                if self._refused(address, offered[address]):
                    self.say(f"the engine that {address} lends cannot be used: {failed}")
            else:
                self._failed.pop(address, None)
                self.say(f"engine {number} is lent by {address}")

    async def _answers(self, number: int) -> bool:
        try:
            await self.engines.replicas.engines[number].health()
        except EtudeError:
            return False
        return True

    def _may(self, what: str, of: int) -> bool:
        before, when = self._failed.get(what, (of, -AGAIN))
        return before != of or time.monotonic() - when >= AGAIN

    def _refused(self, what: str, of: int) -> bool:
        """True where it had not failed before."""
        before, _ = self._failed.get(what, (None, 0.0))
        self._failed[what] = of, time.monotonic()
        return before != of


def _time(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
