"""Control groups: memory, process and processor limits of a whole sandbox, where this user may make groups.

Both versions of the kernel's interface. Used by the launcher only. The folder of a launcher carries its process
tag, so that the next one finds and removes what a dead one left. Knows nothing about sandboxes but their limits.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from etude.sandbox.identity import process_tag, tag_is_dead
from etude.sandbox.local import kernel

PREFIX = "etude-sandboxes-"
_MOST_FOLDERS = 5000  # groups looked at in search of what dead launchers left
_RESERVE = 16  # processes of our own: init, supervisors, what is being reaped


@dataclass(frozen=True)
class ControlGroup:
    """One sandbox's group: a folder for each hierarchy, and the file that counts its out-of-memory kills."""

    folders: tuple[Path, ...]
    oom_file: Path

    def add(self, pid: int) -> None:
        for folder in self.folders:
            kernel.set_file(f"{folder}/cgroup.procs", str(pid), 0o644)

    def remove(self) -> None:
        for folder in self.folders:
            with contextlib.suppress(OSError):
                folder.rmdir()


class Cgroups:
    """This launcher's folder in the hierarchies that it may write to."""

    def __init__(self, version: int, parents: dict[str, Path]) -> None:
        self.version = version
        self._parents = parents  # controller -> our folder; all the same one in version 2
        self._made = 0

    def make(self, memory: int, processes: int, cpus: float) -> ControlGroup:
        self._made += 1
        controllers = [name for name in self._parents if name != "cpu" or cpus > 0]
        folders = {name: self._parents[name] / str(self._made) for name in controllers}
        distinct = tuple(dict.fromkeys(folders.values()))
        try:
            for folder in distinct:
                folder.mkdir()
            if self.version == 2:
                kernel.set_file(f"{folders['memory']}/memory.max", str(memory), 0o644)
                # Otherwise a sandbox at its limit would go on in swap and slow down the machine.
                with contextlib.suppress(OSError):  # no swap accounting in this kernel
                    kernel.set_file(f"{folders['memory']}/memory.swap.max", "0", 0o644)
            else:
                kernel.set_file(f"{folders['memory']}/memory.limit_in_bytes", str(memory), 0o644)
            kernel.set_file(f"{folders['pids']}/pids.max", str(processes + _RESERVE), 0o644)
            if "cpu" in folders:
                self._limit_processors(folders["cpu"], cpus)
        except OSError:
            ControlGroup(distinct, Path()).remove()
            raise
        counter = "memory.events" if self.version == 2 else "memory.oom_control"
        return ControlGroup(distinct, folders["memory"] / counter)

    def _limit_processors(self, folder: Path, cpus: float) -> None:
        """Only where asked for: beside it, a group counts as one task against all others of the machine."""
        period = 100_000
        # The kernel refuses a quota below 1 ms.
        quota = max(1000, int(cpus * period))
        if self.version == 2:
            (self._parents["cpu"] / "cgroup.subtree_control").write_text("+cpu")
            (folder / "cpu.max").write_text(f"{quota} {period}")
        else:
            (folder / "cpu.cfs_quota_us").write_text(str(quota))

    def remove(self) -> None:
        for parent in dict.fromkeys(self._parents.values()):
            _remove_tree(parent)


def find() -> Cgroups | None:
    """A place where groups can be made and filled by this user, tried for real; None where there is none."""
    try:
        found = places(Path("/proc/self/cgroup").read_text(), Path("/proc/self/mountinfo").read_text())
    except OSError:  # a kernel without them
        return None
    _remove_dead()
    tag = PREFIX + process_tag(os.getpid())
    for version, parents in found:
        folders = {name: parent / tag for name, parent in parents.items()}
        groups = Cgroups(version, folders)
        try:
            for folder in dict.fromkeys(folders.values()):
                folder.mkdir()
                if version == 2:
                    (folder / "cgroup.subtree_control").write_text("+memory +pids")
            _try(groups)
        except OSError:
            groups.remove()
            continue
        return groups
    return None


def oom_kills(text: bytes) -> int:
    """How many processes the limit has killed, from the content of the group's counter file."""
    for line in text.splitlines():
        if line.startswith(b"oom_kill "):
            return int(line.split()[1])
    return 0


def places(groups: str, mountinfo: str) -> list[tuple[int, dict[str, Path]]]:
    """Candidates, best first: (version, controller -> folder under which we would make ours).

    From the content of /proc/self/cgroup and /proc/self/mountinfo.
    """
    own: dict[str, str] = {}
    for line in groups.splitlines():
        _, names, path = line.split(":", 2)
        own.update(dict.fromkeys(names.split(","), path))
    mounts: dict[str, tuple[Path, str]] = {}
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        root, point = before.split(" ")[3:5]
        if kind == "cgroup2":
            mounts[""] = (Path(point), root)
        elif kind == "cgroup":
            mounts.update({name: (Path(point), root) for name in options.split(",")})

    def folder(name: str) -> Path | None:
        if name not in mounts or name not in own:
            return None
        point, root = mounts[name]
        path = own[name]
        # In a container the path in /proc/self/cgroup starts at a root that is not visible; mountinfo says which.
        inside = path.removeprefix(root) if root != "/" else path
        return point / inside.lstrip("/")

    found: list[tuple[int, dict[str, Path]]] = []
    unified = folder("")
    if unified is not None:
        # A group that holds processes cannot hand controllers down, so its ancestors are tried as well.
        for parent in [unified, *unified.parents]:
            usable = _handed_down(parent)
            if {"memory", "pids"} <= usable:
                found.append((2, {name: parent for name in ("memory", "pids", "cpu") if name in usable}))
            if parent == mounts[""][0]:
                break
    first = {name: found_at for name in ("memory", "pids", "cpu") if (found_at := folder(name)) is not None}
    if {"memory", "pids"} <= first.keys():
        found.append((1, first))
    return found


def _handed_down(parent: Path) -> set[str]:
    try:
        down = set((parent / "cgroup.subtree_control").read_text().split())
        missing = ({"memory", "pids", "cpu"} & set((parent / "cgroup.controllers").read_text().split())) - down
        for name in missing:
            with contextlib.suppress(OSError):
                (parent / "cgroup.subtree_control").write_text(f"+{name}")
                down.add(name)
    except OSError:
        return set()
    return down


def _try(groups: Cgroups) -> None:
    """Put a process into a group: permission to make one does not mean permission to fill it."""
    group = groups.make(memory=1 << 30, processes=16, cpus=0)
    pid = os.fork()
    if pid == 0:
        while True:
            signal.pause()
    try:
        group.add(pid)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        group.remove()


def _remove_dead() -> None:
    """What dead launchers left, wherever in the hierarchies they were started."""
    # Bounded, as a busy machine has many groups and every start of a launcher looks at them.
    for folder, inner, _ in islice(os.walk("/sys/fs/cgroup"), _MOST_FOLDERS):
        for name in [each for each in inner if each.startswith(PREFIX)]:
            inner.remove(name)
            with contextlib.suppress(ValueError):  # a name like ours that is not ours
                if tag_is_dead(name.removeprefix(PREFIX)):
                    _remove_tree(Path(folder, name))


def _remove_tree(folder: Path) -> None:
    """Groups go from the inside out; the last processes of a killed sandbox may take a moment to leave theirs."""
    deadline = time.monotonic() + 2.0
    while time.monotonic() < deadline:
        try:
            for inner in folder.iterdir():
                if inner.is_dir():
                    inner.rmdir()
            folder.rmdir()
        except OSError as error:
            if error.errno != errno.EBUSY:  # gone already, or another user's
                return
            time.sleep(0.005)
        else:
            return
