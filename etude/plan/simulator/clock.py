"""An asyncio event loop whose time is simulated: it goes on to the next timer as soon as nothing else is to be done.

So coroutines of the real loop run unchanged, hours of them in seconds, and two runs with one seed are the same run.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import selectors
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any, TypeVar

from etude.core.errors import EtudeError

T = TypeVar("T")


class _NoSockets(selectors.SelectSelector):
    """Nothing ever arrives from outside. A wait is over at once: what is due next is found instead."""

    def __init__(self, due: Callable[[], list[Any]]) -> None:
        super().__init__()
        self._due = due

    def select(self, timeout: float | None = None) -> list[Any]:
        return [] if timeout == 0 else self._due()


class SimulatedLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._now = 0.0
        # Beside asyncio's own heap, whose entries are compared in Python: tuples made a simulation twice as fast.
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._number = count()
        super().__init__(_NoSockets(self._next_timers))

    def time(self) -> float:
        return self._now

    def call_later(  # type: ignore[override]  # of any arguments
        self, delay: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]  # of any arguments
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._number), timer))
        return timer

    def _next_timers(self) -> list[Any]:
        """All timers of the next moment at which there are any."""
        found: list[Any] = []
        while self._timers and (not found or self._timers[0][0] <= self._now):
            when, _, timer = heapq.heappop(self._timers)
            if not timer.cancelled():
                self._now = max(self._now, when)
                found.append(timer)
        if not found:
            raise EtudeError("the simulation waits for something that can never happen")
        return found

    def _process_events(self, event_list: list[Any]) -> None:
        for timer in event_list:
            # one of the same moment may have cancelled it
            if not timer.cancelled():
                timer._run()


def run_simulated(work: Coroutine[Any, Any, T]) -> T:
    """Runs `work` to its end; `loop.time()` begins at 0."""
    # Very many rollouts live at once and leave hardly any cycles: looking for those took a third of the time.
    collected = gc.isenabled()
    gc.disable()
    try:
        with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
            return runner.run(work)
    finally:
        if collected:
            gc.enable()
