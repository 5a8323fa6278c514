"""Supervisors of local processes: one that dies is started again at the same address, as often as a budget allows.

All processes of a run share one budget, which is full again whenever the run has made progress: a process that dies
again and again within one step ends the run, and one that dies once a day does not. Knows child processes; not what
they compute, and nothing of reinforcement learning.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from etude.cluster.placement import Program, Running
from etude.core.child_process import Child, Folder, start
from etude.core.errors import EtudeError

LOOK = 0.05  # seconds between two looks at a process that is waited for
NOTICED = 2.0  # seconds after which the end of a process is noticed at the latest


class ProcessDied(EtudeError):
    """A process of ours died, and is not started again here."""


class Restarts:
    """How often processes may still be started again before something is achieved."""

    def __init__(self, most: int, log: Callable[[str], None]) -> None:
        self.most, self.log = most, log
        self.used = 0  # since the last progress
        self.total = 0

    def progress(self) -> None:
        self.used = 0

    def take(self, name: str, said: str) -> None:
        """One more start; raises when there is none left."""
        if self.used >= self.most:
            often = f" ({self.used} were started again since the last step or checkpoint, as cluster.restarts allows)"
            raise ProcessDied(f"{said}{often if self.used else ''}")
        self.used += 1
        self.total += 1
        self.log(f"{said.splitlines()[0].rstrip(':;')}; {name} is started again ({self.used} of {self.most})")


class LocalPlacement:
    """Programs are processes beside this one. Their sockets lie in one folder, under names that outlive them."""

    def __init__(self) -> None:
        self._folder = Folder("addresses")
        self._starts = 0
        self._newest: dict[str, Path] = {}

    def socket(self, name: str) -> Path:
        return self._folder.path / name

    def address(self, name: str) -> str:
        return f"unix:{self.socket(name)}"

    async def start(self, program: Program, seconds: float) -> Child:
        self._starts += 1
        self._newest[program.name] = own = self.socket(f"{program.name}.{self._starts}")
        return await start(
            program.title,
            program.module,
            program.arguments,
            ready=program.ready,
            log=program.log,
            deadline=seconds,
            leaves=program.leaves,
            socket=own,
            environment=program.environment,
        )

    def publish(self, name: str) -> None:
        own = self._newest[name]
        # With what it has beside its socket: an engine has one for frames.
        for path in [*own.parent.glob(f"{own.name}.*"), own]:
            path.replace(path.with_name(path.name.replace(own.name, name, 1)))

    async def ranks(self, names: Sequence[str]) -> list[Mapping[str, str]]:
        return []

    async def give_back(self, name: str) -> None:
        self._newest.pop(name, None)

    async def close(self) -> None:
        self._folder.remove()


class Supervisor:
    """One process. `start` starts it and returns when it can be asked.

    `up` is set while it is there; who finds it gone waits for it (`wait_back`).
    """

    def __init__(
        self,
        name: str,
        start: Callable[[], Awaitable[Running]],
        restarts: Restarts,
        on_death: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.name, self.restarts = name, restarts
        self._start, self._on_death = start, on_death
        self.up = asyncio.Event()
        self.deaths = 0
        self._child: Running | None = None
        self._closing = asyncio.Event()

    @property
    def child(self) -> Running:
        assert self._child is not None, "it was never started"
        return self._child

    async def open(self) -> None:
        self._child = await self._start()
        self.up.set()

    async def watch(self) -> None:
        """For as long as the run goes on. Raises when the process died once too often."""
        while True:
            await self.child.wait()
            if self._closing.is_set():
                return
            self.up.clear()
            self.deaths += 1
            if self._on_death is not None:  # first: others may do its work while it is started again
                await self._on_death()
            said = await self.child.last_words() or f"the {self.name} process ended"
            await self.child.close(0)
            while not self.up.is_set():
                self.restarts.take(self.name, said)
                try:
                    self._child = await self._start()
                    if self._closing.is_set():  # it was taken out meanwhile
                        await self._child.close(0)
                        return
                    self.up.set()
                except EtudeError as failed:
                    if self._closing.is_set():
                        return
                    said = str(failed)  # that costs a further start, or ends the run

    async def wait_back(self, deaths: int, seconds: float) -> None:
        """For whoever lost the connection to it, and knows how often it had died before: until it is there again."""
        waited = 0.0
        while not (self.up.is_set() and self.deaths > deaths):
            # Its end may not have been noticed yet. If it lives, only the connection was lost.
            if self.up.is_set() and waited >= NOTICED:
                return
            if waited >= seconds:
                raise EtudeError(f"{self.name} did not come back within {seconds:g} s")
            await asyncio.sleep(LOOK)
            waited += LOOK

    def end_watch(self) -> None:
        """Whatever ends from here on is not started again."""
        self._closing.set()

    async def close(self, seconds: float = 10.0) -> None:
        self.end_watch()
        if self._child is not None:
            await self._child.close(seconds)
