"""Documents on disk between the steps of a build, so that memory holds only numbers about them.

One file of records, each a line of JSON (repo, path, licence, source) and the text; offsets, source numbers and
signatures lie beside it as plain arrays. A spool without its offsets was not finished and is written anew.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from etude.core import durable
from etude.corpus.document import Document

RECORDS = "documents"
OFFSETS = "offsets.npy"
SOURCES = "sources.npy"
SIGNATURES = "signatures"


class Head(NamedTuple):
    repo: str
    path: str
    source: str
    size: int  # bytes of the text


class SpoolWriter:
    """Appends documents. Leave the `with` block to make them readable."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._records = (directory / RECORDS).open("wb")
        self._signatures = (directory / SIGNATURES).open("wb")
        self._offsets = array("q", [0])
        self._sources = array("h")

    def append(self, document: Document, source: int, signature: npt.NDArray[np.uint32] | None) -> None:
        head = json.dumps([document.repo, document.path, document.license, document.source]).encode()
        size = self._records.write(head + b"\n" + document.text.encode())
        self._offsets.append(self._offsets[-1] + size)
        self._sources.append(source)
        if signature is not None:
            self._signatures.write(signature.tobytes())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._records.close()
        self._signatures.close()
        if kind is None:
            np.save(self._directory / SOURCES, np.array(self._sources, np.int16))
            # Last: a spool that has its offsets is whole.
            np.save(self._directory / OFFSETS, np.array(self._offsets, np.int64))
            for name in (RECORDS, SIGNATURES, SOURCES, OFFSETS):
                durable.sync(self._directory / name)


class Spool:
    """Reads what a SpoolWriter wrote, in any order."""

    def __init__(self, directory: Path) -> None:
        self._records = (directory / RECORDS).open("rb")
        self._offsets: npt.NDArray[np.int64] = np.load(directory / OFFSETS)
        self._directory = directory
        self.sources: npt.NDArray[np.int16] = np.load(directory / SOURCES)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def close(self) -> None:
        self._records.close()

    def document(self, number: int) -> Document:
        start, end = self._offsets[number : number + 2].tolist()
        self._records.seek(start)
        head, _, text = self._records.read(end - start).partition(b"\n")
        repo, path, license, source = json.loads(head)
        return Document(repo, path, text.decode(), license, source)

    def heads(self, numbers: Iterable[int]) -> Iterator[Head]:
        """Of each numbered document everything but its text."""
        for number in numbers:
            start, end = self._offsets[number : number + 2].tolist()
            self._records.seek(start)
            line = self._records.readline()
            repo, path, _, source = json.loads(line)
            yield Head(repo, path, source, end - start - len(line))

    def signatures(self, size: int) -> npt.NDArray[np.uint32]:
        """A row of `size` numbers for each document, left on disk."""
        if not len(self):
            return np.empty((0, size), np.uint32)
        return np.memmap(self._directory / SIGNATURES, np.uint32, "r", shape=(len(self), size))
