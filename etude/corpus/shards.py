"""Token ids on disk: plain little-endian arrays, read in slices, one shard a few megabytes.

`NAME.ids` holds the ids of whole documents one after another, `NAME.offsets` where each begins (64-bit, one more
than there are documents), `NAME.repositories` which documents begin another repository, where that is known. A shard
gets its name only when complete, and carries hashes by which a truncated, swapped or damaged one is refused. Knows
nothing of text.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from etude.core import durable
from etude.core.errors import EtudeError
from etude.core.token_files import OtherFile, Slice
from etude.corpus.split import Side

Ids = npt.NDArray[np.uint16] | npt.NDArray[np.uint32]


@dataclass(frozen=True)
class Shard:
    """What the manifest says of a shard."""

    name: str
    split: Side
    source: str
    documents: int
    tokens: int
    text_bytes: int  # of the text that the ids came from
    ids_hash: str
    offsets_hash: str
    repositories: list[int] = field(default_factory=list)  # of corpora from before they had a file of their own
    level: int = 0  # of quality
    repositories_hash: str = ""  # none: nobody wrote down where they begin


def id_type(vocab_size: int) -> str:
    """The smallest type that holds every id."""
    return "uint16" if vocab_size <= 2**16 else "uint32"


class ShardWriter:
    """Writes one shard: append documents, then finish."""

    def __init__(self, directory: Path, name: str, dtype: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.tokens = 0
        self._directory = directory
        self._name = name
        self._type = np.dtype(dtype).newbyteorder("<")
        self._offsets = array("q", [0])
        self._repositories = array("q")
        self._repository = ""
        self._text_bytes = 0
        self._hash = hashlib.sha256()
        self._file = (directory / f"{name}.ids.partial").open("wb")

    def append(self, ids: Sequence[int], text_bytes: int, repository: str = "") -> None:
        if repository and repository != self._repository:
            self._repositories.append(len(self._offsets) - 1)
            self._repository = repository
        data = np.asarray(ids, self._type).tobytes()
        self._file.write(data)
        self._hash.update(data)
        self.tokens += len(ids)
        self._text_bytes += text_bytes
        self._offsets.append(self.tokens)

    def finish(self, split: Side, source: str, level: int = 0) -> Shard:
        self._file.close()
        arrays = {"offsets": np.array(self._offsets, "<i8").tobytes()}
        if self._repositories:
            arrays["repositories"] = np.array(self._repositories, "<i8").tobytes()
        for suffix, data in arrays.items():
            (self._directory / f"{self._name}.{suffix}.partial").write_bytes(data)
        # On the disk before it gets its name: a shard under its own name is whole.
        for suffix in ("ids", *arrays):
            partial = self._directory / f"{self._name}.{suffix}.partial"
            durable.sync(partial)
            partial.rename(partial.with_suffix(""))
        hashes = {suffix: hashlib.sha256(data).hexdigest() for suffix, data in arrays.items()}
        durable.sync(self._directory)
        return Shard(
            self._name,
            split,
            source,
            len(self._offsets) - 1,
            self.tokens,
            self._text_bytes,
            self._hash.hexdigest(),
            hashes["offsets"],
            level=level,
            repositories_hash=hashes.get("repositories", ""),
        )


class OpenShard:
    """A shard open for reading. Sizes are checked at once; the ids are hashed when they are first read."""

    def __init__(self, directory: Path, shard: Shard, dtype: str) -> None:
        self._shard = shard
        self._path = directory / f"{shard.name}.ids"
        self._type = np.dtype(dtype).newbyteorder("<")
        offsets_path = directory / f"{shard.name}.offsets"
        self._check_size(offsets_path, 8 * (shard.documents + 1))
        self._check_size(self._path, self._type.itemsize * shard.tokens)
        self.offsets = self._numbers("offsets", shard.offsets_hash)

    def repositories(self) -> npt.NDArray[np.int64]:
        """The documents that each begin another repository; none where nobody wrote it down."""
        if not self._shard.repositories_hash:
            return np.array(self._shard.repositories, np.int64)
        return self._numbers("repositories", self._shard.repositories_hash)

    def _numbers(self, suffix: str, expected: str) -> npt.NDArray[np.int64]:
        path = self._path.with_suffix(f".{suffix}")
        if not path.is_file():
            raise EtudeError(self._damaged(path, "is missing"))
        raw = path.read_bytes()
        if hashlib.sha256(raw).hexdigest() != expected:
            raise EtudeError(self._damaged(path, "is not the file that the manifest describes"))
        return np.frombuffer(raw, "<i8").astype(np.int64)

    def read(self, start: int, end: int) -> Ids:
        """A copy of the ids in [start, end)."""
        try:
            return self.slice(start, end).read()
        except OtherFile:  # one that cannot be read is no reason to build the corpus again
            raise EtudeError(self._damaged(self._path, "is not the file that the manifest describes")) from None

    def slice(self, start: int, end: int) -> Slice:
        """Where the ids in [start, end) lie."""
        return Slice(str(self._path.absolute()), self._type.str, self._shard.ids_hash, start, end)

    def _check_size(self, path: Path, size: int) -> None:
        if not path.is_file():
            raise EtudeError(self._damaged(path, "is missing"))
        if (have := path.stat().st_size) != size:
            raise EtudeError(self._damaged(path, f"has {have} bytes instead of {size}"))

    @staticmethod
    def _damaged(path: Path, what: str) -> str:
        return f"the corpus shard {path} {what}: remove the folder {path.parent.parent} and build the corpus again"
