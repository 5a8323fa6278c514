"""The most memory that a process and all its descendants held at one moment, sampled while something runs."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Self

EVERY = 0.25  # seconds between two samples
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class PeakMemory:
    """`peak_mib` of the descendants of a process, with the process itself if asked.

    Resident pages are added up, so a page that several processes share counts once for each.
    """

    def __init__(self, root: int, itself: bool = False) -> None:
        self._root = root
        self._itself = itself
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self.peak_mib = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._end.wait(EVERY):
            pages = sum(map(resident_pages, descendants(self._root)))
            pages += resident_pages(self._root) if self._itself else 0
            self.peak_mib = max(self.peak_mib, pages * PAGE_BYTES // 2**20)


def resident_pages(number: int) -> int:
    try:
        return int(Path(f"/proc/{number}/statm").read_text().split()[1])
    except (OSError, IndexError):  # it ended meanwhile
        return 0


def descendants(root: int) -> list[int]:
    """The numbers of all processes below a process."""
    found, at = [root], 0
    while at < len(found):
        for task in _entries(Path(f"/proc/{found[at]}/task")):
            try:
                found += [int(child) for child in (task / "children").read_text().split()]
            except OSError:
                continue
        at += 1
    return found[1:]


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []
