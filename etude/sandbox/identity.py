"""Whose files and processes a sandbox's are, seen from outside, and how to tell that a process still lives.

Inside, every program is the one user 1000. Outside that is an ordinary user's own number or, when root makes
sandboxes, a number that nobody else has: root's number would escape the process limit and own the system's files.
Layers belong to one such number (`outside_identity`); where the machine allows it, each live sandbox of the local
backend has another (`sandbox_identities`), as the kernel counts much of what it hands out by user.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

INSIDE = 1000
TRUSTED = 999  # our own processes inside, where root can give them a number beside the programs'

# Above the ranges that distributions and container managers hand out; the second for roots of a container
# whose own map ends at 65535.
_PREFERRED = (0x7000_0000 + INSIDE, 64_999)
MOST_AT_ONCE = 4096  # sandboxes of one launcher with a number of their own
_NUMBERS_EACH = 4  # the programs', ours, and a root that is nobody


@dataclass(frozen=True)
class Identity:
    """User and group that the sandbox's own user is outside."""

    uid: int
    gid: int

    @property
    def is_own(self) -> bool:
        """It is the caller's own number, all that an ordinary user may map."""
        return self.uid == os.geteuid()


def outside_identity() -> Identity:
    if os.geteuid() == 0:
        for number in _PREFERRED:
            if all(_mapped(number, Path(table)) for table in ("/proc/self/uid_map", "/proc/self/gid_map")):
                return Identity(number, number)
    return Identity(os.geteuid(), os.getegid())


def sandbox_identities() -> Sequence[Identity]:
    """Users for sandboxes of one launcher that are alive at once; none where they have to share one."""
    owner = outside_identity()
    numbers = range(owner.uid + _NUMBERS_EACH, owner.uid + _NUMBERS_EACH * (MOST_AT_ONCE + 1), _NUMBERS_EACH)
    tables = [Path(table) for table in ("/proc/self/uid_map", "/proc/self/gid_map")]
    if owner.uid != _PREFERRED[0] or os.geteuid() != 0 or not all(_mapped(numbers[-1], table) for table in tables):
        return ()
    return [Identity(number, number) for number in numbers]


def user_map(identity: Identity, number: int) -> str:
    """What stands in a sandbox's uid_map (or gid_map) where `number` is the programs' user (or group) outside."""
    if identity.is_own:
        return f"{INSIDE} {number} 1\n"
    # CRIU looks into no user namespace without a root.
    return f"{INSIDE} {number} 1\n{TRUSTED} {number - 2} 1\n0 {number - 1} 1\n"


def _mapped(number: int, table: Path) -> bool:
    try:
        rows = [[int(field) for field in line.split()] for line in table.read_text().splitlines()]
    except OSError:  # not a Linux with user namespaces
        return False
    return any(first <= number < first + count for first, _, count in rows)


def process_tag(pid: int) -> str:
    """A name for a process that no later process gets: its number, its start, its boot and its view of numbers."""
    return f"{pid}.{_started(pid)}.{_boot()}.{_numbering()}"


def tag_is_dead(tag: str) -> bool:
    """Surely gone. A process that another container numbered cannot be seen from here and counts as alive.

    A zombie is gone: where process 1 of a container reaps nobody, a killed process stays one for as long as that runs.
    """
    pid, started, boot, numbering = tag.split(".")
    # The start time is compared as well: the kernel gives the numbers of dead processes to new ones.
    return boot != _boot() or (numbering == _numbering() and _started(int(pid)) != started)


def _started(pid: int) -> str:
    try:
        # The name in field 2 may hold anything, so count from its closing bracket.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return "gone"
    return "gone" if fields[0] in (b"Z", b"X") else fields[19].decode()


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text()[:8]


def _numbering() -> str:
    return str(Path("/proc/self/ns/pid").stat().st_ino)
