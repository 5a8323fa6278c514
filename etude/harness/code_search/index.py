"""Files that can be asked: BM25 of a file and of its best piece, and the nearest vector among its pieces.

Each of the three is divided by its own best, so that none decides alone. Knows texts, not where they come from.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from etude.harness.code_search.chunks import Chunk, chunks_of
from etude.harness.code_search.embedding import WordVectors
from etude.harness.code_search.lexical import LexicalIndex
from etude.harness.code_search.words import split_words

PIECE_SHARE = 1.0  # of the best piece beside the whole file
VECTOR_SHARE = 1.0  # of the vectors beside the words


class Found(NamedTuple):
    """A file and the definition in it that fits best."""

    path: str
    line: int
    name: str


class CodeIndex:
    def __init__(self, vectors: WordVectors | None = None) -> None:
        self.vectors = vectors
        self._lexical = LexicalIndex()
        self._chunks: dict[str, list[Chunk]] = {}
        self._embedded: dict[str, npt.NDArray[np.float32]] = {}
        self._matrix: tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]] | None = None

    def __len__(self) -> int:
        return len(self._chunks)

    @property
    def stale_words(self) -> int:
        """Words that are remembered and in no file, at least."""
        return self._lexical.stale_words

    def put(self, path: str, text: str) -> None:
        """A file that is new, or as it is now."""
        chunks = self._chunks[path] = chunks_of(path, text)
        self._lexical.put(path, [chunk.words for chunk in chunks])
        if self.vectors is not None:
            self._embedded[path] = np.stack([self.vectors.embed(chunk.words) for chunk in chunks])
        self._matrix = None

    def drop(self, path: str) -> None:
        self._lexical.drop(path)
        self._chunks.pop(path, None)
        self._embedded.pop(path, None)
        self._matrix = None

    def search(self, question: str, most: int = 5) -> list[Found]:
        """The files that fit best, best first; none where nothing of the question is known."""
        words = split_words(question)
        paths = self._lexical.files
        whole_F, piece_F = self._lexical.scores(words)
        total_F = _scaled(whole_F) + PIECE_SHARE * _scaled(piece_F)
        if self.vectors is not None and paths:
            total_F = total_F + VECTOR_SHARE * _scaled(self._nearest(paths, Counter(words)))
        order = np.lexsort((np.arange(len(paths)), -total_F))[:most]
        return [self._found(paths[number], Counter(words)) for number in order if total_F[number] > 0]

    def _nearest(self, paths: list[str], words: Counter[str]) -> npt.NDArray[np.float32]:
        """The cosine of the nearest piece of each file."""
        assert self.vectors is not None
        if self._matrix is None:
            sizes = np.array([len(self._embedded[path]) for path in paths], np.int64)
            first_F = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
            self._matrix = np.concatenate([self._embedded[path] for path in paths]), first_F
        matrix_PD, first_F = self._matrix
        return np.asarray(np.maximum.reduceat(matrix_PD @ self.vectors.embed(words), first_F), np.float32)

    def _found(self, path: str, words: Counter[str]) -> Found:
        chunks = self._chunks[path]

        def fit(chunk: Chunk) -> tuple[float, float]:
            near = float(self.vectors.embed(words) @ self.vectors.embed(chunk.words)) if self.vectors else 0.0
            return sum(1 for word in words if word in chunk.words) + near, -len(chunk.words)

        best = max(chunks[1:] or chunks, key=fit)
        return Found(path, best.line, best.name)


def _scaled(score_N: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    best = float(score_N.max(initial=0.0))
    return np.asarray(np.maximum(score_N, 0) / best, np.float32) if best > 0 else np.zeros_like(score_N)
