"""Selected documents -> token shards, one series for each split, source and level of quality.

A document becomes its ids between what begins and ends one; of the train split some become fill-in-the-middle examples
instead. What a document turns into depends on it and the seed alone, so a build that was killed continues with
the first shard that is missing and ends with the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import islice, product
from pathlib import Path

import numpy as np

from etude.core import durable, progress
from etude.core.settings import CorpusSettings
from etude.corpus import fim
from etude.corpus.document import Document
from etude.corpus.ordering import by_imports
from etude.corpus.selection import SPLITS, Selection
from etude.corpus.shards import Shard, ShardWriter, id_type
from etude.corpus.split import Side
from etude.corpus.spool.files import Chosen, Spool
from etude.tokens.text_tokenizer import TextTokenizer

ANY = -1  # in place of a level of quality
BATCH_CHARACTERS = 1_000_000  # encoded at once; as Python numbers the ids take ten times the text


class Encoder:
    """Documents to sequences of ids."""

    def __init__(self, tokenizer: TextTokenizer, settings: CorpusSettings, seed: int) -> None:
        self.settings = settings
        self.dtype = id_type(tokenizer.vocab_size)
        self._tokenizer = tokenizer
        self._seed = seed

    def encode(self, documents: Sequence[Document], split: Side) -> Iterator[list[tuple[list[int], int]]]:
        """For each document its sequences, each with the bytes of text behind it."""
        examples = [self._examples(document, split) for document in documents]
        texts = [part for of in examples for example in of for part in _parts(example)]
        encoded = iter(self._tokenizer.encode_batch(texts))
        begin, end, marks = self._tokenizer.begin, self._tokenizer.end, self._tokenizer.fim
        for of in examples:
            sequences = []
            for example in of:
                size = sum(len(part.encode()) for part in _parts(example))
                if isinstance(example, str):
                    ids = next(encoded)
                else:
                    assert marks is not None  # else there are no examples
                    parts = (next(encoded), next(encoded), next(encoded))
                    ids = fim.order_ids(*parts, example.suffix_first, marks)
                sequences.append(([*begin, *ids, end], size))
            yield sequences

    def _examples(self, document: Document, split: Side) -> list[str | fim.Example]:
        """Held-out text stays as it is: its loss must mean the same whatever the training mix."""
        repo, path = document.repo, document.path
        possible = split == "train" and self._tokenizer.fim is not None
        if possible and fim.is_chosen(self._seed, repo, path, self.settings.fim_rate):
            return list(fim.make_examples(document.text, self.settings.fim_chars, self._seed, repo, path))
        return [document.text]


def _parts(example: str | fim.Example) -> tuple[str, ...]:
    return (example,) if isinstance(example, str) else (example.prefix, example.middle, example.suffix)


class Series:
    """The shards of one split, source and level of quality.

    A shard is closed between two documents and noted in `records`.
    """

    def __init__(
        self, name: str, split: Side, source: str, level: int, shards: Path, records: Path, dtype: str, most: int
    ) -> None:
        self._name = name
        self._split: Side = split
        self._source, self._level = source, level
        self._directory = shards
        self._records = records
        self._dtype = dtype
        self._most = most
        self._writer: ShardWriter | None = None
        self._finished: list[Shard] = []
        self.taken = 0  # documents in finished shards and the open one
        records.mkdir(exist_ok=True)
        # A record is written after its shard, so every record that is there stands for a whole one.
        while (record := self._record()).exists():
            facts = json.loads(record.read_text())
            self.taken = facts.pop("taken")
            self._finished.append(Shard(**facts))

    def append(self, sequences: Sequence[tuple[list[int], int]], repository: str) -> None:
        """One document."""
        if self._writer is None:
            self._writer = ShardWriter(self._directory, self._shard_name(), self._dtype)
        for ids, text_bytes in sequences:
            self._writer.append(ids, text_bytes, repository)
        self.taken += 1
        if self._writer.tokens >= self._most:
            self._close()

    def finish(self) -> list[Shard]:
        if self._writer is not None and self._writer.tokens:
            self._close()
        return self._finished

    def _close(self) -> None:
        assert self._writer is not None
        shard = self._writer.finish(self._split, self._source, self._level)
        self._writer = None
        # Only now: a kill before this line makes the shard once more, to the same bytes.
        durable.write_whole(self._record(), json.dumps(asdict(shard) | {"taken": self.taken}))
        self._finished.append(shard)

    def _shard_name(self) -> str:
        return f"{self._name}-{len(self._finished):05}"

    def _record(self) -> Path:
        return self._records / f"{self._shard_name()}.json"


def write_shards(
    spool: Spool, selection: Selection, sources: Sequence[str], encoder: Encoder, shards: Path, records: Path
) -> list[Shard]:
    """All shards of the corpus; those that an earlier process finished are taken as they are."""
    staying = selection.sides >= 0
    made: list[Shard] = []
    with progress.track("encoding", int(np.count_nonzero(staying)), unit="files") as bar:
        for side, split in enumerate(SPLITS):
            # Held-out text is measured whole, whatever its quality.
            levels = np.unique(selection.levels[staying]).tolist() if split == "train" else [ANY]
            for (number, source), level in product(enumerate(sources), levels):
                wanted = (selection.sides == side) & (spool.sources == number)
                wanted &= (selection.levels == level) | (level == ANY)
                chosen: Iterable[int] = Chosen(spool, wanted)
                name = f"{split}-{number:03}" + (f"-q{level}" if level > 0 else "")
                most = encoder.settings.shard_tokens
                series = Series(name, split, source, max(0, level), shards, records, encoder.dtype, most)
                bar.advance(series.taken)
                # Only long sequences hold several files, and there what a file uses should stand before it.
                if encoder.settings.order == "imports":
                    chosen = by_imports(spool, chosen)
                for documents in _batches(spool, islice(chosen, series.taken, None)):
                    for document, sequences in zip(documents, encoder.encode(documents, split), strict=True):
                        series.append(sequences, document.repo)
                        bar.advance()
                made += series.finish()
    return made


def _batches(spool: Spool, numbers: Iterable[int]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    size = 0
    for number in numbers:
        document = spool.document(number)
        batch.append(document)
        size += len(document.text)
        if size >= BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
