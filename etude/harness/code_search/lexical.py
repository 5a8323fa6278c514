"""BM25 over the pieces of files and over whole files, with files that come, change and go.

A file is two arrays, its words and how often each is there; a query looks through all arrays end to end. That takes
8 bytes a word of a file and no lists by word, so a changed file costs its own words and nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

K1, B = 1.2, 0.75  # the usual saturation of a word's count, and how much a document's length counts
Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class _Flat:
    """All files end to end: entry e is a word of a piece of a file."""

    word_E: npt.NDArray[np.int32]
    count_E: Array
    piece_E: npt.NDArray[np.int64]
    file_P: npt.NDArray[np.int64]  # which file a piece is of
    length_P: Array
    names: list[str]
    first_F: npt.NDArray[np.int64]  # the first piece of each file


class LexicalIndex:
    def __init__(self) -> None:
        self._vocabulary: dict[str, int] = {}
        self._files: dict[str, tuple[npt.NDArray[np.int32], Array, list[int]]] = {}  # words, counts, words of a piece
        self._flat: _Flat | None = None

    def put(self, name: str, pieces: Sequence[Mapping[str, float]]) -> None:
        """A file, new or changed, as the words of its pieces."""
        known = self._vocabulary
        words = [known.setdefault(word, len(known)) for piece in pieces for word in piece]
        counts = [count for piece in pieces for count in piece.values()]
        self._files[name] = np.array(words, np.int32), np.array(counts, np.float32), [len(p) for p in pieces]
        self._flat = None

    def drop(self, name: str) -> None:
        self._files.pop(name, None)
        self._flat = None

    @property
    def stale_words(self) -> int:
        """Words that are remembered and in no file, at least."""
        return len(self._vocabulary) - sum(len(words) for words, _, _ in self._files.values())

    @property
    def files(self) -> list[str]:
        return self._built().names

    def scores(self, question: Sequence[str]) -> tuple[Array, Array]:
        """BM25 of every file as a whole, and that of its best piece; files are in the order of `files`."""
        flat = self._built()
        pieces, files = len(flat.file_P), len(flat.names)
        length_F = np.bincount(flat.file_P, flat.length_P, files) if pieces else np.zeros(0)
        score_P, score_F = np.zeros(pieces), np.zeros(files)
        for word, times in Counter(question).items():
            number = self._vocabulary.get(word)
            if number is None:
                continue
            at = np.flatnonzero(flat.word_E == number)
            count_P = np.bincount(flat.piece_E[at], flat.count_E[at], pieces)
            count_F = np.bincount(flat.file_P[flat.piece_E[at]], flat.count_E[at], files)
            score_P += times * _bm25(count_P, flat.length_P)
            score_F += times * _bm25(count_F, length_F)
        best_F = np.maximum.reduceat(score_P, flat.first_F) if files else score_F
        return score_F.astype(np.float32), best_F.astype(np.float32)

    def _built(self) -> _Flat:
        if self._flat is None:
            names = sorted(self._files)  # equal files in equal order, whatever came first
            each = [self._files[name] for name in names]
            sizes = np.array([size for _, _, lengths in each for size in lengths], np.int64)
            pieces_F = np.array([len(lengths) for _, _, lengths in each], np.int64)
            words = np.concatenate([words for words, _, _ in each]) if each else np.zeros(0, np.int32)
            counts = np.concatenate([counts for _, counts, _ in each]) if each else np.zeros(0, np.float32)
            piece_E = np.repeat(np.arange(len(sizes)), sizes)
            lengths_P = np.bincount(piece_E, counts, len(sizes)).astype(np.float32)
            file_P = np.repeat(np.arange(len(names)), pieces_F)
            first_F = np.concatenate([[0], np.cumsum(pieces_F)[:-1]]).astype(np.int64) if each else pieces_F
            self._flat = _Flat(words, counts, piece_E, file_P, lengths_P, names, first_F)
        return self._flat


def _bm25(count_N: npt.NDArray[Any], length_N: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """What one word adds to each document."""
    among = np.count_nonzero(count_N)
    weight = np.log(1 + (len(count_N) - among + 0.5) / (among + 0.5))
    usual = max(1e-9, float(length_N.mean()))
    return np.asarray(weight * count_N * (K1 + 1) / (count_N + K1 * (1 - B + B * length_N / usual)))
