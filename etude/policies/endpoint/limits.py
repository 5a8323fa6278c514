"""How much may be asked of an endpoint: by the minute, and in all.

Plain arithmetic over a clock that is handed in. Knows no HTTP.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from etude.core.errors import EtudeError
from etude.core.settings import EndpointSettings

BURST = 2.0  # seconds' worth of a rate that may be used at once

Now = Callable[[], float]
Sleep = Callable[[float], Awaitable[Any]]


class TooLate(Exception):
    """The wait would end after the deadline."""


class Rate:
    """A token bucket by the minute, in order of arrival. 0 lets everything pass.

    Kept as the moment at which everything taken so far is paid off: a taker may run ahead of it by the burst, and one
    that wants more than a burst waits until the bucket is full and leaves a debt for those behind it.
    """

    def __init__(self, per_minute: float, now: Now, sleep: Sleep) -> None:
        self._per_second = per_minute / 60
        self._now, self._sleep = now, sleep
        self._paid_off = now()

    async def take(self, amount: float, deadline: float) -> None:
        if not self._per_second:
            return
        now = self._now()
        start = max(now, self._paid_off - BURST)
        if start > deadline:
            raise TooLate
        # Booked before the wait, so that whoever comes next queues behind it.
        self._paid_off = max(self._paid_off, now) + amount / self._per_second
        if start > now:
            try:
                await self._sleep(start - now)
            except BaseException:
                self.give_back(amount)
                raise

    def give_back(self, amount: float) -> None:
        """What was taken and not used."""
        if self._per_second:
            self._paid_off -= amount / self._per_second


@dataclass(frozen=True)
class Cost:
    """Tokens of one request: the prompt's and the answer's."""

    prompt: int
    answer: int

    @property
    def tokens(self) -> int:
        return self.prompt + self.answer


class Budget:
    """What was spent, and what requests in flight may still cost. Never passed, as far as servers say what they used.

    A request is let through only if its worst case still fits, so that many at once cannot overspend together.
    """

    def __init__(self, settings: EndpointSettings) -> None:
        self._settings = settings
        self.requests = 0
        self.prompt_tokens = 0
        self.sampled_tokens = 0
        self._in_flight: list[Cost] = []

    @property
    def money(self) -> float:
        return self._price(Cost(self.prompt_tokens, self.sampled_tokens))

    def begin(self, worst: Cost) -> None:
        """Counts a request and sets its worst case aside; refuses it when that no longer fits."""
        settings = self._settings
        flying = Cost(sum(cost.prompt for cost in self._in_flight), sum(cost.answer for cost in self._in_flight))
        tokens = self.prompt_tokens + self.sampled_tokens + flying.tokens + worst.tokens
        money = self.money + self._price(flying) + self._price(worst)
        for name, limit, needed in (
            ("max_requests", settings.max_requests, self.requests + 1),
            ("max_tokens", settings.max_tokens, tokens),
            ("max_money", settings.max_money, money),
        ):
            if limit and needed > limit:
                raise EtudeError(
                    f"the budget endpoint.{name} = {limit:g} is spent: {self} so far, and the next request could make "
                    f"it {needed:g}; raise it to go on"
                )
        self.requests += 1
        self._in_flight.append(worst)

    def end(self, worst: Cost, used: Cost) -> None:
        """Books what a request cost in the place of its worst case."""
        self._in_flight.remove(worst)
        self.prompt_tokens += used.prompt
        self.sampled_tokens += used.answer

    def __str__(self) -> str:
        return f"{self.requests} requests, {self.prompt_tokens + self.sampled_tokens} tokens, {self.money:.4g} of money"

    def _price(self, cost: Cost) -> float:
        return (cost.prompt * self._settings.price_in + cost.answer * self._settings.price_out) / 1e6
