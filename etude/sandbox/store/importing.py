"""Taking in a tree that somebody hostile may have made: copied once, never followed, refused when it is a trap.

Everything is reached through folder descriptors and opened without following links, so a tree that changes while
it is read can at worst be refused. What is refused, and where, is said in one sentence. Knows nothing of stores.
"""

from __future__ import annotations

import hashlib
import os
import stat
import unicodedata
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from etude.core.errors import EtudeError
from etude.sandbox.store.overlay_changes import FOLDER

# O_NONBLOCK: a pipe put in the file's place after it was looked at must not hang us.
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_BLOCK: Final = 1 << 20
_MAX_FOLLOWED: Final = 40  # links in a row, as in the kernel
# They reorder or hide the text around them, so a name would not be what it looks like.
_MISLEADING: Final = {chr(code) for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x2028, 0x2029)}


@dataclass(frozen=True)
class Bounds:
    """What a tree may be. The two last are for trees that you made yourself (a virtual environment, node_modules)."""

    bytes: int = 4 << 30  # of all files together, holes counted
    file_bytes: int = 256 << 20  # of any one file
    entries: int = 200_000
    depth: int = 100
    hard_links_out: bool = False  # a file that is also linked from elsewhere
    link_loops: bool = False  # links that lead back to a folder above them


@dataclass(frozen=True)
class TreeEntry:
    """One path of a tree. The digest of a tree is over these, so it does not depend on times or owners."""

    path: str  # absolute, in the sandbox
    kind: str  # "d", "f" or "l"
    mode: int = 0
    content: str = ""  # sha256 of a file; target of a link


def digest_of(entries: list[TreeEntry], shows: tuple[str, ...]) -> str:
    whole = hashlib.sha256(b"etude layer 1\0")
    for path in shows:
        whole.update(b"shows\0" + os.fsencode(path) + b"\0")
    for entry in sorted(entries, key=lambda each: each.path):
        fields = (entry.kind, f"{entry.mode:o}", entry.path, entry.content)
        whole.update(b"\0".join(os.fsencode(field) for field in fields) + b"\0")
    return whole.hexdigest()


def check_path(path: str) -> None:
    """Refuse a relative path that could leave its folder or that does not look like what it is."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\0" in path:
        raise EtudeError(f"{path!r} cannot be a file of a layer: it must be a relative path without '..'")
    for part in parts:
        _check_name(part, path)


class Walk:
    """One pass over a tree: checks it, lists it and, when a target is given, copies it there."""

    def __init__(self, source: Path, at: str, bounds: Bounds, owner: tuple[int, int] | None = None) -> None:
        self._source = source
        self._at = at.rstrip("/")
        self._bounds = bounds
        self._owner = owner
        self._device = 0
        self._links: dict[tuple[int, int], tuple[int, int, str]] = {}  # inode -> seen, links in all, a path of it
        self.entries: list[TreeEntry] = []
        self.bytes = 0

    def into(self, target: int | None) -> list[TreeEntry]:
        try:
            source = os.open(self._source, FOLDER)
        except OSError as error:
            raise EtudeError(f"{self._source} cannot be made a layer: {error.strerror}; give a folder") from None
        try:
            self._device = os.fstat(source).st_dev
            self._folder(source, target, "")
        # Python's own limit can be hit first when the caller is deep already.
        except RecursionError:
            raise self._refusal("", f"its folders are nested more than {self._bounds.depth} deep") from None
        finally:
            os.close(source)
        # Links are counted: every name of a file lies inside the tree, or one lies outside.
        for seen, links, path in self._links.values():
            if seen < links and not self._bounds.hard_links_out:
                raise self._refusal(path, "a hard link to a file outside the tree")
        if not self._bounds.link_loops:
            self._check_loops()
        return self.entries

    def _folder(self, source: int, target: int | None, path: str) -> None:
        if path.count("/") >= self._bounds.depth:
            raise self._refusal(path[:80], f"its folders are nested more than {self._bounds.depth} deep")
        # Sorted, so that a refusal names the same path every time.
        for name in sorted(os.listdir(source)):
            inner = f"{path}/{name}"
            _check_name(name, f"{self._source}{inner}")
            if len(self.entries) >= self._bounds.entries:
                raise self._refusal("", f"it has more than {self._bounds.entries} entries")
            status = os.stat(name, dir_fd=source, follow_symlinks=False)
            # What is mounted there was not made by the tree's author, and may be the host's.
            if status.st_dev != self._device:
                raise self._refusal(inner, "another file system is mounted there")
            if stat.S_ISDIR(status.st_mode):
                self._enter(source, target, name, inner, status)
            elif stat.S_ISLNK(status.st_mode):
                self._link(source, target, name, inner)
            elif stat.S_ISREG(status.st_mode):
                self._file(source, target, name, inner)
            else:
                raise self._refusal(inner, "a device, pipe or socket")

    def _enter(self, source: int, target: int | None, name: str, path: str, status: os.stat_result) -> None:
        # Ours to enter and to remove, whatever mode its author gave it.
        mode = stat.S_IMODE(status.st_mode) & 0o777 | 0o700
        self.entries.append(TreeEntry(self._at + path, "d", mode))
        try:
            inner = os.open(name, FOLDER, dir_fd=source)
        except OSError as error:
            raise self._refusal(path, f"it cannot be read ({error.strerror})") from None
        made: int | None = None
        try:
            if target is not None:
                os.mkdir(name, mode, dir_fd=target)
                made = os.open(name, FOLDER, dir_fd=target)
            self._folder(inner, made, path)
            if made is not None:
                self._finish(made, mode, status)
        finally:
            os.close(inner)
            if made is not None:
                os.close(made)

    def _link(self, source: int, target: int | None, name: str, path: str) -> None:
        where = os.readlink(name, dir_fd=source)
        # The target is shown to people as well, so it may not hold control characters either.
        _check_name(where.replace("/", ""), f"{self._source}{path}")
        self.entries.append(TreeEntry(self._at + path, "l", content=where))
        if target is not None:
            os.symlink(where, name, dir_fd=target)
            if self._owner is not None:
                os.chown(name, *self._owner, dir_fd=target, follow_symlinks=False)

    def _file(self, source: int, target: int | None, name: str, path: str) -> None:
        try:
            file = os.open(name, _FILE, dir_fd=source)
        except OSError as error:
            raise self._refusal(path, f"it cannot be read ({error.strerror})") from None
        made: int | None = None
        try:
            status = os.fstat(file)
            self._check_file(status, path)
            # Without setuid, setgid and sticky bits.
            mode = stat.S_IMODE(status.st_mode) & 0o777 | 0o600
            if target is not None:
                made = os.open(name, _NEW, 0o600, dir_fd=target)
            digest, left = hashlib.sha256(), status.st_size
            # No more than the size that was checked: a file that grows while it is read would pass the limits.
            while block := os.read(file, _BLOCK):
                left -= len(block)
                if left < 0:
                    break
                digest.update(block)
                if made is not None:
                    _write(made, block)
            if left:
                raise self._refusal(path, "it changed while it was read")
            if made is not None:
                self._finish(made, mode, status)
        finally:
            os.close(file)
            if made is not None:
                os.close(made)
        self.entries.append(TreeEntry(self._at + path, "f", mode, digest.hexdigest()))

    def _check_file(self, status: os.stat_result, path: str) -> None:
        # Asked of the open file: it may have been swapped since it was listed.
        if not stat.S_ISREG(status.st_mode):
            raise self._refusal(path, "it changed while it was read")
        if status.st_mode & (stat.S_ISUID | stat.S_ISGID):
            raise self._refusal(path, "a file that runs as another user (setuid or setgid)")
        if status.st_size > self._bounds.file_bytes:
            holes = " (with holes)" if status.st_blocks * 512 < status.st_size else ""
            raise self._refusal(path, f"{status.st_size} bytes{holes}, more than {self._bounds.file_bytes}")
        self.bytes += status.st_size
        if self.bytes > self._bounds.bytes:
            raise self._refusal("", f"its files are larger than {self._bounds.bytes} bytes together")
        if status.st_nlink > 1:
            seen, _, _ = self._links.get((status.st_dev, status.st_ino), (0, 0, ""))
            self._links[status.st_dev, status.st_ino] = seen + 1, status.st_nlink, path

    def _finish(self, made: int, mode: int, status: os.stat_result) -> None:
        if self._owner is not None:
            os.fchown(made, *self._owner)
        os.fchmod(made, mode)
        # Times are kept though the digest ignores them: build tools compare them.
        os.utime(made, ns=(status.st_mtime_ns, status.st_mtime_ns))

    def _check_loops(self) -> None:
        """Refuse a tree in which somebody who follows links would walk for ever."""
        links = {entry.path: entry.content for entry in self.entries if entry.kind == "l"}
        folders = {entry.path for entry in self.entries if entry.kind == "d"} | {self._at}
        leads: dict[str, list[tuple[str, str]]] = {}  # folder -> folders that can be entered from it, and by what
        for path in folders - {self._at}:
            leads.setdefault(path.rpartition("/")[0], []).append((path, path))
        for path in links:
            end = self._resolve(path, links)
            if end in folders:
                leads.setdefault(path.rpartition("/")[0], []).append((end, path))
        # Depth first with a list of its own: recursion would be as deep as the tree's author likes.
        done: set[str] = set()
        above: set[str] = {self._at}
        trail: list[tuple[str, list[tuple[str, str]]]] = [(self._at, list(leads.get(self._at, ())))]
        while trail:
            folder, ways = trail[-1]
            if not ways:
                trail.pop()
                above.discard(folder)
                done.add(folder)
                continue
            inner, by = ways.pop()
            if inner in above:
                raise self._refusal(by.removeprefix(self._at), "a link that leads back to a folder above it")
            # A folder that was left without a loop cannot be part of one.
            if inner not in done:
                above.add(inner)
                trail.append((inner, list(leads.get(inner, ()))))

    def _resolve(self, link: str, links: dict[str, str]) -> str:
        """Where a link ends in the sandbox; refuses those that the kernel would give up on."""
        left, at, followed = link.strip("/").split("/"), "", 0
        while left:
            name = left.pop(0)
            if name == "..":
                at = at.rpartition("/")[0]
            elif name not in ("", "."):
                at = f"{at}/{name}"
            target = links.get(at)
            if target is not None:
                followed += 1
                if followed > _MAX_FOLLOWED:
                    raise self._refusal(link.removeprefix(self._at), "a link that leads only to links")
                left = target.split("/") + left
                at = "" if target.startswith("/") else at.rpartition("/")[0]
        return at

    def _refusal(self, path: str, why: str) -> EtudeError:
        # A name need not be valid UTF-8, and the message must be printable.
        shown = f"{self._source}{path}".encode("utf-8", "backslashreplace").decode()
        return EtudeError(f"{shown!r} is refused as part of a layer: {why}; remove it or leave it out")


def _check_name(name: str, path: str) -> None:
    if any(unicodedata.category(character) == "Cc" or character in _MISLEADING for character in name):
        raise EtudeError(f"{path!r} is refused as part of a layer: its name holds control characters; rename it")


def _write(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
