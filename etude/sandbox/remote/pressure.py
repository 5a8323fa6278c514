"""How busy this machine is: memory that is left, and the kernel's pressure figures (PSI).

Inside a container those of its control group count, as its limits do. Reads /proc and /sys; knows no sandbox.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_GROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Pressure:
    """Shares of the last 10 seconds in which at least one task waited; 0 where the kernel does not tell."""

    memory_bytes: int
    available: int
    cpu: float
    memory: float
    io: float


def read_pressure(proc: Path = Path("/proc"), group: Path = _GROUP) -> Pressure:
    facts = _meminfo(proc / "meminfo")
    total, available = facts.get("MemTotal", 0), facts.get("MemAvailable", 0)
    limit, used = _number(group / "memory.max"), _number(group / "memory.current")
    if limit is not None and used is not None and limit < total:
        # The page cache of a group counts as used there, though the kernel gives it away when asked.
        cache = _stat(group / "memory.stat").get("inactive_file", 0)
        total, available = limit, min(available, limit - used + cache)
    shares = {}
    for name in ("cpu", "memory", "io"):
        own = _some(group / f"{name}.pressure")
        shares[name] = own if own is not None else (_some(proc / "pressure" / name) or 0.0)
    return Pressure(total, max(0, available), shares["cpu"], shares["memory"], shares["io"])


def _some(path: Path) -> float | None:
    """The share of `some avg10` in a pressure file."""
    with suppress(OSError, ValueError, IndexError):
        for line in path.read_text().splitlines():
            words = line.split()
            if words[0] == "some":
                return float(words[1].removeprefix("avg10=")) / 100
    return None


def _meminfo(path: Path) -> Mapping[str, int]:
    with suppress(OSError, ValueError, IndexError):
        rows = (line.split() for line in path.read_text().splitlines())
        return {row[0].rstrip(":"): int(row[1]) << 10 for row in rows if len(row) > 1}
    return {}


def _stat(path: Path) -> Mapping[str, int]:
    with suppress(OSError, ValueError):
        return {name: int(value) for name, value in (line.split() for line in path.read_text().splitlines())}
    return {}


def _number(path: Path) -> int | None:
    with suppress(OSError, ValueError):  # "max" is no number: no limit
        return int(path.read_text())
    return None
