"""Where simulated work is done: on devices of its own, or on the cores of one machine that several programs share.

Work is counted in seconds of an undisturbed core or device. On shared cores every program that can run goes on equally
fast, so one clock of work serves all of them: it stands still for nobody and slows down for all.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Protocol

SAME = 0.005  # of a speed: changes below this are not followed
NEAR = 1e-9  # seconds that rounding may leave undone


class Alarm(Protocol):
    def cancel(self) -> None: ...


class Processors(Protocol):
    """A clock of work. `runnable` says that a thread more (1) or one less (-1) wants to compute."""

    def now(self) -> float: ...

    def at(self, when: float, callback: Callable[[], None]) -> Alarm: ...

    def runnable(self, change: int) -> None: ...


class OwnDevices:
    """Everybody computes on something of their own: work is time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.now = self._loop.time

    def at(self, when: float, callback: Callable[[], None]) -> Alarm:
        return self._loop.call_at(when, callback)

    def runnable(self, change: int) -> None:
        pass


class _Timer:
    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class SharedCores:
    """`cores` of one machine; `others` threads of other people's programs want to compute all the time."""

    def __init__(self, cores: float, others: float = 0.0) -> None:
        self._loop = asyncio.get_running_loop()
        self._cores, self._threads = cores, others
        self._work, self._since = 0.0, self._loop.time()
        self._timers: list[tuple[float, int, _Timer]] = []
        self._number = count()
        self._alarm: asyncio.TimerHandle | None = None
        self._speed = min(1.0, cores / others) if others else 1.0

    def now(self) -> float:
        return self._work + (self._loop.time() - self._since) * self._speed

    def at(self, when: float, callback: Callable[[], None]) -> Alarm:
        timer = _Timer(callback)
        heapq.heappush(self._timers, (when, next(self._number), timer))
        if self._timers[0][2] is timer:
            self._arm()
        return timer

    def runnable(self, change: int) -> None:
        self._threads += change
        speed = min(1.0, self._cores / self._threads) if self._threads > 0 else 1.0
        # One of thousands of threads is not worth a new alarm.
        if abs(speed - self._speed) > SAME * self._speed:
            self._work, self._since = self.now(), self._loop.time()
            self._speed = speed
            self._arm()

    def _arm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if self._timers:
            left = max(0.0, self._timers[0][0] - self.now())
            self._alarm = self._loop.call_later(left / self._speed, self._ring)

    def _ring(self) -> None:
        now = self.now() + NEAR
        while self._timers and self._timers[0][0] <= now:
            callback = heapq.heappop(self._timers)[2].callback
            if callback is not None:
                callback()
        self._arm()


class Queue:
    """One thread that does one piece of work after another, in the order in which they were asked for."""

    def __init__(self, processors: Processors) -> None:
        self._processors = processors
        self._waiting: deque[tuple[float, Callable[[], None]]] = deque()
        self._busy = False
        self.seconds = 0.0  # of work done so far

    async def work(self, seconds: float) -> None:
        """Returns when this work is done."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.do(seconds, lambda: None if done.done() else done.set_result(None))
        await done

    def do(self, seconds: float, then: Callable[[], None]) -> None:
        """Calls `then` when this work is done."""
        self._waiting.append((seconds, then))
        if not self._busy:
            self._busy = True
            self._processors.runnable(1)
            self._begin()

    def _begin(self) -> None:
        self._processors.at(self._processors.now() + self._waiting[0][0], self._end)

    def _end(self) -> None:
        seconds, then = self._waiting.popleft()
        self.seconds += seconds
        then()
        if self._waiting:
            self._begin()
        else:
            self._busy = False
            self._processors.runnable(-1)


def compute(processors: Processors, seconds: float, then: Callable[[], None]) -> None:
    """A thread of its own that computes for so long, and then calls `then`."""

    def end() -> None:
        processors.runnable(-1)
        then()

    processors.runnable(1)
    processors.at(processors.now() + seconds, end)
