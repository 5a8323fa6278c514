"""The processes that /proc shows: their states and who started whom. Linux only; knows nothing of sandboxes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, NamedTuple

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


class ProcessRow(NamedTuple):
    pid: int
    state: str  # one letter, as in /proc/PID/stat
    parent: int

    @property
    def dead(self) -> bool:
        return self.state in "ZX"

    @property
    def still(self) -> bool:
        """It executes nothing: stopped, traced or dead."""
        return self.state in "TtZX"


def processes() -> list[ProcessRow]:
    """Everything in this pid namespace, ourselves included."""
    found: list[ProcessRow] = []
    for name in os.listdir("/proc"):  # noqa: PTH208 - several times a second
        if name.isdigit():
            # It may have ended between the listing and the read.
            with suppress(OSError):
                # The name in field 2 may hold anything, so count from its closing bracket.
                fields = read(f"/proc/{name}/stat").rpartition(b")")[2].split()
                found.append(ProcessRow(int(name), fields[0].decode(), int(fields[1])))
    return found


def children(rows: Iterable[ProcessRow]) -> dict[int, list[int]]:
    """The living children of each process."""
    found: dict[int, list[int]] = {}
    for row in rows:
        # Dead ones are left out: they have no descendants, and nothing to kill.
        if not row.dead:
            found.setdefault(row.parent, []).append(row.pid)
    return found


def with_descendants(first: Iterable[int], below: dict[int, list[int]]) -> list[int]:
    """These processes and all that they started, by a table of children."""
    found: list[int] = []
    waiting = list(first)
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        waiting += below.get(pid, [])
    return found


def threads(pid: int) -> list[str]:
    """The numbers of its threads; none where it has ended."""
    with suppress(OSError):
        return os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 - as above
    return []


def resident(pid: int) -> int:
    """Bytes of memory that it holds, shared pages in full."""
    with suppress(OSError, IndexError):
        # The second field of statm is the resident set, in pages.
        return int(read(f"/proc/{pid}/statm").split()[1]) * _PAGE
    return 0


def share(pid: int) -> int:
    """The same with shared pages divided among those who share them; dearer to read."""
    with suppress(OSError):
        for line in read(f"/proc/{pid}/smaps_rollup").splitlines():
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def read(path: str) -> bytes:
    """A file of /proc in one call, so that it is of one moment."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, 1 << 16)
    finally:
        os.close(file)
