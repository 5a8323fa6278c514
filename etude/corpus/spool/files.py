"""Chunks of documents on disk, and the arrays about them.

    chunk-00000.documents   records, each a line of JSON (repo, path, licence, source, kind) and the text
    chunk-00000.offsets     where each record begins, 64-bit, one more than there are
    chunk-00000.json        where the source was read up to; written last, so a chunk that has it is whole

What later steps find out about a chunk lies beside it under the same name (see screening.py). Documents are numbered
through all chunks. Memory holds two bytes for each document: which source it is of.
"""

from __future__ import annotations

import json
import os
import struct
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from etude.core import durable
from etude.corpus.document import Document

OPEN_FILES = 64  # at once; a corpus of terabytes has more chunks than a process may open
OFFSET = struct.Struct("=q")


class Head(NamedTuple):
    repo: str
    path: str
    source: str


class Chunk:
    """The files of one chunk."""

    def __init__(self, directory: Path, number: int) -> None:
        self.directory = directory
        self.number = number

    def file(self, suffix: str) -> Path:
        return self.directory / f"chunk-{self.number:05}.{suffix}"

    @property
    def is_whole(self) -> bool:
        return self.file("json").exists()

    @property
    def facts(self) -> dict[str, Any]:
        return dict(json.loads(self.file("json").read_text()))

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        return np.fromfile(self.file("offsets"), np.int64)

    def documents(self) -> Iterator[tuple[Document, int]]:
        """Every document in order, with the bytes of its text."""
        with self.file("documents").open("rb") as records:
            for size in np.diff(self.offsets).tolist():
                yield _parse(records.read(size))

    def note(self, suffix: str, value: npt.NDArray[Any]) -> None:
        """Puts an array beside the chunk, whole or not at all."""
        partial = self.file(f"{suffix}.partial")
        value.tofile(partial)
        durable.sync(partial)
        partial.rename(self.file(suffix))


def chunks_of(directory: Path) -> list[Chunk]:
    """The whole chunks, in order."""
    found: list[Chunk] = []
    while (chunk := Chunk(directory, len(found))).is_whole:
        found.append(chunk)
    return found


class ChunkWriter:
    """Appends documents to a new chunk; `finish` makes it readable."""

    def __init__(self, chunk: Chunk) -> None:
        chunk.directory.mkdir(parents=True, exist_ok=True)
        self.chunk = chunk
        self.bytes = 0
        self._records = chunk.file("documents").open("wb")
        self._offsets = array("q", [0])

    def append(self, document: Document) -> None:
        head = [document.repo, document.path, document.license, document.source, document.kind]
        self.bytes += self._records.write(json.dumps(head).encode() + b"\n" + document.text.encode())
        self._offsets.append(self.bytes)

    def finish(self, facts: dict[str, Any]) -> None:
        self._records.close()
        durable.sync(self.chunk.file("documents"))
        self.chunk.note("offsets", np.array(self._offsets, np.int64))
        durable.write_whole(self.chunk.file("json"), json.dumps(facts))

    def close(self) -> None:
        self._records.close()


class Spool:
    """All documents of a build, in any order."""

    def __init__(self, directory: Path) -> None:
        self.chunks = chunks_of(directory)
        counts = [chunk.file("offsets").stat().st_size // OFFSET.size - 1 for chunk in self.chunks]
        self.first = np.cumsum([0, *counts])  # document of each chunk, and the end
        self.sources = np.repeat(
            np.array([chunk.facts["source"] for chunk in self.chunks], np.int16), np.diff(self.first)
        )
        self._open: OrderedDict[int, tuple[int, int]] = OrderedDict()  # chunk -> its documents and offsets

    def __len__(self) -> int:
        return int(self.first[-1])

    def close(self) -> None:
        while self._open:
            self._close_one()

    def document(self, number: int) -> Document:
        return _parse(self._record(number))[0]

    def heads(self, numbers: Iterable[int]) -> Iterator[Head]:
        """Of each numbered document everything but its text."""
        for number in numbers:
            repo, path, _, source, _ = json.loads(self._record(number).partition(b"\n")[0])
            yield Head(repo, path, source)

    def join(self, suffix: str, path: Path) -> None:
        """What was noted about every chunk, in one file."""
        with path.open("wb") as out:
            for chunk in self.chunks:
                out.write(chunk.file(suffix).read_bytes())

    def _record(self, number: int) -> bytes:
        chunk = bisect_right(self.first, number) - 1
        handles = self._open.pop(chunk, None)
        if handles is None:
            if len(self._open) >= max(1, OPEN_FILES // 2):
                self._close_one()
            documents, offsets = (self.chunks[chunk].file(suffix) for suffix in ("documents", "offsets"))
            handles = os.open(documents, os.O_RDONLY), os.open(offsets, os.O_RDONLY)
        self._open[chunk] = handles  # now the last that is closed
        place = OFFSET.size * int(number - self.first[chunk])
        (start,), (end,) = OFFSET.iter_unpack(os.pread(handles[1], 2 * OFFSET.size, place))
        return os.pread(handles[0], end - start, start)

    def _close_one(self) -> None:
        for handle in self._open.popitem(last=False)[1]:
            os.close(handle)


class Chosen:
    """The numbers of those documents of a spool that a mask takes, in order. A list of them is forty times as large."""

    def __init__(self, spool: Spool, mask: npt.NDArray[np.bool_]) -> None:
        self._first = spool.first
        self._mask = mask
        taken = [int(np.count_nonzero(self._of(chunk))) for chunk in range(len(spool.chunks))]
        self._before = np.cumsum([0, *taken])  # each chunk, and at the end

    def __len__(self) -> int:
        return int(self._before[-1])

    def __getitem__(self, place: int) -> int:
        chunk = bisect_right(self._before, place) - 1
        return int(self._first[chunk] + np.flatnonzero(self._of(chunk))[place - self._before[chunk]])

    def __iter__(self) -> Iterator[int]:
        for chunk in range(len(self._before) - 1):
            yield from (np.flatnonzero(self._of(chunk)) + self._first[chunk]).tolist()

    def _of(self, chunk: int) -> npt.NDArray[np.bool_]:
        return self._mask[self._first[chunk] : self._first[chunk + 1]]


class StoredRows:
    """Rows of numbers in a file, read when they are asked for: a mapping would count as memory once it is read."""

    def __init__(self, path: Path, width: int, dtype: str = "uint32") -> None:
        self._handle = os.open(path, os.O_RDONLY)
        self._width = width
        self._type = np.dtype(dtype)
        self._size = self._type.itemsize * width  # of a row
        self._count = os.fstat(self._handle).st_size // self._size

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, asked: slice | npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """The rows of a range, or those with the given numbers."""
        if isinstance(asked, slice):
            start, stop, _ = asked.indices(len(self))
            return self._read(start, stop - start)
        return np.concatenate([np.empty((0, self._width), self._type), *(self._read(n, 1) for n in asked.tolist())])

    def _read(self, start: int, count: int) -> npt.NDArray[Any]:
        data = os.pread(self._handle, self._size * count, self._size * start)
        return np.frombuffer(data, self._type).reshape(-1, self._width)

    def close(self) -> None:
        os.close(self._handle)


def _parse(record: bytes) -> tuple[Document, int]:
    head, _, text = record.partition(b"\n")
    repo, path, license, source, kind = json.loads(head)
    return Document(repo, path, text.decode(), license, source, kind), len(text)
