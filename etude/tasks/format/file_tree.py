"""A tree of files as a mapping from relative path to bytes: read lazily from a folder, or made in memory.

Written for folders that nobody trusts. Scanning follows no link and opens nothing but plain files; a name, kind,
size or link that could hurt somebody later is refused with its path. As in git, the bytes of a link are its target
and an empty folder is nothing. Knows nothing about tasks.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from etude.core.errors import EtudeError

Kind = Literal["file", "executable", "link"]


@dataclass(frozen=True)
class TreeLimits:
    """How large a tree may be, so that a hostile one ends in a sentence and not in a full machine."""

    files: int = 100_000  # files and links
    file_bytes: int = 128 << 20  # of one file, holes of a sparse one counted
    total_bytes: int = 2 << 30
    depth: int = 64  # folders below one another


class Files(Mapping[str, bytes]):
    """Relative path -> bytes, in sorted order. Never changed: `replaced` gives a new one."""

    def __init__(self, contents: Mapping[str, bytes], kinds: Mapping[str, Kind] | None = None) -> None:
        """`kinds` names the paths that are executable or a link; all others are plain files."""
        for path in contents:
            check_path(path)
            folder = path.rpartition("/")[0]
            while folder:
                if folder in contents:
                    raise EtudeError(f"{folder} is a file, so it cannot be the folder of {path}")
                folder = folder.rpartition("/")[0]
        self._kinds: dict[str, Kind] = dict(kinds or {})
        for path, kind in self._kinds.items():
            if kind == "link":
                _check_target(path, os.fsdecode(contents[path]))
        self._contents: dict[str, bytes | int] = {path: contents[path] for path in sorted(contents)}
        self.directory: Path | None = None  # the folder that holds exactly these files, where there is one

    @classmethod
    def scan(cls, root: Path, limits: TreeLimits | None = None, skip: Collection[str] = ()) -> Files:
        """The files of a folder; contents are read when they are asked for. Entries named as in `skip` are left out."""
        found = cls({})
        found.directory = root
        sizes: dict[str, int] = {}
        _scan(root, "", limits or TreeLimits(), sizes, found._kinds, 0, skip)
        found._contents = {path: sizes[path] for path in sorted(sizes)}
        return found

    def __getitem__(self, path: str) -> bytes:
        held = self._contents[path]
        return held if isinstance(held, bytes) else self._read(path, held)

    def __iter__(self) -> Iterator[str]:
        return iter(self._contents)

    def __len__(self) -> int:
        return len(self._contents)

    def __contains__(self, path: object) -> bool:
        return path in self._contents  # without reading it, which Mapping would do

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Files) and self._kinds == other._kinds and dict(self) == dict(other)

    __hash__ = None  # type: ignore[assignment]  # as for every mapping

    def kind(self, path: str) -> Kind:
        return self._kinds.get(path, "file")

    def size(self, path: str) -> int:
        """Bytes, without reading them."""
        held = self._contents[path]
        return held if isinstance(held, int) else len(held)

    def text(self, path: str) -> str:
        """A file as text; bytes that are not UTF-8 become lone surrogates."""
        return self[path].decode("utf-8", "surrogateescape")

    def under(self, folder: str) -> Files:
        """The files below a folder, by their paths in it."""
        start = folder + "/"
        part = Files({})
        part._contents = {path[len(start) :]: held for path, held in self._contents.items() if path.startswith(start)}
        part._kinds = {path[len(start) :]: kind for path, kind in self._kinds.items() if path.startswith(start)}
        part.directory = self.directory / folder if self.directory else None
        return part

    def replaced(self, changes: Mapping[str, bytes | None]) -> Files:
        """With some files added, changed or, where None, left out. Contents that lie on disk are read for it."""
        contents = {path: data for path, data in ({**self, **changes}).items() if data is not None}
        return Files(contents, {path: kind for path, kind in self._kinds.items() if path in contents})

    def write(self, target: Path) -> None:
        """Writes every file below `target`, never over one that is there and never through a link."""
        target.mkdir(parents=True, exist_ok=True)
        root = str(target)
        made = {""}
        links: list[str] = []
        for path, data in self.items():
            folder = path.rpartition("/")[0]
            if folder not in made:
                (target / folder).mkdir(parents=True, exist_ok=True)
                made.add(folder)
            kind = self.kind(path)
            if kind == "link":
                links.append(path)  # last, so that nothing is ever written through one
                continue
            mode = 0o755 if kind == "executable" else 0o644
            # Plain strings: there are many small files, and Path takes longer than the system here.
            handle = os.open(f"{root}/{path}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
            with os.fdopen(handle, "wb") as file:
                file.write(data)
        for path in links:
            (target / path).symlink_to(os.fsdecode(self[path]))

    def digest(self) -> str:
        """Names the content: equal for equal trees, wherever they lie."""
        total = hashlib.sha256()
        for path, data in self.items():
            total.update(f"{self.kind(path)} {len(data)} {path}\0".encode())
            total.update(data)
        return total.hexdigest()

    def _read(self, path: str, size: int) -> bytes:
        assert self.directory is not None
        file = self.directory / path
        if self.kind(path) == "link":
            return os.fsencode(os.readlink(file))  # noqa: PTH115  # Path.readlink would respell it
        # The folder may have changed since it was scanned: no link is followed and no more is read than was counted.
        try:
            handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            raise EtudeError(f"{file} could be listed but not read: {error.strerror}") from error
        with os.fdopen(handle, "rb") as opened:
            data = opened.read(size + 1)
        if len(data) != size:
            raise EtudeError(f"{file} changed while it was in use: it had {size} bytes when it was listed")
        return data


def check_path(path: str) -> None:
    """Refuse a path that leaves its root, is spelled in two ways, or that a terminal could not show."""
    if _ORDINARY.fullmatch(path) and len(path) < 200:  # nearly all are, and there are many
        return
    if not path or path.startswith("/") or str(PurePosixPath(path)) != path or ".." in path.split("/"):
        raise EtudeError(f"{path!r} is not a plain relative path")
    if not path.isascii() or not path.isprintable():
        _check_name(path)
    if any(len(os.fsencode(name)) > 255 for name in path.split("/")):
        raise EtudeError(f"the path {path[:40]!r}... has a name longer than 255 bytes")


_ORDINARY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")


def _check_name(path: str) -> None:
    for character in path:
        if not character.isprintable() or 0xD800 <= ord(character) <= 0xDFFF:
            raise EtudeError(
                f"the path {path!r} holds {character!r}: rename it without control or undecodable characters"
            )


def _check_target(path: str, target: str) -> None:
    """A link stays inside, and climbs only at the start of its target, so that it leads where it says."""
    parts = PurePosixPath(target).parts
    climbs = next((i for i, part in enumerate(parts) if part != ".."), len(parts))
    if target.startswith("/") or ".." in parts[climbs:] or climbs > path.count("/") or "\0" in target:
        raise EtudeError(f"{path} is a link to {target!r}, which could lead out of its folder")


def _scan(
    root: Path,
    below: str,
    limits: TreeLimits,
    sizes: dict[str, int],
    kinds: dict[str, Kind],
    depth: int,
    skip: Collection[str],
) -> None:
    if depth > limits.depth:
        raise EtudeError(f"{root / below} lies more than {limits.depth} folders deep")
    with os.scandir(root / below) as entries:
        for entry in entries:
            if entry.name in skip:
                continue
            path = f"{below}/{entry.name}" if below else entry.name
            where = f"{root}: {path}"
            try:
                check_path(path)
            except EtudeError as error:
                raise EtudeError(f"{root}: {error}") from None
            facts = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(facts.st_mode):
                _scan(root, path, limits, sizes, kinds, depth + 1, skip)
                continue
            if stat.S_ISLNK(facts.st_mode):
                kinds[path] = "link"
                _check_link(root, path)
            elif not stat.S_ISREG(facts.st_mode):
                raise EtudeError(f"{where} is neither a file nor a folder nor a link: remove it")
            elif facts.st_mode & (stat.S_ISUID | stat.S_ISGID):
                raise EtudeError(f"{where} is a setuid or setgid file: clear that bit or remove it")
            elif facts.st_mode & stat.S_IXUSR:
                kinds[path] = "executable"
            if facts.st_size > limits.file_bytes:
                raise EtudeError(f"{where} has {facts.st_size} bytes, a file may have {limits.file_bytes}")
            sizes[path] = facts.st_size
            if len(sizes) > limits.files:
                raise EtudeError(f"{root} holds more than {limits.files} files")
    if not below and (total := sum(sizes.values())) > limits.total_bytes:
        raise EtudeError(f"{root} holds {total} bytes, more than the {limits.total_bytes} it may hold")


def _check_link(root: Path, path: str) -> None:
    target = os.readlink(root / path)  # noqa: PTH115
    try:
        _check_target(path, target)
        real = (root / path).resolve(strict=True)
    except EtudeError as error:
        raise EtudeError(f"{root}: {error}") from None
    except (OSError, RuntimeError):
        raise EtudeError(f"{root}: {path} is a link to {target!r}, which is missing or leads back to itself") from None
    if (root / path).parent.resolve().is_relative_to(real):
        raise EtudeError(f"{root}: {path} is a link to a folder that it lies in, so the tree has no end")
