"""What stands in a sandbox in place of the machine's own counters, and the devices that it has for itself.

Counters of /proc that are the whole machine's say what other sandboxes do: how many files are open, how many processes
were started, which blocks were read. Programs find the files, with what the machine said when the launcher started.
Devices are nodes of the sandbox's own where root may make some: locks and watches on the host's nodes would be seen by
every other sandbox. Knows neither namespaces nor programs.
"""

# ruff: noqa: PTH102, PTH123
from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import Final

from etude.sandbox.local import kernel

_STREAMS: Final = {"fd": "", "stdin": "/0", "stdout": "/1", "stderr": "/2"}
DEVICES: Final = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
# Kept as they were: programs read them, and would fail without.
_KEPT: Final = ("stat", "meminfo", "vmstat", "loadavg", "cgroups")
# Nothing is in them. Files that only root may read need no cover: root is nobody inside.
_EMPTY: Final = ("keys", "key-users", "diskstats", "interrupts", "softirqs", "schedstat", "zoneinfo", "buddyinfo")
# Folders with nothing but what is named.
_FOLDERS: Final = {
    "fs": (),
    "irq": (),
    "pressure": (),
    "sys/fs": ("file-max", "nr_open", "pipe-max-size"),
    "sys/kernel/pty": (),
}
_MOST: Final = 64 << 10  # bytes of one file


class MachineFiles:
    """Read once, by the launcher: what is the same for all sandboxes and never changes tells nothing."""

    def __init__(self) -> None:
        self._texts = {name: text for name in _KEPT if (text := _text(name)) is not None}
        self._empty = [name for name in _EMPTY if os.path.exists(f"/proc/{name}")]  # noqa: PTH110
        self._folders = {
            folder: {name: text for name in names if (text := _text(f"{folder}/{name}")) is not None}
            for folder, names in _FOLDERS.items()
            if os.path.isdir(f"/proc/{folder}")  # noqa: PTH112
        }

    def cover(self, proc: str, nothing: str, work: str) -> None:
        """Put them over a new /proc, from files made in the folder `work`."""
        os.mkdir(work)
        for name, text in self._texts.items():
            kernel.set_file(f"{work}/{name}", text, 0o444)
            kernel.bind_path(f"{work}/{name}", f"{proc}/{name}")
        for name in self._empty:
            kernel.bind_path(nothing, f"{proc}/{name}")
        for folder, texts in self._folders.items():
            made = f"{work}/{folder.replace('/', '-')}" if texts else f"{work}/empty"
            with suppress(FileExistsError):
                os.mkdir(made)
            for name, text in texts.items():
                kernel.set_file(f"{made}/{name}", text, 0o444)
            os.chmod(made, 0o555)  # noqa: PTH101, S103 - readable as what it covers, and takes no files
            kernel.bind_path(made, f"{proc}/{folder}")


def device_tree() -> int:
    """A new folder of device nodes, as a mount that is nowhere yet. `OSError` where we may not make or use any."""
    tree = kernel.new_tmpfs("64k", kernel.MOUNT_ATTR_NOSUID)
    try:
        for name, (major, minor) in DEVICES.items():
            os.mknod(name, 0o666 | stat.S_IFCHR, os.makedev(major, minor), dir_fd=tree)
            os.chmod(name, 0o666, dir_fd=tree)  # noqa: S103 - as everywhere
        furnish_dev(tree)
        return tree
    except OSError:
        os.close(tree)
        raise


def furnish_dev(folder: int) -> None:
    """What is in /dev beside the devices."""
    for name, target in _STREAMS.items():
        os.symlink(f"/proc/self/fd{target}", name, dir_fd=folder)
    os.symlink("pts/ptmx", "ptmx", dir_fd=folder)
    for name in ("shm", "pts"):
        os.mkdir(name, dir_fd=folder)


def devices_work() -> bool:
    """Whether new nodes can be made and opened: a container may forbid either."""
    with suppress(OSError):
        tree = device_tree()
        try:
            os.close(os.open("null", os.O_RDWR | os.O_CLOEXEC, dir_fd=tree))
            return True
        finally:
            os.close(tree)
    return False


def _text(name: str) -> bytes | None:
    with suppress(OSError), open(f"/proc/{name}", "rb") as file:
        return file.read(_MOST)
    return None
