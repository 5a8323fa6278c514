"""Training text in an order that can be continued anywhere: shards -> pieces of documents.

Sources are mixed by their weights, counted in tokens. Within a source each epoch visits every piece once, in
another order. A piece belongs to one document, or to one repository, whose documents it then holds in their order:
that is how sequences longer than files come about. The whole state is a handful of numbers, and going to any
position costs the same as staying. Knows nothing of training.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from etude.core.errors import EtudeError
from etude.core.token_files import Slice
from etude.corpus.manifest import SHARDS, Manifest, load_manifest
from etude.corpus.shards import Ids, OpenShard
from etude.corpus.split import Side
from etude.corpus.stable_random import permuted, stable_hash


class Mix:
    """Pieces of at most `sequence` ids from one split of a corpus, endlessly.

    `weights` are shares of its sources by name, in place of those that it was built with; others are left out.
    `quality` is the least level of the documents to train on.
    """

    def __init__(
        self,
        directory: Path,
        split: Side,
        sequence: int,
        seed: int,
        unit: Literal["file", "repository"] = "file",
        weights: Mapping[str, float] | None = None,
        quality: int = 0,
    ) -> None:
        if sequence < 2:
            raise EtudeError(f"a sequence of {sequence} tokens has nothing to predict: use 2 or more")
        self.manifest: Manifest = load_manifest(directory)
        self._identity = {"corpus": self.manifest.fingerprint, "split": split, "sequence": sequence, "seed": seed}
        # Left out for files, so that positions which were saved without it still fit.
        if unit != "file":
            self._identity["unit"] = unit
        if weights:
            self._identity["weights"] = dict(weights)
        if quality:
            self._identity["quality"] = quality
        # Held-out text is measured whole, whatever its quality.
        least = quality if split == "train" else 0
        self._piles: list[_Pile] = []
        for name, weight in self._weights(weights).items():
            of_source = [shard for shard in self.manifest.shards if (shard.split, shard.source) == (split, name)]
            shards = [shard for shard in of_source if shard.level >= least]
            if shards:
                opened = [OpenShard(directory / SHARDS, shard, self.manifest.dtype) for shard in shards]
                bounds = [_bounds(directory, one, unit) for one in opened]
                self._piles.append(_Pile(name, weight, opened, bounds, sequence, seed))
        if not self._piles:
            more = "; raise corpus.held_out or add sources" if split == "held_out" else ""
            more = (
                f" of quality level {quality} or more; lower `quality` or what corpus.quality asks" if least else more
            )
            raise EtudeError(f"the corpus {directory} has no text in its {split} split{more}")

    def _weights(self, asked: Mapping[str, float] | None) -> dict[str, float]:
        known = self.manifest.weights
        for name, weight in (asked or {}).items():
            if name not in known:
                raise EtudeError(f"the corpus has no source {name!r} to weigh: its sources are {', '.join(known)}")
            if weight < 0:
                raise EtudeError(f"the weight of source {name!r} is {weight}; it must be 0 or more")
        return {name: weight for name, weight in (asked or known).items() if weight > 0}

    @property
    def sources(self) -> list[str]:
        """Those that have text in this split."""
        return [pile.name for pile in self._piles]

    def take(self, tokens: int) -> list[Ids]:
        """The next pieces, `tokens` ids in all; the last one is cut to fit and its rest comes first next time."""
        return [shard.read(start, stop) for shard, start, stop in self._places(tokens)]

    def slices(self, tokens: int) -> list[Slice]:
        """As `take`, but where the pieces lie: for processes that read them themselves."""
        return [shard.slice(start, stop) for shard, start, stop in self._places(tokens)]

    def _places(self, tokens: int) -> Iterator[ShardRange]:
        if tokens < 1:
            raise EtudeError(f"cannot take {tokens} tokens from a mix: ask for at least one")
        while tokens > 0:
            begun = [pile for pile in self._piles if pile.offset]
            # A piece that was cut goes on before anything else, so that a position is a handful of numbers.
            pile = begun[0] if begun else min(self._piles, key=lambda pile: pile.served / pile.weight)
            place = pile.take(tokens)
            tokens -= place.stop - place.start
            yield place

    def position(self) -> dict[str, Any]:
        """Where we are, as small JSON."""
        return self._identity | {"piles": {p.name: [p.pieces, p.offset, p.served] for p in self._piles}}

    def seek(self, position: Mapping[str, Any]) -> None:
        """Continue where `position` was taken, in this process or another."""
        for key, value in self._identity.items():
            if position.get(key) != value:
                raise EtudeError(
                    f"this position belongs to another mix: its {key} is {position.get(key)}, here it is {value}"
                )
        try:
            for pile in self._piles:
                pile.pieces, pile.offset, pile.served = map(int, position["piles"][pile.name])
        except (KeyError, TypeError, ValueError):
            raise EtudeError("the position of the mix is damaged: its piles are not those of this corpus") from None


def _bounds(directory: Path, shard: OpenShard, unit: str) -> npt.NDArray[np.int64]:
    if unit == "file":
        return shard.offsets
    begins = shard.repositories()
    if not len(begins):
        raise EtudeError(f"the corpus {directory} does not say where its repositories begin: build it again")
    return np.append(shard.offsets[begins], shard.offsets[-1])


class ShardRange(NamedTuple):
    """The ids [start, stop) of a shard."""

    shard: OpenShard
    start: int
    stop: int


class _Pile:
    """The pieces of one source, and how far into them we are."""

    def __init__(
        self,
        name: str,
        weight: float,
        opened: list[OpenShard],
        bounds: list[npt.NDArray[np.int64]],  # of each shard, where a document begins or the last one ends
        sequence: int,
        seed: int,
    ) -> None:
        self.name = name
        self.weight = weight
        self.pieces = 0  # taken whole, over all epochs
        self.offset = 0  # ids already taken of the piece under way
        self.served = 0  # ids taken in all
        self._key = stable_hash(seed, "mix", name)
        self._shards = opened
        self._bounds = bounds
        self._first_document = np.cumsum([0] + [len(each) - 1 for each in bounds])
        lengths = np.concatenate([np.diff(each) for each in bounds])
        # A document of 513 ids becomes pieces of 257 and 256, not of 512 and a useless 1.
        self._cuts = -(-lengths // sequence)
        self._first_piece = np.concatenate([[0], np.cumsum(self._cuts)])

    def take(self, most: int) -> ShardRange:
        """The next ids of the piece under way, at most so many."""
        count = int(self._first_piece[-1])
        epoch, place = divmod(self.pieces, count)
        piece = permuted(place, count, stable_hash(self._key, epoch))
        document = int(np.searchsorted(self._first_piece, piece, side="right")) - 1
        number = int(np.searchsorted(self._first_document, document, side="right")) - 1
        shard = self._shards[number]
        start, end = self._bounds[number][document - self._first_document[number] :][:2].tolist()
        part, parts = piece - int(self._first_piece[document]), int(self._cuts[document])
        length = end - start
        stop = start + length * (part + 1) // parts
        start += length * part // parts + self.offset
        end = min(stop, start + most)
        taken = end - start
        self.served += taken
        self.offset += taken
        if end == stop:
            self.pieces += 1
            self.offset = 0
        return ShardRange(shard, start, end)
