"""Sources -> chunks on disk. A reading that was killed goes on behind the last whole chunk.

A chunk holds documents of one source and says how many items of it were read, so the next process passes over
these and no more. Nothing is decided here but how much of each source is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import pydantic

from etude.core import progress
from etude.core.errors import EtudeError
from etude.corpus.document import Document, Rejected, Source
from etude.corpus.manifest import Funnel
from etude.corpus.spool.files import Chunk, ChunkWriter, chunks_of

CHUNK_BYTES = 32_000_000  # of text in a chunk: what a kill costs, and the work of one worker at a time


class Reader:
    """How far the sources were read; all of it stands in each chunk."""

    def __init__(self, sources: Sequence[Source], max_bytes: int, directory: Path) -> None:
        self._sources = sources
        self._directory = directory
        self.funnel = Funnel()
        self.stopped: list[str] = []  # sources that had more
        self._source = 0
        self._seen = 0  # items of the source, refused ones too
        self._taken = 0  # bytes of the source
        self._left: float = max_bytes or float("inf")  # bytes for this source and those after it

    def read(self, on_chunk: Callable[[Chunk], None]) -> None:
        """Reads all that is not read yet. `on_chunk` is told of every chunk, those of earlier processes too."""
        chunks = chunks_of(self._directory)
        for chunk in chunks:
            on_chunk(chunk)
        if chunks and self._continue(chunks[-1].facts):
            return
        with progress.track("reading code", unit="files") as bar:
            number = len(chunks)
            while self._source < len(self._sources):
                chunk = Chunk(self._directory, number)
                self._fill(chunk, bar)
                on_chunk(chunk)
                number += 1

    def _continue(self, facts: dict[str, Any]) -> bool:
        """Takes over where a chunk ended; whether everything was read by then."""
        self.funnel = pydantic.TypeAdapter(Funnel).validate_python(facts["funnel"])
        self.stopped, self._seen, self._taken = facts["stopped"], facts["seen"], facts["taken"]
        self._source = facts["source"]
        self._left = float("inf") if facts["left"] is None else facts["left"]
        if facts["source_ended"]:
            self._next_source()
        return self._source == len(self._sources)

    def _next_source(self) -> None:
        self._left -= self._taken
        self._source, self._seen, self._taken = self._source + 1, 0, 0

    def _fill(self, chunk: Chunk, bar: progress.Bar) -> None:
        """One chunk of the source that is being read; the last one of a source may be small or empty."""
        source = self._sources[self._source]
        weights = [other.settings.weight for other in self._sources[self._source :]]
        # By weight, or the first source would take all of corpus.max_bytes; what it leaves over goes to those after it.
        share = self._left * weights[0] / sum(weights)
        writer = ChunkWriter(chunk)
        ended = True
        try:
            for found in self._items(source):
                bar.advance()
                size = found.size if isinstance(found, Rejected) else _size(found, source.name)
                if isinstance(found, Rejected):
                    self.funnel.add(source.name, found.reason, size)
                elif self._taken + size > share:
                    self.stopped.append(source.name)
                    break
                else:
                    self._taken += size
                    writer.append(found)
                self._seen += 1
                self.funnel.add_read(source.name, size)
                if writer.bytes >= CHUNK_BYTES:
                    ended = False
                    break
            writer.finish(self._facts(ended))
        finally:
            writer.close()
        if ended:
            self._iterator = None
            self._next_source()

    _iterator: Iterator[Document | Rejected] | None = None

    def _items(self, source: Source) -> Iterator[Document | Rejected]:
        """The items behind those that were seen: of the iterator under way, or of a new one after a kill."""
        if self._iterator is None:
            self._iterator = items_from(source, self._seen)
        return self._iterator

    def _facts(self, ended: bool) -> dict[str, Any]:
        return {
            "source": self._source,
            "seen": self._seen,
            "taken": self._taken,
            "left": None if self._left == float("inf") else self._left,
            "source_ended": ended,
            "stopped": self.stopped,
            "funnel": asdict(self.funnel),
        }


def items_from(source: Source, start: int) -> Iterator[Document | Rejected]:
    """What a source yields from item `start` on. One that cannot begin there is read and passed over."""
    begin = getattr(source, "documents_from", None)
    if start and begin is not None:
        found: Iterator[Document | Rejected] = begin(start)
        return found
    return islice(source.documents(), start, None)


def _size(document: Document, source: str) -> int:
    if not isinstance(document, Document) or document.source != source:
        raise EtudeError(f"corpus source {source} must yield Documents with its own name as their source")
    try:
        return len(document.text.encode())
    except UnicodeEncodeError:
        raise EtudeError(f"corpus source {source} gave {document.path} as text that is not Unicode") from None
