"""A batch as a manifest: what every rank must know of all items, and where each of them lies.

Packing needs how many tokens an item takes, and a round which heads and teachers; so every rank hears that of all
items. The items themselves, with their tokens, weights and experts, are files: a rank opens those that packing gives
to it and no other. Imports no torch: the orchestrator writes the files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from etude.core.errors import EtudeError
from etude.core.transport import PREFIX_BYTES, pack, read_frame, read_prefix, unpack, write_frame
from etude.learn.streams import Batch, Correction, Item, Twin
from etude.learn.texts import Texts


@dataclass(frozen=True)
class Kind:
    """Streams that are scored together, where a teacher has to be: its weights, and the share of the live ones."""

    likeness: str
    weights: str
    trust: float


@dataclass(frozen=True)
class ItemFacts:
    """One item of a batch."""

    tokens: int
    room: int  # tokens of a micro-batch that it takes
    computed: int  # by it and its teachers; 0 where no stream of it counts
    depth: int  # MTP heads that it trains
    teachers: Sequence[Kind]
    file: str = ""  # in the manifest's folder; empty where rank 0 has it in memory
    digest: str = ""

    @classmethod
    def of(cls, item: Item) -> ItemFacts:
        heard = [stream for stream in item.streams if stream.counts]
        found = [(stream, stream.target) for stream in heard if isinstance(stream.target, Twin)]
        teachers = [Kind(repr(stream.likeness), target.weights, target.trust) for stream, target in found]
        depth = max((stream.depth for stream in heard), default=0)
        return cls(len(item.tokens_T), item.room, item.computed_tokens, depth, teachers)

    @classmethod
    def of_text(cls, texts: Texts, number: int) -> ItemFacts:
        """As `of` the item that it becomes, without reading it."""
        tokens, depths = len(texts.texts[number].ids), texts.depths(number)
        return cls(tokens, tokens, tokens if depths else 0, max(depths, default=0), [])


@dataclass(frozen=True)
class Manifest:
    items: Sequence[ItemFacts]
    correction: Correction
    folder: str = ""
    texts: Texts | None = None  # where the items are made of slices of files, in place of files of their own

    @classmethod
    def of(cls, batch: Batch) -> Manifest:
        """Of items in memory, or of texts that lie in files."""
        if isinstance(texts := batch.items, Texts):
            entries = [ItemFacts.of_text(texts, number) for number in range(len(texts))]
            return cls(entries, batch.correction, texts=texts)
        return cls([ItemFacts.of(item) for item in batch.items], batch.correction)

    @property
    def in_files(self) -> bool:
        """Whether each rank opens its own items; else rank 0 sends them."""
        return bool(self.folder) or self.texts is not None

    def open(self, number: int) -> Item:
        """An item from its file; one that is gone, changed or outside the folder is refused."""
        entry = self.items[number]
        if self.texts is not None:
            item = self.texts[number]
            if ItemFacts.of(item) != entry:
                raise EtudeError(f"the sequence of {self.texts.texts[number].ids} is not what its manifest says")
            return item
        if entry.file in ("", ".", "..") or "/" in entry.file or "\0" in entry.file:
            raise EtudeError(f"{entry.file!r} is no name of an item's file")
        path = Path(self.folder) / entry.file
        try:
            data = path.read_bytes()
        except OSError as error:
            raise EtudeError(f"the item {path} cannot be read: {error}") from None
        if hashlib.sha256(data).hexdigest() != entry.digest:
            raise EtudeError(f"the item {path} is not the one that was written")
        item = read_item(data)
        if ItemFacts.of(item) != replace(entry, file="", digest=""):
            raise EtudeError(f"the item {path} is not what its manifest says")
        return item


def read_item(data: bytes) -> Item:
    header, _ = read_prefix(data[:PREFIX_BYTES])
    return unpack(Item, read_frame(data[PREFIX_BYTES : PREFIX_BYTES + header], data[PREFIX_BYTES + header :]))


def write_batch(batch: Batch, folder: Path, name: str) -> Manifest:
    """Each item of the batch as a file whose name begins with `name`; `remove_batch` takes them away."""
    folder.mkdir(parents=True, exist_ok=True)
    entries = []
    try:
        for number, item in enumerate(batch.items):
            data, file = write_frame(pack(item)), f"{name}-{number:05d}.item"
            (folder / file).write_bytes(data)
            entries.append(replace(ItemFacts.of(item), file=file, digest=hashlib.sha256(data).hexdigest()))
    except OSError as error:
        raise EtudeError(
            f"a batch cannot be written to {folder}: {error}; make room and run the same command again"
        ) from error
    return Manifest(entries, batch.correction, str(folder.absolute()))


def remove_batch(manifest: Manifest) -> None:
    for entry in manifest.items:
        (Path(manifest.folder) / entry.file).unlink(missing_ok=True)
