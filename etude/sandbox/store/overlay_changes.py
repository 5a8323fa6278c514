"""What an overlay's upper folder says: which paths were added, modified and deleted over the layers below it.

In an upper folder lie files and folders as they are now, a character device 0:0 for each path that was deleted, and
a mark on each folder that hides the layers' one of the same name. Everything goes through folder descriptors, so no
link is ever followed. Knows neither processes nor mounts.
"""

# Folder descriptors, which pathlib does not speak.
# ruff: noqa: PTH208
from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

OPAQUE: Final = "user.overlay.opaque"
FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
MAX_DEPTH: Final = 200  # of folders in folders; each level holds a descriptor open while it is walked

Row = tuple[str, str, str, int, int, str]  # path, kind, what, size, mode, target: the fields of `base.Change`


def is_whiteout(status: os.stat_result) -> bool:
    # Overlay's mark of a deletion. Programs cannot make one: overlay refuses this device number to them.
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def is_opaque(folder: int) -> bool:
    """Whether this folder hides the one of the same name in the layers below."""
    if not hasattr(os, "listxattr"):  # a system without such marks
        return False
    # Asking for one that is not there would raise, which costs more than the list.
    return OPAQUE in os.listxattr(folder) and os.getxattr(folder, OPAQUE) == b"y"


@contextmanager
def opened(name: str, parent: int | None = None, flags: int = FOLDER) -> Iterator[int]:
    """A descriptor, of a folder unless the flags say otherwise."""
    handle = os.open(name, flags, dir_fd=parent)
    try:
        yield handle
    finally:
        os.close(handle)


@contextmanager
def opened_parent(root: int, path: str) -> Iterator[tuple[int, str]]:
    """The open folder that holds a path below `root`, reached without following any link, and the path's last name."""
    *above, name = path.strip("/").split("/")
    folder = os.dup(root)
    try:
        for part in above:
            # Part by part with O_NOFOLLOW: one open of the whole path would follow links in its middle.
            inner = os.open(part, FOLDER, dir_fd=folder)
            os.close(folder)
            folder = inner
        yield folder, name
    finally:
        os.close(folder)


def check_depth(path: str) -> None:
    if path.count("/") > MAX_DEPTH:
        raise OSError(errno.ENAMETOOLONG, f"folders are nested more than {MAX_DEPTH} deep", path)


def differences(upper: int, lowers: list[int], *, whole: bool = False) -> list[Row]:
    """Everything that differs from the layers (top one first), sorted by path.

    `whole` says that the folder is not an upper but a complete tree: what it lacks was deleted.
    """
    rows: list[Row] = []
    _compare(upper, lowers, "", whole, rows)
    rows.sort()
    return rows


@dataclass(frozen=True)
class Found:
    """One entry of a folder as several layers together show it."""

    layer: int  # which of the folder's descriptors holds it
    status: os.stat_result


def merged(folders: list[int]) -> dict[str, Found]:
    """What a folder holds when several lie over each other, the top one first."""
    seen: dict[str, Found | None] = {}
    for layer, folder in enumerate(folders):
        for name in os.listdir(folder):
            if name not in seen:
                status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                seen[name] = None if is_whiteout(status) else Found(layer, status)
    return {name: found for name, found in seen.items() if found is not None}


def look_up(folders: list[int], name: str) -> Found | None:
    """One entry of what `merged` would list."""
    for layer, folder in enumerate(folders):
        with suppress(FileNotFoundError):
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            return None if is_whiteout(status) else Found(layer, status)
    return None


@contextmanager
def below(folders: list[int], name: str) -> Iterator[list[int]]:
    """The layers' folders called `name`, top one first, down to one that hides the rest."""
    inner: list[int] = []
    try:
        for folder in folders:
            # The top layer wins, and a layer that has a file of this name hides all folders below it.
            try:
                inner.append(os.open(name, FOLDER, dir_fd=folder))
            except FileNotFoundError:
                continue
            except NotADirectoryError:  # a file, a link or a deletion
                break
            if is_opaque(inner[-1]):
                break
        yield inner
    finally:
        for folder in inner:
            os.close(folder)


def same_content(name: str, one: int, other: int) -> bool:
    """Whether two regular files of equal size hold the same bytes."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with opened(name, one, flags) as left, opened(name, other, flags) as right:
        while True:
            # In blocks, as two files of the size of the disk limit do not belong into memory.
            block = os.read(left, 1 << 18)
            if block != os.read(right, 1 << 18):
                return False
            if not block:
                return True


def what_is(status: os.stat_result) -> str:
    if stat.S_ISREG(status.st_mode):
        return "file"
    if stat.S_ISDIR(status.st_mode):
        return "folder"
    return "link" if stat.S_ISLNK(status.st_mode) else "other"


def row(path: str, kind: str, status: os.stat_result, target: str = "") -> Row:
    what = what_is(status)
    return path, kind, what, status.st_size if what == "file" else 0, stat.S_IMODE(status.st_mode), target


def deleted(path: str, found: Found, lowers: list[int], rows: list[Row]) -> None:
    """A path of the layers that is gone, with everything below it."""
    check_depth(path)
    rows.append(row(path, "deleted", found.status))
    if stat.S_ISDIR(found.status.st_mode):
        _deleted_below(path, lowers, rows)


def is_same(name: str, new: os.stat_result, folder: int, old: Found, lower: int) -> bool:
    """Whether a file or link is what the layers have, though it was written or touched."""
    # Times do not count: a file that was written again with the same bytes is not a change.
    if stat.S_IFMT(new.st_mode) != stat.S_IFMT(old.status.st_mode):
        return False
    if stat.S_ISLNK(new.st_mode):
        return os.readlink(name, dir_fd=folder) == os.readlink(name, dir_fd=lower)
    if new.st_mode != old.status.st_mode or new.st_size != old.status.st_size:
        return False
    return not stat.S_ISREG(new.st_mode) or same_content(name, folder, lower)


def _compare(upper: int, lowers: list[int], path: str, hiding: bool, rows: list[Row]) -> None:
    check_depth(path)
    names = set(os.listdir(upper))
    for name in names:
        whole = f"{path}/{name}"
        status = os.stat(name, dir_fd=upper, follow_symlinks=False)
        old = look_up(lowers, name)
        if is_whiteout(status):
            if old is not None:
                deleted(whole, old, lowers, rows)
        elif stat.S_ISDIR(status.st_mode):
            if old is None:
                rows.append(row(whole, "added", status))
            elif old.status.st_mode != status.st_mode:
                rows.append(row(whole, "modified", status))
            with opened(name, upper) as inner, below(lowers, name) as inner_lowers:
                _compare(inner, inner_lowers, whole, hiding or is_opaque(inner), rows)
        elif old is None or not is_same(name, status, upper, old, lowers[old.layer]):
            target = os.readlink(name, dir_fd=upper) if stat.S_ISLNK(status.st_mode) else ""
            rows.append(row(whole, "added" if old is None else "modified", status, target))
            # A file in the place of a folder says nothing about what was in it: that is gone as well.
            if old is not None and stat.S_ISDIR(old.status.st_mode):
                _deleted_below(whole, lowers, rows)
    # An opaque folder hides the layers' one without a whiteout for each name.
    if hiding:
        for name, old in merged(lowers).items():
            if name not in names:
                deleted(f"{path}/{name}", old, lowers, rows)


def _deleted_below(path: str, lowers: list[int], rows: list[Row]) -> None:
    """A folder of the layers is gone or became something else: so is what was in it."""
    with below(lowers, path.rpartition("/")[2]) as inner:
        for entry, child in merged(inner).items():
            deleted(f"{path}/{entry}", child, inner, rows)


def remove_tree(name: str, parent: int) -> None:
    """Delete a folder and everything in it, whatever its modes."""
    # A program may have left a folder that not even its owner may enter.
    with suppress(PermissionError):
        os.chmod(name, 0o700, dir_fd=parent)
    with opened(name, parent) as folder:
        for entry in os.listdir(folder):
            if stat.S_ISDIR(os.stat(entry, dir_fd=folder, follow_symlinks=False).st_mode):
                remove_tree(entry, folder)
            else:
                os.unlink(entry, dir_fd=folder)
    os.rmdir(name, dir_fd=parent)
