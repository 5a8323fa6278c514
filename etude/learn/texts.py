"""Sequences to learn or to score that lie in files: a batch that says where, and of which each rank reads its own.

Rank 0 decides which sequences are next and tells all ranks where they lie: as many bytes for a long one as for a short
one. Imports no torch.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import overload

import numpy as np

from etude.core.token_files import Slice, write_arrays
from etude.learn.streams import Floats, Ids, Item, Label, MainHead, Stream

Heads = Sequence[tuple[str, float]]  # MTP heads and their share


@dataclass(frozen=True)
class Text:
    """One sequence, and which of its tokens count how much."""

    ids: Slice
    counted: int  # tokens that count, the first one of the sequence aside
    last: int  # the last that counts
    weight: float = 1.0  # of each that counts
    own: Slice | None = None  # 1 where a token counts, 0 where it does not; None: all count

    @classmethod
    def whole(cls, ids: Slice, weight: float = 1.0) -> Text:
        return cls(ids, len(ids) - 1, len(ids) - 1, weight)

    def counts(self) -> Floats:
        own_T = np.ones(len(self.ids), np.float32) if self.own is None else self.own.read().astype(np.float32)
        return own_T * np.float32(self.weight)


@dataclass(frozen=True, eq=False)
class Texts(Sequence[Item]):
    """A batch of them. As a sequence of items it reads them; without heads they are only scored."""

    texts: Sequence[Text]
    heads: Heads = ()
    main: bool = False
    predicted: float = 0.0  # the sum of all weights
    sizes: Slice | None = None  # bytes of text that each id stands for

    def __len__(self) -> int:
        return len(self.texts)

    @overload
    def __getitem__(self, number: int) -> Item: ...

    @overload
    def __getitem__(self, number: slice) -> list[Item]: ...

    def __getitem__(self, number: int | slice) -> Item | list[Item]:
        if isinstance(number, slice):
            return [self[i] for i in range(*number.indices(len(self)))]
        text = self.texts[number]
        if not (self.main or self.heads):
            return Item(text.ids.read(), ())
        return labelled_item(text.ids.read(), text.counts(), self.predicted, self.heads, self.main)

    def depths(self, number: int) -> list[int]:
        """The heads that learn from a sequence, 0 is the main one; known without reading it."""
        text = self.texts[number]
        weight = np.float32(np.float32(text.weight) / max(1.0, self.predicted))
        shares = {0: 1.0} if self.main else {}
        shares |= {int(head.removeprefix("mtp.")): share for head, share in self.heads}
        return [depth for depth, share in shares.items() if text.last > depth and np.float32(share) * weight]

    def bytes_of(self, items: Mapping[int, Item]) -> float:
        """How much text the tokens that count stand for, of those items that were read."""
        sizes_V = self.sizes.read().astype(np.int64) if self.sizes is not None else np.empty(0)
        found = ((item.tokens_T, self.texts[number].counts()) for number, item in items.items())
        return sum(float(sizes_V[tokens_T[1:]] @ counts_T[1:]) for tokens_T, counts_T in found)


def labelled_item(tokens_T: Ids, counts_T: Floats, predicted: float, heads: Heads, main: bool = True) -> Item:
    """A sequence whose tokens the main head learns, and MTP heads beside it or alone; over `predicted` tokens."""
    weight_T = (counts_T / max(1.0, predicted)).astype(np.float32)
    streams = [Stream("main", weight_T, Label(tokens_T))] if main else []
    streams += [Stream(head, np.float32(share) * weight_T, MainHead()) for head, share in heads]
    return Item(tokens_T, streams)


class TextFiles:
    """Files of a stage that its ranks read: what rank 0 has made by itself."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def sizes(self, sizes_V: Ids) -> Slice:
        return write_arrays(self.folder / "sizes", "u2", [sizes_V])[0]

    def texts(self, pieces: Sequence[tuple[Ids, Floats]]) -> list[Text]:
        """Sequences with 1 where a token counts and 0 where it does not."""
        ids = write_arrays(self.folder / "ids", "i4", [tokens_T for tokens_T, _ in pieces])
        own = write_arrays(self.folder / "own", "u1", [own_T for _, own_T in pieces])
        found = []
        for (_, own_T), where, counting in zip(pieces, ids, own, strict=True):
            places = np.flatnonzero(own_T)
            found.append(Text(where, int((places > 0).sum()), int(places.max(initial=0)), own=counting))
        return found


@contextmanager
def text_files(folder: Path) -> Iterator[TextFiles]:
    """They are removed at the end; what a killed stage left is written again by the next."""
    try:
        yield TextFiles(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
