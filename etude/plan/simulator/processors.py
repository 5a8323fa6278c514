"""Where simulated work is done: on devices of its own, or on the cores of one machine that several programs share.

Work is counted in seconds of an undisturbed core or device. On shared cores every thread that can run goes on equally
fast, or every session does. So one clock of work serves all threads that are alike: it stands still for nobody and
slows down for all.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections import Counter, deque
from collections.abc import Callable
from itertools import count
from typing import Protocol

TURN = 0.004  # seconds that a thread computes before another has its turn: a tick of most Linux systems
SAME = 0.005  # of a speed: changes below this are not followed
NEAR = 1e-9  # seconds that rounding may leave undone


class Alarm(Protocol):
    def cancel(self) -> None: ...


class Processors(Protocol):
    """A clock of work. `runnable` says that a thread more (1) or one less (-1) wants to compute.

    A thread is alone in its session; those of others are made in what `session` returns.
    """

    def now(self) -> float: ...

    def at(self, when: float, callback: Callable[[], None]) -> Alarm: ...

    def runnable(self, change: int) -> None: ...

    def turn(self) -> float:
        """Seconds that a thread which begins to compute now waits for its first turn."""
        ...

    def session(self) -> Processors: ...


class OwnDevices:
    """Everybody computes on something of their own: work is time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.now = self._loop.time

    def at(self, when: float, callback: Callable[[], None]) -> Alarm:
        return self._loop.call_at(when, callback)

    def runnable(self, change: int) -> None:
        pass

    def turn(self) -> float:
        return 0.0

    def session(self) -> Processors:
        return self


class _Timer:
    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class WorkClock:
    """Work done since the start by whoever is always at it, at a speed that changes; and alarms by it."""

    def __init__(self, time: Callable[[], float], call_at: Callable[[float, Callable[[], None]], Alarm]) -> None:
        self._time, self._call_at = time, call_at  # of the clock that this one is slower than
        self._work, self._since = 0.0, time()
        self._timers: list[tuple[float, int, _Timer]] = []
        self._number = count()
        self._alarm: Alarm | None = None
        self._speed = 1.0

    def now(self) -> float:
        return self._work + (self._time() - self._since) * self._speed

    def at(self, when: float, callback: Callable[[], None]) -> Alarm:
        timer = _Timer(callback)
        heapq.heappush(self._timers, (when, next(self._number), timer))
        if self._timers[0][2] is timer:
            self._arm()
        return timer

    def goes_at(self, speed: float) -> None:
        # One of thousands of threads is not worth a new alarm.
        if abs(speed - self._speed) > SAME * self._speed:
            self._work, self._since = self.now(), self._time()
            self._speed = speed
            self._arm()

    def _arm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if self._timers:
            left = max(0.0, self._timers[0][0] - self.now())
            self._alarm = self._call_at(self._time() + left / self._speed, self._ring)

    def _ring(self) -> None:
        now = self.now() + NEAR
        while self._timers and self._timers[0][0] <= now:
            callback = heapq.heappop(self._timers)[2].callback
            if callback is not None:
                callback()
        self._arm()


class SharedCores(WorkClock):
    """`cores` of one machine; `others` threads of other people's programs want to compute all the time.

    All threads are equal. `by_session` those of one session share what a single thread of another would get, as Linux
    does with its automatic groups: a launcher and the sandboxes that it makes are together no more than one thread.
    """

    def __init__(self, cores: float, others: float = 0.0, by_session: bool = False) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(loop.time, loop.call_at)
        self._cores, self._alone, self._by_session = cores, others, by_session
        self._sessions: list[_Session] = []
        self._busy: Counter[int] = Counter()  # sessions of several threads, by how many of those want to compute
        self._sharing = others  # sessions that want to compute
        self._most = math.inf  # cores that one of them gets
        self._devices: list[DeviceBeside] = []
        self._divide()

    def runnable(self, change: int) -> None:
        self.wanted(change)

    def wanted(self, change: float) -> None:
        """A thread that wants to compute for a part of the time is that part of one."""
        self._alone += change
        self._divide()

    def device(self, host: float, slowed: bool = True) -> DeviceBeside:
        """Where a program computes that uses a device, and these cores for `host` of its time."""
        self._devices.append(DeviceBeside(self, host, slowed))
        self._devices[-1].share(self._most)
        return self._devices[-1]

    def turn(self) -> float:
        return TURN * max(0.0, self._sharing / self._cores - 1)

    def session(self) -> Processors:
        """Where threads of a session compute that has several."""
        if not self._by_session:
            return self
        self._sessions.append(_Session(self))
        return self._sessions[-1]

    def changed(self, session: _Session, before: int) -> None:
        """Another number of its threads wants to compute."""
        self._busy[before] -= 1
        self._busy[session.threads] += 1
        self._divide()
        session.share(self._most)

    def _divide(self) -> None:
        """As much for each session as for every other, and for none more than its threads can use."""
        wanted = sorted([(1, self._alone), *((n, count) for n, count in self._busy.items() if n and count)])
        self._sharing = sharing = sum(count for _, count in wanted)
        left, most = self._cores, math.inf
        for threads, sessions in wanted:
            if left < threads * sharing:
                most = left / sharing
                break
            left, sharing = left - threads * sessions, sharing - sessions
        if abs(most - self._most) > SAME * most or math.isinf(most) != math.isinf(self._most):
            before, self._most = self._most, most
            self.goes_at(min(1.0, most))
            for device in self._devices:
                device.share(most)
            # With less than a core for each, sessions are slower by as much as single threads, which is their clock.
            for each in self._sessions if max(before, most) > 1 else ():
                each.share(most)


class DeviceBeside(WorkClock):
    """A program that computes on a device of its own, and for the share `host` of its time on the shared cores.

    That share is slower where others fill the cores. Without `slowed` it takes its time however busy they are: for
    programs of which nobody measured what waits for what.
    """

    def __init__(self, cores: SharedCores, host: float, slowed: bool) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(loop.time, loop.call_at)
        self._cores, self._host, self._slowed = cores, host, host if slowed else 0.0

    def runnable(self, change: int) -> None:
        self._cores.wanted(change * self._host)

    def turn(self) -> float:
        return self._cores.turn()

    def session(self) -> Processors:
        return self

    def share(self, most: float) -> None:
        """So many cores are there for a thread."""
        self.goes_at(1 / (self._slowed / min(1.0, most) + 1 - self._slowed))


class _Session(WorkClock):
    def __init__(self, cores: SharedCores) -> None:
        super().__init__(cores.now, cores.at)
        self.threads, self._cores = 0, cores

    def runnable(self, change: int) -> None:
        before, self.threads = self.threads, self.threads + change
        self._cores.changed(self, before)

    def turn(self) -> float:
        return self._cores.turn()

    def session(self) -> Processors:
        return self

    def share(self, most: float) -> None:
        self.goes_at(min(1.0, most / max(1, self.threads)) / min(1.0, most))


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
