"""An index of a tree: which of its files, and of the files packed in them, may share code with a text.

Built once for a layer or a folder of the host and kept beside the layers, since many tasks are searched for in the
same environment. Of a layer it keeps few marks of each place (`text_marks`), of the host's folders, which are many
times larger and were not made by anybody's task, the names that each place defines; enough to name the candidates,
which are then read again and compared exactly.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from etude.core.errors import EtudeError
from etude.core.progress import track
from etude.corpus.word_hashes import Hashes
from etude.forge.leaks.bytecode import HEADER, code_runs
from etude.forge.leaks.shingles import text_marks, text_shingles
from etude.forge.leaks.unpack import UnpackedText, UnpackLimits, Unsearchable, printable, unpack

VERSION: Final = 4  # of the files below; another one is built anew
SEGMENT: Final = 4_000_000  # marks sorted and written at once
STRETCH: Final = 8 << 20  # bytes of a large file searched at once
# A piece that lies across the border of two stretches is whole in one of them.
OVERLAP: Final = 1 << 14
HUGE: Final = 2 << 30  # bytes of a file that nobody reads to its end
WINDOW: Final = 8  # of marks: 15 tokens in a row are found

Numbers = npt.NDArray[np.uint32]
_DEFINED = re.compile(rb"\b(?:def|class|function|var|let|const)[ \t]+(\w+)")

# What of the host can hold Python or scripts: sources, bytecode, archives, notebooks, plain texts.
_PYTHON: Final = (
    *(".py", ".pyi", ".pyw", ".pyc", ".whl", ".egg", ".zip", ".pyz", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz"),
    *(".ipynb", ".orig", ".bak", ".rst", ".txt", ".js", ".cjs", ".mjs", ".map"),
)
_FOREIGN_FOLDERS: Final = (
    *("/usr/include", "/usr/share/man", "/usr/share/locale", "/usr/share/icons", "/usr/share/fonts"),
    *("/usr/share/zoneinfo", "/usr/share/i18n", "/usr/share/mime", "/usr/share/X11", "/usr/share/perl"),
    *("/usr/share/doc", "/usr/share/info", "/usr/lib/jvm", "/usr/lib/node_modules", "/usr/lib/gcc"),
)


@dataclass(frozen=True)
class IndexedFile:
    """A file of the tree, or something packed in it."""

    file: str  # relative to the tree
    inner: str  # "" for the file itself, "!pkg/mod.py" for a member of it

    @property
    def label(self) -> str:
        return f"{self.file}{self.inner}"


@dataclass(frozen=True)
class Content:
    """What a place holds, exactly."""

    inner: str
    shingles: Hashes
    codes: Hashes


@dataclass
class TreeIndex:
    """Marks of every place, or the names that it defines, in sorted segments that stay on the disk."""

    host: bool  # by names
    places: list[IndexedFile]
    refused: list[tuple[IndexedFile, str]]
    segments: list[tuple[Numbers, Numbers]] = field(default_factory=list)  # marks, and the places that have them
    codes: tuple[Hashes, Numbers] = field(default_factory=lambda: (np.empty(0, np.uint64), np.empty(0, np.uint32)))

    def sharing(self, shingles: Hashes) -> dict[int, int]:
        """Place -> how many marks it shares with these shingles."""
        # The upper half of a hash is enough to name candidates, and halves the index.
        return self._counts(np.unique((shingles >> np.uint64(32)).astype(np.uint32)))

    def _counts(self, asked: Numbers) -> dict[int, int]:
        return _count([_owners(marks, owners, asked) for marks, owners in self.segments])

    def defining(self, name: str) -> set[int]:
        """Places where every part of a qualified name is defined."""
        # A collision of CRC names one candidate more, which the exact comparison drops.
        hashes = [np.array([zlib.crc32(part.encode())], np.uint32) for part in name.split(".")]
        return set.intersection(*(set(self._counts(each)) for each in hashes))

    def naming(self, path: str) -> set[int]:
        """Places that are called like the file at `path`."""
        name = path.rpartition("/")[2]
        return {number for number, place in enumerate(self.places) if place.label.endswith(f"/{name}")}

    def sharing_code(self, codes: Hashes) -> dict[int, int]:
        """Place -> how many runs of bytecode it shares with these."""
        return _count([_owners(*self.codes, codes)])


def _owners(marks: npt.NDArray[np.generic], owners: Numbers, asked: npt.NDArray[np.generic]) -> Numbers:
    left, right = np.searchsorted(marks, asked, "left"), np.searchsorted(marks, asked, "right")
    parts = [owners[start:end] for start, end in zip(left.tolist(), right.tolist(), strict=True) if end > start]
    return np.concatenate(parts) if parts else np.empty(0, np.uint32)


def _count(owners: list[Numbers]) -> dict[int, int]:
    places, counts = np.unique(np.concatenate(owners or [np.empty(0, np.uint32)]), return_counts=True)
    return dict(zip(places.tolist(), counts.tolist(), strict=True))


def _names(text: bytes) -> Numbers:
    return np.unique(np.array([zlib.crc32(name) for name in set(_DEFINED.findall(text))], np.uint32))


def host_digest(folder: str) -> str:
    """Names the state of a folder of the host, by its files' names, sizes and times."""
    total = hashlib.sha256(folder.encode())
    for path, status in walk(Path(folder), host=True):
        # Times and sizes, not contents: reading gigabytes of /usr would cost more than the index saves.
        total.update(f"{path}\0{status.st_size} {status.st_mtime_ns}\n".encode("utf-8", "surrogateescape"))
    return total.hexdigest()


def build_index(root: Path, folder: Path, *, host: bool, skip: str = "", deadline: float = float("inf")) -> None:
    """Index the tree at `root` into the empty `folder`. `skip` is a folder of the tree that is left out."""
    build = _Build(folder, host)
    with track(f"searching {'the host' if host else 'a layer'} for leaks", total=None, unit="files") as bar:
        for path, status in walk(root, host=host, skip=skip):
            if time.monotonic() > deadline:
                raise EtudeError(f"indexing {root} for the leak audit took too long: show less of it, or wait longer")
            # Bytecode of a source that is there says nothing that the source does not.
            if not _is_fresh_bytecode(root / path, host):
                build.add(root, path, status.st_size)
            bar.advance(1)
    build.finish()


class _Build:
    """An index while it is being made."""

    def __init__(self, folder: Path, host: bool) -> None:
        self._folder = folder
        self._host = host
        self._places: list[IndexedFile] = []
        self._refused: list[tuple[IndexedFile, str]] = []
        self._marks: list[Numbers] = []
        self._owners: list[Numbers] = []
        self._codes: list[tuple[Hashes, Numbers]] = []
        self._held = self._segments = 0

    def add(self, root: Path, path: str, size: int) -> None:
        for found in self._read(root, path, size):
            place = IndexedFile(path, found.inner)
            if isinstance(found, Unsearchable):
                self._refused.append((place, found.why))
                continue
            number = len(self._places)
            self._places.append(place)
            if self._host:
                marks = _names(found.text)
            else:
                marks = (text_marks(found.text, found.name, WINDOW) >> np.uint64(32)).astype(np.uint32)
            self._marks.append(marks)
            self._owners.append(np.full(len(marks), number, np.uint32))
            self._held += len(marks)
            if found.codes:
                codes = piece_codes(found)
                self._codes.append((codes, np.full(len(codes), number, np.uint32)))
            # Sorted in pieces, so that an environment of any size needs the memory of one.
            if self._held >= SEGMENT:
                self._flush()

    def _read(self, root: Path, path: str, size: int) -> Iterator[UnpackedText | Unsearchable]:
        """Sources of the host, of which there are many, without a look at what may be encoded in them."""
        if self._host and path.endswith((".py", ".pyi")) and size <= STRETCH:
            with suppress(OSError):
                yield UnpackedText("", (root / path).read_bytes(), path)
        else:
            yield from read_file(root, path, size)

    def _flush(self) -> None:
        marks, owners = np.concatenate(self._marks), np.concatenate(self._owners)
        order = np.argsort(marks, kind="stable")
        np.save(self._folder / f"{self._segments:03d}.marks.npy", marks[order])
        np.save(self._folder / f"{self._segments:03d}.owners.npy", owners[order])
        self._segments += 1
        self._held = 0
        self._marks, self._owners = [], []

    def finish(self) -> None:
        if self._marks:
            self._flush()
        empty = [(np.empty(0, np.uint64), np.empty(0, np.uint32))]
        codes = np.concatenate([each for each, _ in self._codes or empty])
        owners = np.concatenate([each for _, each in self._codes or empty])
        order = np.argsort(codes, kind="stable")
        np.save(self._folder / "codes.npy", codes[order])
        np.save(self._folder / "code_owners.npy", owners[order])
        facts = {
            "version": VERSION,
            "host": self._host,
            "segments": self._segments,
            "places": [[place.file, place.inner] for place in self._places],
            "refused": [[place.file, place.inner, why] for place, why in self._refused],
        }
        (self._folder / "index.json").write_text(json.dumps(facts))


def load_index(folder: Path) -> TreeIndex | None:
    """An index that was built before; None where there is none that can be used."""
    try:
        facts = json.loads((folder / "index.json").read_text())
        if facts["version"] != VERSION:
            return None
        segments = [
            (_open(folder / f"{number:03d}.marks.npy"), _open(folder / f"{number:03d}.owners.npy"))
            for number in range(facts["segments"])
        ]
        codes = (_open(folder / "codes.npy"), _open(folder / "code_owners.npy"))
    except (OSError, ValueError, KeyError):
        return None
    places = [IndexedFile(file, inner) for file, inner in facts["places"]]
    refused = [(IndexedFile(file, inner), why) for file, inner, why in facts["refused"]]
    return TreeIndex(facts["host"], places, refused, segments, codes)


def _open(path: Path) -> Any:
    # Mapped, not read: an audit touches few pages of an index. Never pickled data.
    return np.load(path, mmap_mode="r", allow_pickle=False)


def walk(root: Path, *, host: bool, skip: str = "") -> Iterator[tuple[str, os.stat_result]]:
    """Plain files below a folder, by relative path, sorted; no link is followed, other file systems are."""
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        try:
            with os.scandir(root / folder) as found:
                # Sorted, so that two builds of one tree give the same index.
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError:
            continue  # closed to us, or gone: closed to the sandbox's user as well
        for entry in entries:
            path = f"{folder}/{entry.name}" if folder else entry.name
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if stat.S_ISDIR(status.st_mode):
                if path != skip and not (host and f"{root}/{path}".startswith(_FOREIGN_FOLDERS)):
                    waiting.append(path)
            elif stat.S_ISREG(status.st_mode) and status.st_size and (not host or entry.name.endswith(_PYTHON)):
                yield path, status


def _is_fresh_bytecode(path: Path, host: bool) -> bool:
    """Whether bytecode was compiled from exactly the source beside it, which is searched itself."""
    if not path.name.endswith(".pyc") or path.parent.name != "__pycache__":
        return False
    try:
        source = (path.parent.parent / f"{path.name.split('.')[0]}.py").stat()
        if host:
            return True  # nobody has deleted anything there
        with path.open("rb") as file:
            header = file.read(HEADER)
    except OSError:
        return False
    stamp = (int(source.st_mtime) & 0xFFFF_FFFF, source.st_size & 0xFFFF_FFFF)
    return (
        len(header) == HEADER
        # Only bytecode that is checked by time; of a hash-checked one the header says nothing about the source here.
        and int.from_bytes(header[4:8], "little") == 0
        and (int.from_bytes(header[8:12], "little"), int.from_bytes(header[12:16], "little")) == stamp
    )


def read_file(root: Path, path: str, size: int) -> Iterator[UnpackedText | Unsearchable]:
    """The pieces of one file; of a very large one the printable stretches only."""
    limits = UnpackLimits()
    if size > HUGE:
        yield Unsearchable("", f"it has {size} bytes, more than can be searched", "bomb")
        return
    try:
        with (root / path).open("rb") as file:
            if size <= limits.file:
                yield from unpack(file.read(limits.file + 1), Path(path).name, limits)
                return
            number = 0
            while data := file.read(STRETCH):
                yield UnpackedText(f"!stretch {number}", printable(data), Path(path).name)
                number += 1
                if len(data) == STRETCH:
                    file.seek(-OVERLAP, os.SEEK_CUR)
    except OSError:
        return  # closed to us, or gone since it was listed


def piece_codes(piece: UnpackedText) -> Hashes:
    found = [code_runs(code) for code in piece.codes]
    return np.unique(np.concatenate(found)) if found else np.empty(0, np.uint64)


def exact(piece: UnpackedText) -> Content:
    """A piece as it is compared in the end."""
    return Content(piece.inner, text_shingles(piece.text, piece.name), piece_codes(piece))
