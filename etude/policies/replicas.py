"""Several engines that hold the same model behind one policy: sticky by rollout, updated together, started again alone.

A rollout stays with one engine, and so does its group: what they share is in that engine's prefix cache. An update goes
to all, with a deadline each. An engine that died is started again by its supervisor at the same address; `restore` then
brings it to the present version, and to the one that an evaluation has pinned, before anybody samples from it. Engines
may join and leave; a spare has every version and takes the place of one that died at once. Knows no task and no rollout
but by name.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from etude.core.errors import EtudeError
from etude.core.frame_calls import ConnectionLost
from etude.core.policy import Context, Sample, Sampling, Version
from etude.policies.engine_client import EngineClient
from etude.policies.placement import Placement

LOOK = 0.2  # seconds between two tries to bring an engine to a version
# Of an engine's own counts, and of its steps (engine/step_costs.py).
WORK = (
    *("steps", "computed_tokens", "sampled_tokens", "cached_tokens", "waited_seconds"),
    *("step_seconds", "seconds_rows", "seconds_prompts", "rows_rows", "rows_prompts", "prompts_prompts"),
)
TIMES = 10  # connections to one engine that may be lost in a row


@dataclass
class EngineReplicas:
    """A `Policy`. `version` is what all of them have, or are being brought to; `pinned` that of an evaluation."""

    engines: list[EngineClient]  # by number; one that was removed keeps its own
    version: Version
    deadline: float = 60.0  # seconds for an update of one engine, and for one that is gone to be back
    wait_up: Callable[[int], Awaitable[None]] | None = None  # for an engine that is started again
    pinned: Version | None = None
    # Hears that engines joined or left: who asks them by an address of its own has to ask others from then on.
    on_change: Callable[[], Awaitable[None]] | None = None
    may_lose: Callable[[int], bool] = lambda number: False  # an engine that `wait_up` takes out when it fails
    _next: int = field(default=0, repr=False)

    def __post_init__(self) -> None:
        self.engines = list(self.engines)
        self.placement: Placement[int] = Placement(range(len(self.engines)))
        self.spares: set[int] = set()  # that are updated with the others, and not sampled from
        self._have_pin: set[int] = set()
        self._lease_until = 0.0
        self._counted: dict[int, dict[str, float]] = {}  # what each said last of its work
        self._work: Counter[str] = Counter()

    @property
    def present(self) -> list[int]:
        """The numbers of the engines that are sampled from."""
        return sorted(self.placement.in_flight)

    async def sample(self, context: Context, sampling: Sampling) -> Sample:
        """From one engine after another: for samples that belong to no rollout."""
        present = self.present
        self._next = (self._next + 1) % len(present)
        return await self.engines[present[self._next]].sample(context, sampling)

    def of_pinned(self, key: str) -> EngineClient:
        """Likewise among those that were there when an evaluation pinned its version."""
        there = self.with_pin
        return self.engines[there[zlib.crc32(key.encode()) % len(there)]]

    @property
    def with_pin(self) -> list[int]:
        """The numbers of the engines that an evaluation may ask."""
        return [number for number in self.present if number in self._have_pin] or self.present

    @contextmanager
    def rollout(self, group: str) -> Iterator[PlacedRollout]:
        """Where a rollout of `group` is sampled; its place is free again when this ends."""
        placed = PlacedRollout(self, group, self.placement.begin(group))
        try:
            yield placed
        finally:
            self.placement.end(placed.number)

    async def add(self, engine: EngineClient, started: Version | None = None, *, has_pin: bool = False) -> int:
        """One engine more: its number. It is sampled from at once.

        `started` is the version of the weights that it began with; None where it may be another model's.
        """
        await self.restore(engine, started)
        # Nothing is awaited from here on: it has the present version, and hears of the next.
        number = len(self.engines)
        self.engines.append(engine)
        self.placement.add(number)
        if has_pin or (started is not None and self.pinned == started):
            self._have_pin.add(number)
        await self._changed()
        return number

    async def remove(self, number: int, deadline: float) -> int:
        """Takes an engine out: rollouts leave it at their next turn. How many were not gone after `deadline` seconds.

        Those lose the connection when whoever owns the engine ends it, and go on elsewhere from their recorded tokens.
        """
        self.placement.remove(number)
        await self._changed()
        for _ in range(max(1, int(deadline / LOOK))):
            if not self.placement.leaving(number) or not await self._pending(number):
                return 0
            await asyncio.sleep(LOOK)
        return self.placement.leaving(number)

    async def replace(self, number: int) -> bool:
        """An engine died: a spare takes its place at once, if there is one. The other is a spare when it is back."""
        if number not in self.placement.in_flight or not self.spares:
            self.spares.discard(number)
            return False
        spare = min(self.spares)
        self.spares.remove(spare)
        self.placement.add(spare)
        self.placement.remove(number)
        await self._changed()
        return True

    def back(self, number: int, *, has_pin: bool) -> None:
        """An engine has the present version again. One whose place was taken is a spare from here on."""
        if number not in self.placement.in_flight:
            self.spares.add(number)
        (self._have_pin.add if has_pin else self._have_pin.discard)(number)

    async def _pending(self, number: int) -> bool:
        """Whether an engine still works on answers. A rollout between two turns is not with it any more."""
        try:
            told = await self.engines[number].health()
            return bool(told.get("pending", 1)) if told else True
        except EtudeError:
            return False  # it is gone

    async def _changed(self) -> None:
        if self.on_change is not None:
            await self.on_change()

    async def update(self, version: Version) -> dict[str, Any]:
        """Swaps `version` in everywhere; one that is gone gets it when it is back. What an engine said of it."""
        self.version = version
        found: dict[str, Any] = {}

        async def one(engine: EngineClient) -> None:
            found.update(await engine.update(version))

        await self._all(one)
        return found

    async def pin(self, version: Version, lease: float = 0.0) -> PinnedReplicas:
        """Keeps the present weights, which must be `version`, beside those that come; a policy that samples them.

        For `lease` seconds, or until `end_lease`, none of these engines should be taken out (`leased`).
        """
        self._lease_until = time.monotonic() + lease
        self.pinned, self._have_pin = version, {*self.present, *self.spares}
        await self._all(lambda engine: engine.pin(version))
        return PinnedReplicas(self, version)

    @property
    def leased(self) -> set[int]:
        """Engines that an evaluation under way counts on."""
        return set(self._have_pin) if time.monotonic() < self._lease_until else set()

    def end_lease(self) -> None:
        self._lease_until = 0.0

    async def health(self) -> None:
        await self._all(lambda engine: engine.health())

    async def work(self) -> dict[str, float]:
        """What all engines did so far, by kind; of one that does not answer now, what it said before."""
        present = self.present
        answers = await asyncio.gather(*(self.engines[number].stats() for number in present), return_exceptions=True)
        for number, stats in zip(present, answers, strict=True):
            if isinstance(stats, dict):
                counts, before = {name: stats.get(name, 0) for name in WORK}, self._counted.get(number, {})
                if any(counts[name] < before.get(name, 0) for name in WORK):
                    before = {}  # it was started again, and counts from nothing
                self._work.update({name: counts[name] - before.get(name, 0) for name in WORK})
                self._counted[number] = counts
        return {f"engine_{name}": self._work[name] for name in WORK}

    async def restore(self, engine: EngineClient, started: Version | None) -> None:
        """An engine that was started again with the weights of `started`: pins and swaps as the others did."""
        if started is not None and self.pinned == started:
            await engine.pin(started)
        end = time.monotonic() + self.deadline  # and not so many tries: one may wait for a version that never comes
        while True:
            wanted = self.version
            try:
                if wanted != started:
                    await engine.update(wanted)
                if wanted == self.version:
                    return
            except ConnectionLost:
                raise
            except EtudeError as refused:
                # The board has the next version already: that is about to be asked for.
                if time.monotonic() > end:
                    raise EtudeError(f"an engine cannot be brought to version {self.version}: {refused}") from None
                await asyncio.sleep(LOOK)

    async def close(self) -> None:
        for engine in self.engines:
            await engine.close()

    async def _all(self, ask: Callable[[EngineClient], Awaitable[Any]]) -> None:
        numbers = sorted({*self.present, *self.spares})
        await asyncio.gather(*(self._one(number, self.engines[number], ask) for number in numbers))

    async def _one(self, number: int, engine: EngineClient, ask: Callable[[EngineClient], Awaitable[Any]]) -> None:
        for _ in range(TIMES):
            try:
                async with asyncio.timeout(self.deadline):
                    await ask(engine)
                return
            except TimeoutError:
                if not self._do_without(number):
                    said = f"engine {number} at {engine.address} did not answer within {self.deadline:g} s"
                    raise EtudeError(said) from None
            except ConnectionLost:
                self.spares.discard(number)  # nobody waits for a spare: it catches up when it is back
                if number not in self.placement.in_flight:
                    return  # it was removed meanwhile
                if self.wait_up is None:
                    raise
            except EtudeError:
                if not self._do_without(number):
                    raise
            if self.wait_up is None or number not in self.placement.in_flight:
                return  # a spare, or one that was removed meanwhile
            # It comes back at the present version, or the run ends. Asked again then: it may have begun to start before
            # this was wanted, and only its connection may have been lost.
            await self.wait_up(number)
            if number not in self.placement.in_flight:
                return  # another has its place
        raise EtudeError(f"the connection to engine {number} at {engine.address} was lost {TIMES} times in a row")

    def _do_without(self, number: int) -> bool:
        """Whether the run goes on without an engine that hangs or refuses: a spare, or one of somebody else."""
        self.spares.discard(number)
        return number not in self.placement.in_flight or self.may_lose(number)


@dataclass
class PlacedRollout:
    """A `Policy` for the turns of one rollout: each is sampled by its group's engine, or by another if that left."""

    engines: EngineReplicas
    group: str
    number: int

    @property
    def engine(self) -> EngineClient:
        self.number = self.engines.placement.moved(self.number, self.group)
        return self.engines.engines[self.number]

    @property
    def address(self) -> str:
        return self.engine.address

    async def sample(
        self,
        context: Context,
        sampling: Sampling,
        *,
        name: str | None = None,
        on_part: Callable[[Sample], None] | None = None,
        every: int = 0,
    ) -> Sample:
        return await self.engine.sample(context, sampling, name=name, on_part=on_part, every=every)


@dataclass(frozen=True)
class PinnedReplicas:
    """A `Policy`: the engines at one version, whatever they are swapped to meanwhile."""

    engines: EngineReplicas
    version: Version

    async def sample(self, context: Context, sampling: Sampling) -> Sample:
        # One prompt, one engine: the turns of a rollout begin alike.
        engine = self.engines.of_pinned(str(hash((context.ids or ())[:64])))
        return await engine.sample(context, sampling, version=self.version)
