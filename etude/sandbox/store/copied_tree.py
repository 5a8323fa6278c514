"""A complete tree on disk where there is no overlay: layers copied over each other, and what differs from them.

Used by the plain backend. Everything goes through folder descriptors. Knows no process.
"""

from __future__ import annotations

import os
import shutil
import stat

from etude.sandbox.store.overlay_changes import Row, below, merged, opened
from etude.sandbox.store.packed_changes import Choice


def copy_merged(lowers: list[int], target: int) -> None:
    """The layers' folders (top one first) as one on disk; folders that are there already are added to."""
    present = set(os.listdir(target))
    for name, found in merged(lowers).items():
        source, mode = lowers[found.layer], stat.S_IMODE(found.status.st_mode)
        if stat.S_ISDIR(found.status.st_mode):
            if name not in present:
                os.mkdir(name, 0o700, dir_fd=target)
            with below(lowers, name) as inner, opened(name, target) as made:
                copy_merged(inner, made)
                os.fchmod(made, mode)
        elif stat.S_ISLNK(found.status.st_mode):
            os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
        elif stat.S_ISFIFO(found.status.st_mode):
            os.mkfifo(name, mode, dir_fd=target)
        elif stat.S_ISREG(found.status.st_mode):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            old = os.fdopen(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=source), "rb")
            new = os.fdopen(os.open(name, flags, mode, dir_fd=target), "wb")
            with old, new:
                shutil.copyfileobj(old, new)
                new.flush()
                os.fchmod(new.fileno(), mode)
                os.utime(new.fileno(), ns=(found.status.st_mtime_ns, found.status.st_mtime_ns))


def chosen(rows: list[Row]) -> Choice:
    """The changed paths of a complete tree, for `pack`: as an overlay's upper folder would hold them."""
    gone = {path for path, kind, *_ in rows if kind == "deleted"}
    changed = {path for path, kind, *_ in rows if kind != "deleted"}
    # A folder that went, or in whose place something else is now, takes what was in it along.
    replaced = {path for path, kind, what, *_ in rows if kind == "modified" and what != "folder"}
    deleted: dict[str, list[str]] = {}
    for path in sorted(gone):
        folder, _, name = path.rpartition("/")
        if folder not in gone and folder not in replaced:
            deleted.setdefault(folder, []).append(name)
    kept = {above for path in (*changed, *deleted) for above in (path, *_above(path))}

    def choice(path: str, names: list[str]) -> tuple[list[str], list[str]]:
        folder = f"/{path}" if path else ""
        return [name for name in names if f"{folder}/{name}" in kept], deleted.get(folder, [])

    return choice


def _above(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts))]
