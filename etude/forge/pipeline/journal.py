"""What was tried and what came of it: a line for each candidate in `make.jsonl`, in the order of the candidates.

The first line says what was asked for; the same command goes on behind the last whole line and repeats nothing.
Knows no repository.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from etude.core import durable
from etude.core.errors import EtudeError

FILE = "make.jsonl"


@dataclass(frozen=True)
class JournalEntry:
    """One candidate."""

    candidate: str  # its key
    origin: str
    how: str
    seconds: float
    task: str = ""  # the folder of a valid one
    reason: str = ""  # why it is none
    detail: str = ""
    level: int = 0
    tests: dict[str, int] = field(default_factory=dict)  # how many of each list
    pieces: list[str] = field(default_factory=list)
    spent: dict[str, float] = field(default_factory=dict)  # seconds, by part of the way
    split: str = ""  # of a valid one: train or held_out
    left_out: bool = False  # it was looked at and never tried
    count: int = 1  # how many of those a line stands for


class Journal:
    """The file, read when it is opened and then written line by line."""

    def __init__(self, folder: Path, asked: dict[str, Any], name: str = FILE) -> None:
        self.path = folder / name
        self.entries: list[JournalEntry] = []
        self.stopped = ""  # why no more candidates were tried
        folder.mkdir(parents=True, exist_ok=True)
        durable.cut_torn_line(self.path)
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        if not lines:
            durable.append_line(self.path, json.dumps({"asked": asked}))
        for number, line in enumerate(lines):
            try:
                facts = json.loads(line)
                if number == 0:
                    self._compare(facts["asked"], asked)
                else:
                    self.entries.append(JournalEntry(**facts))
            except (ValueError, KeyError, TypeError) as error:
                raise EtudeError(
                    f"{self.path}, line {number + 1}, is no line of a journal ({error}): move it away"
                ) from None

    def _compare(self, before: dict[str, Any], now: dict[str, Any]) -> None:
        changed = [f"{key} was {before.get(key)!r}, now {now[key]!r}" for key in now if before.get(key) != now[key]]
        if changed:
            raise EtudeError(
                f"{self.path.parent} holds tasks of another command ({'; '.join(changed)}): choose another --out"
            )

    def add(self, entry: JournalEntry) -> None:
        durable.append_line(self.path, json.dumps(asdict(entry)))
        self.entries.append(entry)

    @property
    def tried(self) -> int:
        return sum(not entry.left_out for entry in self.entries)

    @property
    def tasks(self) -> list[str]:
        return [entry.task for entry in self.entries if entry.task]

    @property
    def rejected(self) -> dict[str, int]:
        found = Counter(entry.reason for entry in self.entries if not entry.task and not entry.left_out)
        return dict(found.most_common())

    @property
    def left_out(self) -> dict[str, int]:
        """What was never tried, by origin and reason."""
        found: Counter[str] = Counter()
        for entry in self.entries:
            if entry.left_out:
                found[f"{entry.origin}: {entry.reason}"] += entry.count
        return dict(found.most_common())

    @property
    def splits(self) -> dict[str, int]:
        return dict(Counter(entry.split for entry in self.entries if entry.task and entry.split))
