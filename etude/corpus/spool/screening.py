"""What is found out about the documents of one chunk, in two steps that many processes can share.

    screen   chunk-N.reasons   JSON: why each document that the filters take is refused
             chunk-N.digests   sixteen bytes for each document, equal for exact copies
             chunk-N.sizes     bytes of each text
    sign     chunk-N.signatures   MinHash of each document that is still in
             chunk-N.hits         JSON: which of them overlap with a forbidden text, and where

A file is whole when it is there, so a step that was killed is simply done again. Knows nothing of other chunks.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from etude.core import durable
from etude.corpus.decontaminate import Forbidden, read_texts
from etude.corpus.dedupe import RUN, MinHash, exact_digest
from etude.corpus.filters import find_problem
from etude.corpus.spool.files import Chunk
from etude.corpus.word_hashes import hash_runs, hash_words, split_words

Step = Literal["screen", "sign"]
ALIVE = "alive"  # a byte for each document: whether it is still in when `sign` begins


@dataclass(frozen=True)
class Screening:
    """The settings of both steps; JSON for a process that does them."""

    licenses: Sequence[str]
    parse: bool
    near: bool  # whether near-duplicates are looked for
    decontaminate: Sequence[str]
    ngram: int

    def do(self, step: Step, directory: Path, number: int) -> None:
        chunk = Chunk(directory, number)
        if step == "screen":
            self._screen(chunk)
        else:
            self._sign(chunk)

    def done(self, step: Step, chunk: Chunk) -> bool:
        return chunk.file("reasons" if step == "screen" else "hits").exists()

    def _screen(self, chunk: Chunk) -> None:
        reasons: dict[str, list[int]] = {}
        digests, sizes = bytearray(), []
        for number, (document, size) in enumerate(chunk.documents()):
            sizes.append(size)
            # Asked first: it is known already.
            unwanted = document.license not in self.licenses
            problem = f"licence {document.license}" if unwanted else find_problem(document, self.parse)
            if problem:
                reasons.setdefault(problem, []).append(number)
                digests += bytes(16)
            else:
                digests += exact_digest(document.text)
        chunk.note("digests", np.frombuffer(bytes(digests), np.uint64))
        chunk.note("sizes", np.array(sizes, np.int64))
        durable.write_whole(chunk.file("reasons"), json.dumps(reasons))

    def _sign(self, chunk: Chunk) -> None:
        alive = np.fromfile(chunk.file(ALIVE), bool)
        hits: dict[int, Any] = {}
        minhash, forbidden = MinHash(), self._forbidden
        signatures = chunk.file("signatures.partial")
        with signatures.open("wb") as rows:
            for number, (document, _) in enumerate(chunk.documents()):
                if not alive[number] or not (self.near or forbidden.names):
                    continue
                words = split_words(document.text)
                hashes = hash_words(words)
                if self.near:
                    # Not made a set first: the smallest of a list is the smallest of its set.
                    rows.write(minhash.sign(hash_runs(hashes, RUN)).tobytes())
                if hit := forbidden.find_in(words, hashes):
                    hits[number] = asdict(hit)
        durable.sync(signatures)
        signatures.rename(chunk.file("signatures"))
        durable.write_whole(chunk.file("hits"), json.dumps(hits))

    @cached_property
    def _forbidden(self) -> Forbidden:
        return Forbidden(read_texts(self.decontaminate), self.ngram)
