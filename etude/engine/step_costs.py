"""What steps of the engine took, as sums from which least squares find the parts of a step.

A row of metrics is of a hundred steps or more, whose means hardly differ from one row to the next: they do not say what
a step takes beside its rows. The steps themselves do, as a batch is sometimes full and sometimes nearly empty.
"""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass
class StepCosts:
    """Sums over all steps: of seconds, and of products of seconds, rows that sampled and tokens of prompts.

    Seconds are processor time of the engine's thread, and where a device computes, also those that the thread slept
    until a step was done. What the device computes while the thread is busy is not in them: the next step is launched
    before this one is read.
    """

    step_seconds: float = 0.0
    waited_seconds: float = 0.0  # of these, asleep
    seconds_rows: float = 0.0
    seconds_prompts: float = 0.0
    rows_rows: int = 0
    rows_prompts: int = 0
    prompts_prompts: int = 0

    def add(self, seconds: float, rows: int, prompts: int) -> None:
        """One step that was read."""
        self.step_seconds += seconds
        self.seconds_rows += seconds * rows
        self.seconds_prompts += seconds * prompts
        self.rows_rows += rows * rows
        self.rows_prompts += rows * prompts
        self.prompts_prompts += prompts * prompts


class ThreadClock:
    """Processor time of one thread at its steps, divided among the steps as they are read."""

    def __init__(self) -> None:
        self._spent = self._since = 0.0

    def start(self) -> None:
        self._since = time.thread_time()

    def stop(self) -> None:
        """The thread does other work from here on. What it did for a step that is not read yet counts for that step."""
        self._spent += time.thread_time() - self._since

    def lap(self) -> float:
        """Seconds since the last one."""
        now = time.thread_time()
        found, self._spent, self._since = self._spent + now - self._since, 0.0, now
        return found


def slept(began: tuple[float, float]) -> float:
    """Seconds since `began` (of `time.perf_counter` and of `time.thread_time`) in which this thread did nothing."""
    return max(0.0, time.perf_counter() - began[0] - (time.thread_time() - began[1]))
