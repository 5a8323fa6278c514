"""Numbers that lie in a file one after another, and parts of them that any process reads for itself.

A slice says where numbers lie instead of holding them, so it is as small for a long sequence as for a short one. It
carries the digest of the whole file: a process that reads from a file compares it once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from etude.core.errors import EtudeError

Array = npt.NDArray[Any]


class OtherFile(EtudeError):
    """A file that can be read and is not the one that was written."""


@dataclass(frozen=True)
class Slice:
    """The numbers [start, stop) of a file."""

    file: str
    dtype: str
    digest: str  # sha256 of the whole file
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def read(self) -> Array:
        _check(self.file, self.digest)
        kind = np.dtype(self.dtype)
        if not 0 <= self.start <= self.stop:
            raise EtudeError(f"{self.file} has no numbers from {self.start} to {self.stop}")
        try:
            # Not mapped: a map keeps its file open, and a corpus has more files than a process may hold.
            found = np.fromfile(self.file, kind, len(self), offset=kind.itemsize * self.start)
        except OSError as error:
            raise EtudeError(f"{self.file} cannot be read: {error}") from None
        if len(found) != len(self):
            raise EtudeError(f"{self.file} ends before number {self.stop}")
        return found


@cache
def _check(file: str, digest: str) -> None:
    try:
        with Path(file).open("rb") as opened:
            found = hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise EtudeError(f"{file} cannot be read: {error}") from None
    if found != digest:
        raise OtherFile(f"{file} is not the file that was written")


def write_arrays(path: Path, dtype: str, arrays: Sequence[Array]) -> list[Slice]:
    """The arrays one after another in a new file, and where each of them lies."""
    little = np.dtype(dtype).newbyteorder("<")
    data = b"".join(array.astype(little).tobytes() for array in arrays)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as error:
        raise EtudeError(f"{path} cannot be written: {error}; make room and run the same command again") from error
    digest, ends = hashlib.sha256(data).hexdigest(), np.cumsum([0, *map(len, arrays)]).tolist()
    return [Slice(str(path.absolute()), little.str, digest, start, stop) for start, stop in pairwise(ends)]
