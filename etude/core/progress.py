"""How far along something is: one line with rate and time left.

On a terminal the line redraws in place and is fitted to its width: what matters least is left out first. Elsewhere (a
log file, CI) a plain line comes now and then; work shorter than a second prints nothing. Everything goes to standard
error, so that standard output stays free for results. Knows nothing about what is being done, and needs nothing
outside the standard library.
"""

from __future__ import annotations

import math
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TextIO

QUIET = 1.0  # seconds before the first line: short work stays silent
REDRAW = 0.2  # seconds between redraws on a terminal
PLAIN = 15.0  # seconds between lines elsewhere
WINDOW = 30.0  # seconds of history behind the rate, so that "time left" follows a change of pace
BAR, SHORTEST_BAR = 24, 8  # characters


class TimeLimit(NamedTuple):
    """Work that ends when its time is up, whatever is done by then."""

    seconds: float
    spent: float = 0.0  # of these, by earlier processes


class LastStep:
    """The last step of a stage that ends by its seconds, from the speed of its steps so far.

    So that a learning rate decays before the time is over. The first step seen here is not timed: it also prepares what
    all others need.
    """

    def __init__(self, most: float, planned: int, each: float = 0.0) -> None:
        self.most, self.planned = most, planned  # no seconds are no limit
        self.each = each  # seconds of a step in earlier commands; 0 where there were none
        self.first: tuple[int, float] | None = None

    def after(self, steps: int, spent: float) -> int:
        """With so many steps done in so many seconds, those of earlier commands included."""
        if not self.most:
            return self.planned
        if self.first is None:
            self.first = steps, spent
        done, since = steps - self.first[0], spent - self.first[1]
        return last_step(steps, self.planned, self.most - spent, since / done if done else self.each)


def last_step(steps: int, planned: int, left: float, each: float) -> int:
    """The last step that fits, of `planned`, after `steps` of them with so many seconds left; one takes `each`."""
    if left <= 0:
        return steps
    return min(planned, steps + max(1, int(left / each))) if each else planned


class Pace:
    """How much of a piece of work is done, how fast it goes, and how long the rest will take."""

    def __init__(
        self, total: float | None, done: float, limit: TimeLimit | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.total = total
        self.done = done
        self.limit = limit
        self.clock = clock
        self.started = clock()
        self.first = done
        self._history: deque[tuple[float, float]] = deque([(self.started, done)])

    def mark(self, now: float) -> None:
        """Remembers how much is done now; the rate is taken between such marks."""
        self._history.append((now, self.done))
        while len(self._history) > 2 and now - self._history[1][0] > WINDOW:
            self._history.popleft()

    def rate(self, now: float) -> float:
        """Over the last half minute: the rate since the start would not follow a change of pace."""
        then, before = self._history[0]
        return (self.done - before) / (now - then) if now > then else 0.0

    def spent(self, now: float) -> float:
        """Seconds, with those of earlier processes where the work ends by time."""
        return (self.limit.spent if self.limit else 0.0) + now - self.started

    def share(self, now: float) -> float | None:
        """How much is done: of the whole, or of the time where that ends first."""
        shares = [self.done / self.total] if self.total else []
        shares += [self.spent(now) / self.limit.seconds] if self.limit else []
        return min(max(shares), 1.0) if shares else None

    def left(self, now: float) -> float | None:
        """Seconds to the end of the work or of its time, whichever comes first."""
        rate = self.rate(now)
        ends = [max(0.0, self.total - self.done) / rate] if self.total and rate > 0 else []
        ends += [max(0.0, self.limit.seconds - self.spent(now))] if self.limit else []
        return min(ends) if ends else None


class Bar:
    """One piece of work under way. Made by `track`."""

    def __init__(self, what: str, unit: str, pace: Pace, stream: TextIO) -> None:
        self.what = what
        self.unit = unit
        self.pace = pace
        self._stream = stream
        self._notes: dict[str, float | int | str] = {}
        self._terminal = stream.isatty()
        self._next = pace.started + QUIET
        self._shown = False

    @property
    def done(self) -> float:
        return self.pace.done

    def advance(self, amount: float = 1) -> None:
        """`amount` more is done."""
        self.pace.done += amount
        self._tick()

    def note(self, **values: float | int | str) -> None:
        """Show these values beside the bar from now on."""
        self._notes.update(values)
        self._tick()

    def say(self, text: str) -> None:
        """A line of its own above the bar."""
        self._write(("\r\x1b[K" if self._terminal else "") + text + "\n")

    def _tick(self) -> None:
        now = self.pace.clock()
        if now < self._next:
            return
        self.pace.mark(now)
        if self._terminal:
            columns = shutil.get_terminal_size().columns
            self._write("\r\x1b[K" + self._fitted(now, columns - 1))
        else:
            self._write(self._line(now) + "\n")
        self._next = now + (REDRAW if self._terminal else PLAIN)
        self._shown = True

    def _close(self, finished: bool) -> None:
        if not self._shown:
            return
        took = self.pace.clock() - self.pace.started
        rate = (self.pace.done - self.pace.first) / took if took > 0 else 0.0
        parts = [self.what, self._count(), f"{short(rate)} {self.unit}/s".replace(" /s", "/s")]
        parts.append(f"{'in' if finished else 'stopped after'} {clock_time(took)}")
        parts += self._noted()
        if self._terminal:
            # A line that wraps is cut in the middle of a word: the rate goes first, then the last notes.
            columns = shutil.get_terminal_size().columns
            while len("  ".join(parts)) >= columns and len(parts) > 3:
                parts.pop(2 if "/s" in parts[2] else -1)
        self._write(("\r\x1b[K" if self._terminal else "") + "  ".join(parts) + "\n")

    def _fitted(self, now: float, columns: int) -> str:
        """The line in so many characters. Time left and the notes are what people look for, so they go last."""
        for shape in ({}, {"rate": False}, {"rate": False, "count": False}):
            line = self._line(now, **shape)
            room = columns - len(line) - 2
            if room >= SHORTEST_BAR:
                return self._line(now, bar=min(BAR, room), **shape)
            if room >= -2 and shape:
                return line
        for notes in range(len(self._notes) - 1, -1, -1):
            if len(line := self._line(now, rate=False, count=False, notes=notes)) <= columns:
                return line
        return line[:columns]

    def _line(
        self, now: float, *, bar: int = 0, rate: bool = True, count: bool = True, notes: int | None = None
    ) -> str:
        parts = [self.what]
        share, left = self.pace.share(now), self.pace.left(now)
        if share is not None:
            if bar:
                parts.append(filled_bar(share, bar, self._stream.encoding))
            parts.append(f"{100 * share:3.0f}%")
        if count:
            parts.append(self._count())
        if rate:
            parts.append(f"{short(self.pace.rate(now))} {self.unit}/s".replace(" /s", "/s"))
        if left is not None:
            parts.append(f"{clock_time(left)} left")
        return "  ".join(parts + self._noted()[:notes])

    def _count(self) -> str:
        total, done = self.pace.total, self.pace.done
        return f"{short(done)}{f'/{short(total)}' if total is not None else ''} {self.unit}".rstrip()

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
    limit: TimeLimit | None = None,
    stream: TextIO | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Bar]:
    """Show progress of the block. `done` is what an earlier process already did; the rate counts only ours."""
    pace = Pace(total, done, limit, clock)
    bar = Bar(what, unit, pace, stream or sys.stderr)
    finished = False
    try:
        yield bar
        out_of_time = limit is not None and pace.spent(clock()) >= limit.seconds
        finished = total is None or pace.done >= total or out_of_time
    finally:
        bar._close(finished)


def filled_bar(share: float, width: int, encoding: str | None) -> str:
    """A bar of so many characters, in those that the stream can write."""
    full, empty = ("█", "░") if "utf" in (encoding or "").lower() else ("#", ".")
    filled = int(share * width)
    return full * filled + empty * (width - filled)


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
