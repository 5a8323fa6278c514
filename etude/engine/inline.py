"""The engine as a policy inside this process, for notebooks, examples and tests: no server, no second process.

Steps run on the event loop's own thread, so everything else on that loop waits while one is computed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from etude.core.errors import EtudeError
from etude.core.policy import Context, Sample, Sampling
from etude.engine.engine import Engine
from etude.engine.logit_rules import LogitRules
from etude.engine.request import Request


class InlinePolicy:
    """A `Policy` and a `Scorer`. `decode` turns sampled ids into the sample's text; without it the text is empty.

    `rules` says what bends the logits of an answer, if anything does.
    """

    def __init__(
        self,
        engine: Engine,
        decode: Callable[[Sequence[int]], str] | None = None,
        rules: Callable[[Context], LogitRules | None] | None = None,
    ) -> None:
        self.engine = engine
        self.decode = decode
        self.rules = rules
        self._waiting: dict[int, asyncio.Future[Request]] = {}
        self._driver: asyncio.Task[None] | None = None

    async def sample(self, context: Context, sampling: Sampling) -> Sample:
        if context.ids is None:
            raise EtudeError("the engine samples from token ids; render the context's messages first")
        rules = self.rules(context) if self.rules else None
        request = self.engine.submit(context.ids, sampling, context.routed, rules=rules)
        done = self._waiting[request.number] = asyncio.get_running_loop().create_future()
        self.drive()
        try:
            await done
        except asyncio.CancelledError:
            # Nobody will read the answer. Without the abort it would hold its row and blocks until its end.
            self.engine.abort(request.number)
            raise
        finally:
            self._waiting.pop(request.number, None)
        return request.answer(self.decode(request.sampled) if self.decode else "")

    async def score(self, ids: tuple[int, ...], temperature: float = 1.0) -> tuple[float, ...]:
        return tuple(self.engine.score([ids], temperature)[0])

    def drive(self) -> None:
        """Steps the engine while it has work. Call it after the engine was resumed."""
        if self._driver is None or self._driver.done():
            self._driver = asyncio.get_running_loop().create_task(self._drive())

    async def _drive(self) -> None:
        try:
            while self.engine.busy:
                for request in self.engine.step():
                    done = self._waiting.get(request.number)  # none if who asked has left meanwhile
                    if done is not None and not done.done():
                        done.set_result(request)
                await asyncio.sleep(0)  # lets those who got their answer ask again before the next step
        # Whoever waits has to hear of it: a driver that ends in silence would leave them waiting.
        except Exception as crash:
            for done in self._waiting.values():
                if not done.done():
                    done.set_exception(crash)
