"""An overlay's upper folder in one file, and back: the form in which changes are kept, forked and moved.

First the files' bytes with their holes left out, then an index in JSON, then where the index starts: writing is one
pass over the tree. Folders stand in the index before what is in them. Deleted paths and hiding folders are kept as
`overlay_changes.py` reads them. Never follows a link: everything goes through folder descriptors, so a file made by
somebody else cannot write outside the folder that it is unpacked into. Knows neither processes nor mounts.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import stat
import struct
from collections.abc import Callable
from typing import Any, BinaryIO, Final

from etude.sandbox.store.overlay_changes import (
    FOLDER,
    OPAQUE,
    check_depth,
    is_opaque,
    is_whiteout,
    opened_parent,
    remove_tree,
)

MAGIC: Final = b"ETUDE-CHANGES-1\n"
_TAIL: Final = struct.Struct("=QQ")  # where the index starts, its length
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_BLOCK: Final = 1 << 20

Choice = Callable[[str, list[str]], tuple[list[str], list[str]]]


class BadChanges(Exception):
    """A packed file is not one of ours, is not whole, or cannot be written."""


def pack(root: int, out: int, choice: Choice | None = None) -> None:
    """Write what is under the folder `root` to the file `out`. Nothing may change meanwhile.

    All of it, or what `choice` says: given a folder's path and names, which of them to keep and which names to add
    as deleted. The index of a folder is [path, mode, time, hides the layers', entries].
    """
    with os.fdopen(os.dup(out), "wb", buffering=_BLOCK) as stream:
        packer = _Packer(stream, choice or (lambda _, names: (names, [])))
        packer.write(MAGIC)
        packer.folder(root, "")
        packer.finish()


class _Packer:
    """One pass over a tree."""

    def __init__(self, stream: BinaryIO, choice: Choice) -> None:
        self._stream = stream
        self._choice = choice
        self._size = 0
        self._folders: list[Any] = []
        self._first_names: dict[int, str] = {}  # inode -> path, for hard links

    def write(self, data: bytes) -> None:
        self._size += len(data)
        try:
            # A full disk under the store is our trouble, and must not look like an error of the sandbox's files.
            self._stream.write(data)
        except OSError as error:  # not a fault of the files that are packed
            raise BadChanges(f"it cannot be written: {error.strerror}") from None

    def finish(self) -> None:
        index = json.dumps(self._folders, separators=(",", ":")).encode()
        self.write(index + _TAIL.pack(self._size, len(index)))
        try:
            self._stream.flush()
        except OSError as error:
            raise BadChanges(f"it cannot be written: {error.strerror}") from None

    def folder(self, folder: int, path: str) -> None:
        check_depth(path)
        status = os.fstat(folder)
        entries: list[Any] = []
        # The root of the upper itself is the first folder, with an empty path.
        self._folders.append([path, stat.S_IMODE(status.st_mode), status.st_mtime_ns, is_opaque(folder), entries])
        with os.scandir(folder) as listing:
            found = {entry.name: entry for entry in listing}
        names, deleted = self._choice(path, sorted(found))
        inner = []
        for name in names:
            if found[name].is_dir(follow_symlinks=False):
                entries.append([name, "d"])
                inner.append(name)
            else:
                self._entry(entries, folder, path, found[name])
        entries.extend([name, "x"] for name in deleted)
        for name in inner:
            child = os.open(name, FOLDER, dir_fd=folder)
            try:
                self.folder(child, f"{path}/{name}" if path else name)
            finally:
                os.close(child)

    def _entry(self, entries: list[Any], folder: int, path: str, entry: os.DirEntry[str]) -> None:
        """One entry of a folder that is none itself."""
        name, status = entry.name, entry.stat(follow_symlinks=False)
        kind, mode, modified = stat.S_IFMT(status.st_mode), stat.S_IMODE(status.st_mode), status.st_mtime_ns
        # A second name of the same inode: copied, the two would part ways at the next write.
        if kind == stat.S_IFREG and status.st_ino in self._first_names:
            entries.append([name, "h", self._first_names[status.st_ino]])
        elif kind == stat.S_IFREG:
            if status.st_nlink > 1:
                self._first_names[status.st_ino] = f"{path}/{name}" if path else name
            entries.append([name, "f", mode, status.st_size, self._content(folder, name, status), modified])
        elif kind == stat.S_IFLNK:
            entries.append([name, "l", os.readlink(name, dir_fd=folder), modified])
        elif is_whiteout(status):
            entries.append([name, "x"])
        elif kind == stat.S_IFIFO:
            entries.append([name, "p", mode])
        # A socket is nothing without the process that listens on it.

    def _content(self, folder: int, name: str, status: os.stat_result) -> list[tuple[int, int]]:
        """Write a file's bytes; where in the file they belong."""
        if status.st_size == 0:
            return []
        file = os.open(name, _FILE, dir_fd=folder)
        try:
            # Blocks that cover the size mean no holes; only then is the seek for data skipped.
            whole = status.st_blocks * 512 >= status.st_size
            pieces = [(0, status.st_size)] if whole else _pieces(file, status.st_size)
            for offset, length in pieces:
                while length:
                    block = os.pread(file, min(length, _BLOCK), offset)
                    if not block:
                        raise BadChanges("a file became shorter while it was read")
                    self.write(block)
                    offset, length = offset + len(block), length - len(block)
        finally:
            os.close(file)
        return pieces


def _pieces(file: int, size: int) -> list[tuple[int, int]]:
    """Where a file with holes has data."""
    found: list[tuple[int, int]] = []
    at = 0
    while at < size:
        try:
            start = os.lseek(file, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole from here
                break
            raise
        at = os.lseek(file, start, os.SEEK_HOLE)
        found.append((start, at - start))
    return found


def unpack(source: int, root: int, *, owner: tuple[int, int] | None = None, apply: bool = False) -> None:
    """Build a packed tree in the folder `root`, as `owner` where the caller may say so.

    In an empty folder the result is an overlay's upper again. With `apply` the folder holds the layers' own files,
    and deletions delete. Raises `BadChanges` for a file that is not whole, and `OSError` when there is no room.
    """
    size = os.fstat(source).st_size
    if size < len(MAGIC) + _TAIL.size:
        raise BadChanges("it does not end as packed changes do")
    # Closed with its last slice: an exception's traceback may still hold one.
    data = memoryview(mmap.mmap(source, size, access=mmap.ACCESS_READ))
    unpacker = _Unpacker(data, root, owner, apply)
    try:
        for folder in _read_index(data):
            unpacker.folder(*folder)
    except (TypeError, ValueError) as error:
        raise BadChanges(f"its index cannot be read: {error}") from None
    finally:
        unpacker.close()


def replaced_paths(source: int) -> tuple[list[str], list[str]]:
    """Absolute paths that have to be away before packed changes are laid over files, and those that become folders."""
    data = memoryview(mmap.mmap(source, os.fstat(source).st_size, access=mmap.ACCESS_READ))
    away: list[str] = []
    folders: list[str] = []
    for path, _, _, opaque, entries in _read_index(data):
        if opaque:
            # An opaque folder starts empty, so the whole old one goes.
            away.append(f"/{path}")
        for name, kind, *_ in entries:
            _check_name(name)
            (folders if kind == "d" else away).append(f"/{path}/{name}" if path else f"/{name}")
    return away, folders


class _Unpacker:
    """The folders from the root to the one being filled are open; each gets its mode and time when it is left."""

    def __init__(self, data: memoryview, root: int, owner: tuple[int, int] | None, apply: bool) -> None:
        self._data = data
        self._root = root
        self._owner = owner
        self._apply = apply
        self._at = len(MAGIC)
        self._open: list[tuple[str, int, int, int]] = []  # path, descriptor, mode, time

    def folder(self, path: str, mode: int, modified: int, opaque: bool, entries: list[Any]) -> None:
        # Folders come in depth-first order: one that does not start with the open folder's path has left it.
        while self._open and self._open[-1][0] and not path.startswith(f"{self._open[-1][0]}/"):
            self._leave()
        if not path:
            folder = os.dup(self._root)
        else:
            above, _, name = path.rpartition("/")
            _check_name(name)
            if not self._open or self._open[-1][0] != above:
                raise BadChanges(f"its folder {path!r} comes before the one that holds it")
            # Opened by its name in the folder that we made, never by its whole path.
            folder = os.open(name, FOLDER, dir_fd=self._open[-1][1])
        self._open.append((path, folder, mode, modified))
        kept = _clear(folder, entries, opaque) if self._apply else set()
        for name, kind, *facts in entries:
            _check_name(name)
            if name in kept or (self._apply and kind == "x"):
                continue
            self._make(folder, name, kind, facts)
            if self._owner is not None:
                os.chown(name, *self._owner, dir_fd=folder, follow_symlinks=False)
        if opaque and not self._apply:
            os.setxattr(folder, OPAQUE, b"y")

    def close(self) -> None:
        while self._open:
            self._leave()

    def _leave(self) -> None:
        _, folder, mode, modified = self._open.pop()
        try:
            # Without setuid and setgid: a packed file may be made by somebody else.
            os.fchmod(folder, mode & 0o1777)
            os.utime(folder, ns=(modified, modified))
        finally:
            os.close(folder)

    def _make(self, folder: int, name: str, kind: str, facts: list[Any]) -> None:
        if kind == "d":
            # Writable for us until everything in it is made; its own mode comes when it is left.
            os.mkdir(name, 0o700, dir_fd=folder)
        elif kind == "f":
            self._fill(os.open(name, _NEW, 0o600, dir_fd=folder), *facts)
        elif kind == "l":
            target, modified = facts
            os.symlink(target, name, dir_fd=folder)
            os.utime(name, ns=(modified, modified), dir_fd=folder, follow_symlinks=False)
        elif kind == "x":
            # An unprivileged mknod of device 0:0 is allowed for exactly this: it is overlay's whiteout.
            os.mknod(name, stat.S_IFCHR, 0, dir_fd=folder)
        elif kind == "p":
            os.mkfifo(name, facts[0] & 0o777, dir_fd=folder)
        elif kind == "h":
            self._link(folder, name, facts[0])
        else:
            raise BadChanges(f"it holds an entry of unknown kind {kind!r}")

    def _fill(self, file: int, mode: int, size: int, pieces: list[list[int]], modified: int) -> None:
        try:
            end = 0
            for offset, length in pieces:
                if self._at + length > len(self._data):
                    raise BadChanges("it ends within a file")
                if offset != end:
                    os.lseek(file, offset, os.SEEK_SET)
                left = self._data[self._at : self._at + length]
                while left:
                    left = left[os.write(file, left) :]
                self._at += length
                end = offset + length
            # A hole at the end has no piece.
            if end < size:
                os.ftruncate(file, size)
            os.fchmod(file, mode & 0o1777)
            os.utime(file, ns=(modified, modified))
        finally:
            os.close(file)

    def _link(self, folder: int, name: str, first: str) -> None:
        """A second name for a file that was made before."""
        for part in first.split("/"):
            _check_name(part)
        with opened_parent(self._root, first) as (source, last):
            os.link(last, name, src_dir_fd=source, dst_dir_fd=folder, follow_symlinks=False)


def _read_index(data: memoryview) -> list[Any]:
    start, length = _TAIL.unpack(data[-_TAIL.size :])
    # Both ends are compared: a file cut short or with bytes added is not read.
    if bytes(data[: len(MAGIC)]) != MAGIC or start + length != len(data) - _TAIL.size:
        raise BadChanges("it does not start and end as packed changes do")
    index: list[Any] = json.loads(bytes(data[start : start + length]))
    return index


def _clear(folder: int, entries: list[Any], opaque: bool) -> set[str]:
    """Make room for what the changes put here; the folders that stay and are only added to."""
    kinds = {entry[0]: entry[1] for entry in entries}
    kept: set[str] = set()
    for name in os.listdir(folder):
        is_folder = stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
        if is_folder and kinds.get(name) == "d" and not opaque:
            kept.add(name)
        elif is_folder and (opaque or name in kinds):
            remove_tree(name, folder)
        elif opaque or name in kinds:
            os.unlink(name, dir_fd=folder)
    return kept


def _check_name(name: str) -> None:
    if not name or name in (".", "..") or "/" in name or "\0" in name:
        raise BadChanges(f"it holds the impossible name {name!r}")
