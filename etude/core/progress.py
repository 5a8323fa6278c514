"""How far along something is: one line with rate and time left.

On a terminal the line redraws in place; elsewhere (a log file, CI) a plain line comes now and then; work
shorter than a second prints nothing. Everything goes to standard error, so that standard output stays free
for results. Knows nothing about what is being done, and needs nothing outside the standard library.
"""

from __future__ import annotations

import math
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

QUIET = 1.0  # seconds before the first line: short work stays silent
REDRAW = 0.2  # seconds between redraws on a terminal
PLAIN = 15.0  # seconds between lines elsewhere
WINDOW = 30.0  # seconds of history behind the rate, so that "time left" follows a change of pace
BAR = 24  # characters


class Bar:
    """One piece of work under way. Made by `track`."""

    def __init__(
        self, what: str, total: float | None, unit: str, done: float, stream: TextIO, clock: Callable[[], float]
    ) -> None:
        self.what = what
        self.total = total
        self.unit = unit
        self.done = done
        self._stream = stream
        self._clock = clock
        self._started = clock()
        self._first = done
        self._history: deque[tuple[float, float]] = deque([(self._started, done)])
        self._notes: dict[str, float | int | str] = {}
        self._terminal = stream.isatty()
        self._next = self._started + QUIET
        self._shown = False

    def advance(self, amount: float = 1) -> None:
        """`amount` more is done."""
        self.done += amount
        self._tick()

    def note(self, **values: float | int | str) -> None:
        """Show these values beside the bar from now on."""
        self._notes.update(values)
        self._tick()

    def _tick(self) -> None:
        now = self._clock()
        if now < self._next:
            return
        self._history.append((now, self.done))
        while len(self._history) > 2 and now - self._history[1][0] > WINDOW:
            self._history.popleft()
        line = self._line(now)
        if self._terminal:
            columns = shutil.get_terminal_size().columns
            self._write("\r\x1b[K" + line[: columns - 1])
        else:
            self._write(line + "\n")
        self._next = now + (REDRAW if self._terminal else PLAIN)
        self._shown = True

    def _close(self, finished: bool) -> None:
        if not self._shown:
            return
        took = self._clock() - self._started
        rate = (self.done - self._first) / took if took > 0 else 0.0
        parts = [self.what, self._count(), f"{short(rate)} {self.unit}/s".replace(" /s", "/s")]
        parts.append(f"{'in' if finished else 'stopped after'} {clock_time(took)}")
        parts += self._noted()
        self._write(("\r\x1b[K" if self._terminal else "") + "  ".join(parts) + "\n")

    def _line(self, now: float) -> str:
        # Over the last half minute: the rate since the start would not follow a change of pace.
        then, before = self._history[0]
        rate = (self.done - before) / (now - then) if now > then else 0.0
        parts = [self.what]
        if self.total:
            share = min(self.done / self.total, 1.0)
            if self._terminal:
                filled = int(share * BAR)
                full, empty = ("█", "░") if "utf" in (self._stream.encoding or "").lower() else ("#", ".")
                parts.append(full * filled + empty * (BAR - filled))
            parts.append(f"{100 * share:3.0f}%")
        parts.append(self._count())
        parts.append(f"{short(rate)} {self.unit}/s".replace(" /s", "/s"))
        if self.total and rate > 0:
            parts.append(f"{clock_time((self.total - self.done) / rate)} left")
        return "  ".join(parts + self._noted())

    def _count(self) -> str:
        of = f"/{short(self.total)}" if self.total is not None else ""
        return f"{short(self.done)}{of} {self.unit}".rstrip()

    def _noted(self) -> list[str]:
        return [f"{name} {value if isinstance(value, str) else short(value)}" for name, value in self._notes.items()]

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


@contextmanager
def track(
    what: str,
    total: float | None = None,
    unit: str = "",
    *,
    done: float = 0,
    stream: TextIO | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Bar]:
    """Show progress of the block. `done` is what an earlier process already did; the rate counts only ours."""
    bar = Bar(what, total, unit, done, stream or sys.stderr, clock)
    finished = False
    try:
        yield bar
        finished = total is None or bar.done >= total
    finally:
        bar._close(finished)


def short(number: float) -> str:
    """A number in at most five characters or so: 7, 2.31, 12.3k, 4.0M."""
    if not math.isfinite(number):
        return str(number)
    size = abs(number)
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= limit:
            scale = 1e3 if unit == "k" else limit
            return f"{number / scale:.1f}{unit}"
    if number == int(number):
        return str(int(number))
    return f"{number:.0f}" if size >= 1000 else f"{number:.3g}" if size < 1 else f"{number:.4g}"


def clock_time(seconds: float) -> str:
    """Seconds as people read them: 0.4 s, 45 s, 3:07, 2:05:10."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
