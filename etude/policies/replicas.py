"""Several engines that hold the same model behind one policy: sticky by rollout, updated together, started again alone.

A rollout stays with one engine, and so does its group: what they share is in that engine's prefix cache. An update goes
to all, with a deadline each. An engine that died is started again by its supervisor at the same address; `restore` then
brings it to the present version, and to the one that an evaluation has pinned, before anybody samples from it. Knows no
task and no rollout but by name.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from etude.core.errors import EtudeError
from etude.core.frame_calls import ConnectionLost
from etude.core.policy import Context, Sample, Sampling, Version
from etude.policies.engine_client import EngineClient

LOOK = 0.2  # seconds between two tries to bring an engine to a version
TIMES = 10  # connections to one engine that may be lost in a row


@dataclass
class EngineReplicas:
    """A `Policy`. `version` is what all of them have, or are being brought to; `pinned` that of an evaluation."""

    engines: Sequence[EngineClient]
    version: Version
    deadline: float = 60.0  # seconds for an update of one engine, and for one that is gone to be back
    wait_up: Callable[[int], Awaitable[None]] | None = None  # for an engine that is started again
    pinned: Version | None = None
    _next: int = field(default=0, repr=False)

    async def sample(self, context: Context, sampling: Sampling) -> Sample:
        """From one engine after another: for samples that belong to no rollout."""
        self._next = (self._next + 1) % len(self.engines)
        return await self.engines[self._next].sample(context, sampling)

    def of_rollout(self, key: str) -> EngineClient:
        """The engine of a rollout or of a group of them, always the same."""
        return self.engines[zlib.crc32(key.encode()) % len(self.engines)]

    async def update(self, version: Version) -> dict[str, Any]:
        """Swaps `version` in everywhere; one that is gone gets it when it is back. What an engine said of it."""
        self.version = version
        found: dict[str, Any] = {}

        async def one(engine: EngineClient) -> None:
            found.update(await engine.update(version))

        await self._all(one)
        return found

    async def pin(self, version: Version) -> PinnedReplicas:
        """Keeps the present weights, which must be `version`, beside those that come; a policy that samples them."""
        self.pinned = version
        await self._all(lambda engine: engine.pin(version))
        return PinnedReplicas(self, version)

    async def health(self) -> None:
        await self._all(lambda engine: engine.health())

    async def restore(self, engine: EngineClient, started: Version) -> None:
        """An engine that was started again with the weights of `started`: pins and swaps as the others did."""
        if self.pinned == started:
            await engine.pin(started)
        failed: EtudeError | None = None
        for _ in range(max(1, int(self.deadline / LOOK))):
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
                failed = refused
                await asyncio.sleep(LOOK)
        raise EtudeError(f"an engine cannot be brought to version {self.version}: {failed}")

    async def close(self) -> None:
        for engine in self.engines:
            await engine.close()

    async def _all(self, ask: Callable[[EngineClient], Awaitable[Any]]) -> None:
        await asyncio.gather(*(self._one(number, engine, ask) for number, engine in enumerate(self.engines)))

    async def _one(self, number: int, engine: EngineClient, ask: Callable[[EngineClient], Awaitable[Any]]) -> None:
        for _ in range(TIMES):
            try:
                async with asyncio.timeout(self.deadline):
                    await ask(engine)
                return
            except TimeoutError:
                said = f"engine {number} at {engine.address} did not answer within {self.deadline:g} s"
                raise EtudeError(said) from None
            except ConnectionLost:
                if self.wait_up is None:
                    raise
            # It comes back at the present version, or the run ends. Asked again then: it may have begun to start before
            # this was wanted, and only its connection may have been lost.
            await self.wait_up(number)
        raise EtudeError(f"the connection to engine {number} at {engine.address} was lost {TIMES} times in a row")


@dataclass(frozen=True)
class PinnedReplicas:
    """A `Policy`: the engines at one version, whatever they are swapped to meanwhile."""

    engines: EngineReplicas
    version: Version

    async def sample(self, context: Context, sampling: Sampling) -> Sample:
        # One prompt, one engine: the turns of a rollout begin alike.
        engine = self.engines.of_rollout(str(hash((context.ids or ())[:64])))
        return await engine.sample(context, sampling, version=self.version)
