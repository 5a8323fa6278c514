"""Shows a run of reinforcement learning: a dashboard that fills the terminal, or the bar where there is none.

The dashboard is drawn on the terminal's second screen, twice a second, by the loop's own thread. At the end the first
screen is back, with the last frame and everything that was said. Piped, on a terminal that cannot draw it, or with
`run.dashboard=false`, there is the bar of `core/progress`. Drawing never stops a run: a frame that fails is the last.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from etude.core.progress import Bar, Pace, TimeLimit, track
from etude.rl.display.frame import Head, draw
from etude.rl.display.snapshot import Snapshot

REDRAW = 0.5  # seconds between frames; one took 2 ms of processor time at 80 and at 200 columns, 2026-11-16
SMALLEST = (60, 10)  # columns and lines below which the bar says more
KEPT = 400  # newest rows, for the curves


class Display(Protocol):
    def step(self, row: Mapping[str, float]) -> None:
        """A step was trained; `row` is that of metrics.jsonl."""
        ...

    def say(self, text: str) -> None:
        """A message for the person who watches."""
        ...


class BarDisplay:
    """One line, redrawn in place on a terminal and now and then elsewhere."""

    def __init__(self, bar: Bar) -> None:
        self._bar = bar

    def step(self, row: Mapping[str, float]) -> None:
        self._bar.advance(1)
        self._bar.note(reward=row["reward"], passed=row["pass_rate"], stale=row["staleness_mean"])

    def say(self, text: str) -> None:
        self._bar.say(text)


class Dashboard:
    """The whole terminal. Made by `open_display`."""

    def __init__(
        self,
        title: str,
        pace: Pace,
        rows: Sequence[Mapping[str, float]],
        look: Callable[[], Snapshot],
        console: Console,
    ) -> None:
        self.title, self.pace, self.look, self.console = title, pace, look, console
        self.rows: deque[Mapping[str, float]] = deque(rows, maxlen=KEPT)
        self.said: list[str] = []
        self._live = Live(
            console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )
        self._drawing: asyncio.Task[None] | None = None

    def step(self, row: Mapping[str, float]) -> None:
        self.pace.done += 1
        self.pace.mark(self.pace.clock())
        self.rows.append(row)

    def say(self, text: str) -> None:
        self.said.append(text)

    def frame(self, said: Sequence[str]) -> Text:
        now, pace = self.pace.clock(), self.pace
        head = Head(self.title, int(pace.done), int(pace.total or 0), pace.share(now), pace.spent(now), pace.left(now))
        # The last line stays free: a terminal that writes into its last corner scrolls.
        return draw(head, self.rows, self.look(), said, self.console.width, self.console.height - 1)

    def open(self) -> None:
        self._live.start()
        self._drawing = asyncio.get_running_loop().create_task(self._redraw())

    def close(self) -> None:
        if self._drawing is not None:
            self._drawing.cancel()
        self._live.stop()
        self.console.print(self.frame(()), highlight=False)
        for text in self.said:
            self.console.print(Text(text), highlight=False)

    async def _redraw(self) -> None:
        try:
            while True:
                self._live.update(self.frame(self.said), refresh=True)
                await asyncio.sleep(REDRAW)
        except Exception as error:  # whatever is wrong with it, the run goes on
            self._live.stop()
            self.say(f"the dashboard stopped: {type(error).__name__}: {error}")
            self.console.print(Text(self.said[-1]), highlight=False)


@contextmanager
def open_display(
    title: str,
    steps: int,
    done: int,
    limit: TimeLimit | None,
    look: Callable[[], Snapshot],
    *,
    history: Callable[[], Sequence[Mapping[str, float]]],
    dashboard: bool = True,
    stream: TextIO | None = None,
) -> Iterator[Display]:
    """Shows the steps of the block, which runs on an event loop. `history` gives the rows of steps before it."""
    console = Console(file=stream or sys.stderr)
    if not (dashboard and can_draw(console)):
        with track(title, total=steps, unit="steps", done=done, limit=limit, stream=stream) as bar:
            yield BarDisplay(bar)
        return
    shown = Dashboard(title, Pace(steps, done, limit), history(), look, console)
    shown.open()
    try:
        yield shown
    finally:
        shown.close()


def can_draw(console: Console) -> bool:
    """Whether the stream is a terminal that a frame fits on."""
    columns, lines = console.size
    text = "utf" in console.encoding.lower()
    large = columns >= SMALLEST[0] and lines >= SMALLEST[1]
    return console.is_terminal and not console.is_dumb_terminal and text and large
