"""What of the host is shown in a sandbox beside its layers, prepared by the launcher outside of the sandbox.

A container runtime mounts single files into system folders: drivers, configuration. In a sandbox's own namespace a
folder with mounts below it cannot be taken without them, and so cannot be the lower of an overlay. Root takes it
outside, where it can. Knows neither sandboxes nor layers.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from etude.sandbox.local import kernel

COPIED: Final = 1 << 20  # bytes up to which a single file of the host is copied into each sandbox
SEALED: Final = kernel.MOUNT_ATTR_RDONLY | kernel.MOUNT_ATTR_NOSUID | kernel.MOUNT_ATTR_NODEV


@dataclass
class HostFolders:
    """Paths that appear at the same place, in the order in which they are mounted."""

    paths: list[str]
    trees: dict[str, int] = field(default_factory=dict)  # folders as mounts without what is mounted below them

    def close(self) -> None:
        for tree in self.trees.values():
            os.close(tree)
        self.trees.clear()


def prepare(paths: Sequence[str], points: Sequence[str], *, outside: bool) -> HostFolders:
    """What to show for these paths, with what is mounted below them. `outside`: we may take folders without that."""
    below = submounts(paths, points)
    shown = HostFolders([*paths, *below])
    if not below or not outside:
        return shown
    for path in shown.paths:
        if any(point.startswith(f"{path}/") for point in below):
            tree = _without_submounts(path)
            if tree is not None:
                shown.trees[path] = tree
    # Too large to copy, and a file alone cannot be a lower: shown, its locks would be everybody's. In practice these
    # are drivers of devices that no sandbox has, mounted over empty files.
    shown.paths = [*paths, *(point for point in below if not (_is_large_file(point) and _inside(point, shown.trees)))]
    return shown


def mount_points(mountinfo: str) -> list[str]:
    """Where something is mounted, from the content of /proc/self/mountinfo."""
    points = [line.split(" ")[4] for line in mountinfo.splitlines()]
    return [point.encode().decode("unicode_escape") if "\\" in point else point for point in points]


def submounts(paths: Sequence[str], points: Sequence[str]) -> list[str]:
    """What is mounted below these paths, in the order in which it has to be mounted again."""
    folders = tuple(f"{path}/" for path in paths)
    return sorted({point for point in points if point.startswith(folders)})


def _without_submounts(path: str) -> int | None:
    try:
        source = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:  # a link, or another user's
        return None
    try:
        return kernel.detached(source, SEALED, below=False)
    except OSError:  # a container whose own mounts are locked to it
        return None
    finally:
        os.close(source)


def _is_large_file(path: str) -> bool:
    try:
        status = os.stat(path, follow_symlinks=False)  # noqa: PTH116 - in the launcher, at each start
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size > COPIED


def _inside(path: str, folders: dict[str, int]) -> bool:
    return any(path.startswith(f"{folder}/") for folder in folders)
