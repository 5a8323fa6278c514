"""A simulated engine replica: a batch in which every request gets one token a step, and steps grow with the batch.

Between two arrivals all requests advance equally, so one count of tokens (`progress`) serves the whole batch and an
event is needed only where a request begins or ends: a simulated token costs nothing.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from etude.plan.simulator.processors import NEAR, Alarm, Processors
from etude.plan.simulator.service_times import EngineTimes

Spans = list[tuple[int, float]]  # version and how many tokens it sampled, in order
KEPT = 512  # swaps remembered, far more than one request may see


@dataclass(eq=False)
class _Request:
    prompt: float
    left: float
    then: Callable[[Spans], None]
    spans: Spans = field(default_factory=list)
    began: float = 0.0  # the engine's progress when it was begun or counted last
    tokens: float = 0.0  # sampled so far


class SimulatedEngine:
    def __init__(self, processors: Processors, times: EngineTimes, version: int, slower: float = 1.0) -> None:
        self._processors, self._times, self._slower = processors, times, slower
        self._running: list[tuple[float, int, _Request]] = []  # by the progress at which each is done
        self._waiting: deque[_Request] = deque()
        self._number = count()
        self._at = processors.now()
        self._progress = 0.0  # tokens that a request would have sampled which was here from the start
        self._first = 0.0  # seconds of prompts and swaps that come before the next token
        self._swaps: list[tuple[float, int]] = [(0.0, version)]
        self._alarm: Alarm | None = None
        self._alarm_at = 0.0
        self._busy = False
        self._busy_since = 0.0
        self.up = True
        self.busy_seconds = 0.0  # of work
        self.sampled = 0.0  # tokens
        self.lost = 0.0  # tokens that were sampled and then lost with the engine

    @property
    def in_flight(self) -> int:
        return len(self._running) + len(self._waiting)

    def sample(self, prompt: float, tokens: float, then: Callable[[Spans], None]) -> None:
        """So many tokens behind so many of a prompt that are not in the cache; `then` is given who sampled them."""
        self._waiting.append(_Request(prompt, max(1.0, tokens), then))
        if self.up:
            self._advance()
            self._admit()
            self._arm()

    def swap(self, version: int, seconds: float = 0.0) -> None:
        """Tokens from now on are of `version`."""
        self._advance()
        self._first += seconds if self._running else 0.0
        self._swaps.append((self._progress, version))
        if len(self._swaps) > 2 * KEPT:
            del self._swaps[:KEPT]
        if self.up:
            self._arm()

    def fail(self, recorded: float) -> None:
        """The process dies. Answers lose what was not recorded, half of `recorded` tokens on average."""
        self._advance()
        for _, _, request in sorted(self._running):
            self._count(request, max(request.began, self._progress))
            gone = min(request.spans[-1][1] if request.spans else 0.0, recorded / 2, request.tokens)
            if gone:
                version, tokens = request.spans.pop()
                request.spans.append((version, tokens - gone))
                request.left, request.tokens = request.left + gone, request.tokens - gone
                self.lost += gone
            request.prompt += request.tokens  # computed again, from its first token on
            self._waiting.appendleft(request)
        self._running.clear()
        self._first, self.up = 0.0, False
        self._rest()

    def start(self) -> None:
        self.up, self._at = True, self._processors.now()
        self._admit()
        self._arm()

    def busy_until(self, now: float) -> float:
        """Seconds of work so far."""
        return self.busy_seconds + (now - self._busy_since if self._busy else 0.0)

    # Inside

    @property
    def _step(self) -> float:
        return (self._times.step + self._times.token * len(self._running)) * self._slower

    def _advance(self) -> None:
        now = self._processors.now()
        passed, self._at = now - self._at, now
        if self._running:
            first = min(self._first, passed)
            self._first -= first
            self._progress += (passed - first) / self._step

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._times.running:
            request = self._waiting.popleft()
            self._first += request.prompt * self._times.prompt * self._slower
            # A step that is under way takes nobody in: who comes then begins with the next one.
            request.prompt, request.began = 0.0, float(math.ceil(self._progress - NEAR) + self._times.ahead)
            heapq.heappush(self._running, (request.began + request.left, next(self._number), request))
        if self._running and not self._busy:
            self._busy, self._busy_since = True, self._at
            self._processors.runnable(1)

    def _arm(self) -> None:
        if not self._running:
            self._rest()
            return
        due = self._at + self._first + max(0.0, self._running[0][0] - self._progress) * self._step
        # One that rings too early arms itself again: most arrivals only make the others later.
        if self._alarm is None or due < self._alarm_at - NEAR:
            if self._alarm is not None:
                self._alarm.cancel()
            self._alarm, self._alarm_at = self._processors.at(due, self._ring), due

    def _rest(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if self._busy:
            self._busy = False
            self.busy_seconds += self._at - self._busy_since
            self._processors.runnable(-1)

    def _ring(self) -> None:
        self._alarm = None
        self._advance()
        reached = self._progress + NEAR / max(self._step, NEAR)
        while self._running and self._running[0][0] <= reached:
            end, _, request = heapq.heappop(self._running)
            self._count(request, end)
            request.then(request.spans)
        self._admit()
        self._arm()

    def _count(self, request: _Request, until: float) -> None:
        """Books what a request was given since it was counted last, by version."""
        began, swaps = request.began, self._swaps
        if swaps[-1][0] <= began:
            spans = [(swaps[-1][1], until - began)]
        else:
            place, spans = max(0, bisect_right(swaps, began, key=lambda swap: swap[0]) - 1), []
            for (start, version), following in zip(swaps[place:], [*swaps[place + 1 :], (until, 0)], strict=True):
                tokens = min(following[0], until) - max(start, began)
                if tokens > 0:
                    spans.append((version, tokens))
        got = sum(tokens for _, tokens in spans)
        request.spans += spans
        request.tokens, request.left, request.began = request.tokens + got, request.left - got, until
        self.sampled += got
