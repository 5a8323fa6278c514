"""Rows to sinks: a thread and a bounded queue for each, so that a slow or broken one costs the run nothing.

A sink that cannot be opened, or that fails several rows in a row, is left alone from then on; the log of the run says
why. Rows that find its queue full are left out and counted. metrics.jsonl has every row in any case.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable

from etude.core.errors import EtudeError
from etude.core.run import Run
from etude.core.sinks.base import Row, RunFacts, Sink
from etude.core.sinks.table import build_sinks

WAITING = 1000  # rows that a sink may be behind
FAILURES = 5  # rows in a row
CLOSING = 20.0  # seconds for what is still waiting when the run is left


class Feed:
    """One sink and its thread."""

    def __init__(self, name: str, sink: Sink, run: RunFacts, say: Callable[[str], None]) -> None:
        self.name, self.sink, self.run = name, sink, run
        self.problem = ""  # a sentence: why it was left alone, or the newest failure
        self.left_out = 0
        self._say = say
        self._rows: queue.Queue[Row | None] = queue.Queue(WAITING)
        # A daemon: a sink that hangs must not keep the process alive.
        self._thread = threading.Thread(target=self._work, name=f"sink {name}", daemon=True)
        self._thread.start()

    def put(self, row: Row) -> None:
        try:
            self._rows.put_nowait(row)
        except queue.Full:
            self.left_out += 1

    def close(self, seconds: float = CLOSING) -> None:
        try:
            self._rows.put(None, timeout=seconds)
        except queue.Full:
            self._blame("it takes no more rows")
        else:
            self._thread.join(seconds)
            if self._thread.is_alive():
                self._blame(f"it did not finish within {seconds:.0f} s")
        if self.left_out:
            self._blame(f"{self.left_out} rows were left out: it is slower than the run")

    def _work(self) -> None:
        failed = 0
        try:
            self.sink.open(self.run)
        except Exception as error:  # anything at all: it is somebody else's library, and the run goes on
            self._blame(f"it cannot be opened: {type(error).__name__}: {error}")
            while self._rows.get() is not None:  # so that the queue never fills
                pass
            return  # there is nothing to close: what that would say would hide why it could not be opened
        while (row := self._rows.get()) is not None:
            if failed >= FAILURES:
                continue  # so that the queue never fills
            try:
                self.sink.log(row)
                failed = 0
            except Exception as error:
                failed += 1
                left = "; it is left alone" if failed == FAILURES else ""
                self._blame(f"{type(error).__name__}: {error}{left}")
        try:
            self.sink.close()
        except Exception as error:
            self._blame(f"it cannot be closed: {type(error).__name__}: {error}")

    def _blame(self, problem: str) -> None:
        if (problem := f"sink {self.name}: {problem}") != self.problem:
            self.problem = problem
            with contextlib.suppress(EtudeError):  # a full disk, which the run itself will find
                self._say(problem)


def open_sinks(run: Run) -> list[Feed]:
    """The sinks of a run's recipe, each with its thread."""
    facts = RunFacts(run.path, run.id, run.recipe)
    sinks = build_sinks(run.recipe.get("run", {}).get("sinks", []))
    return [Feed(name, sink, facts, run.say) for name, sink in sinks.items()]
