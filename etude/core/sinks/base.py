"""What a sink is: it hears of every row of metrics.jsonl after the row is in that file.

A sink runs in a thread of its own (`feed`). What it raises is written to the log of the run and stops nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pydantic

Row = Mapping[str, Any]  # lineage, stage, step and time, and the values; one that was not finite is None


@dataclass(frozen=True)
class RunFacts:
    """Which run the rows are of."""

    path: Path
    id: str  # the same for all commands on a run, and no other run's
    recipe: dict[str, Any]


class Sink:
    """Base of all sinks: `open` once, `log` for each row, `close` once."""

    class Settings(pydantic.BaseModel, extra="forbid", frozen=True):
        """What a recipe may set beside `use`."""

    package: ClassVar[str] = ""  # what has to be installed for it, by the name that is imported

    def __init__(self, settings: Any) -> None:
        self.settings = settings

    def open(self, run: RunFacts) -> None:
        """Before the first row. May take its time: training does not wait for it."""

    def log(self, row: Row) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """After the last row of this command."""


def numbers(row: Row) -> dict[str, float]:
    """The values of a row, as `stage/name`: stages count their steps each for itself."""
    about = ("lineage", "stage", "step", "time")
    return {
        f"{row['stage']}/{name}": value
        for name, value in row.items()
        if name not in about and isinstance(value, int | float)
    }
