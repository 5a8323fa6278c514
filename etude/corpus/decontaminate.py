"""Finds documents that contain texts which must not be learnt: benchmarks, held-out tasks, their tests.

A document is contaminated when it shares a run of n words in a row with any such text. A text with fewer than n
words must occur as a whole; one with fewer than a handful is ignored and counted, since it would hit everything.
Licence headers of the texts are left out: they prove nothing about the code below them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from etude.core.errors import EtudeError
from etude.corpus.document import decode
from etude.corpus.licenses import without_header
from etude.corpus.sources.folder import read_folder
from etude.corpus.word_hashes import Hashes, hash_runs, hash_words, split_words

SHORTEST = 5  # words of a text that can be looked for
LARGEST = 20_000_000  # bytes of one text


@dataclass(frozen=True)
class Hit:
    """Where a document overlaps with a forbidden text."""

    text: str  # the name of the forbidden text
    words: str  # the words they share


class Forbidden:
    """The texts to look for, as sorted hashes of their word runs."""

    def __init__(self, texts: Sequence[tuple[str, str]], ngram: int) -> None:
        """`texts` are (name, text); `ngram` is how many words in a row count as an overlap."""
        self.names = [name for name, _ in texts]
        self.ignored: list[str] = []
        found: dict[int, list[tuple[int, Hashes]]] = {}
        for number, (name, text) in enumerate(texts):
            words = hash_words(split_words(without_header(text)))
            if len(words) < SHORTEST:
                self.ignored.append(name)
                continue
            found.setdefault(min(ngram, len(words)), []).append((number, hash_runs(words, ngram)))
        self._runs = [(length, *_sorted_runs(parts)) for length, parts in sorted(found.items(), reverse=True)]

    def find(self, text: str) -> Hit | None:
        """The first overlap of a document, or None."""
        words = split_words(text)
        return self.find_in(words, hash_words(words))

    def find_in(self, words: Sequence[bytes], hashes: Hashes) -> Hit | None:
        """The same for words that were hashed already."""
        for length, runs, owners in self._runs:
            if len(words) < length:
                continue
            mine = hash_runs(hashes, length)
            at = np.minimum(np.searchsorted(runs, mine), len(runs) - 1)
            hits = np.flatnonzero(runs[at] == mine)
            if len(hits):
                start = int(hits[0])
                shared = b" ".join(words[start : start + length]).decode("utf-8", "replace")
                return Hit(self.names[int(owners[at[start]])], shared)
        return None


def _sorted_runs(parts: list[tuple[int, Hashes]]) -> tuple[Hashes, npt.NDArray[np.int64]]:
    """The distinct runs of all texts of one length, sorted, and the first text that each belongs to."""
    runs, first = np.unique(np.concatenate([hashes for _, hashes in parts]), return_index=True)
    owners = np.concatenate([np.full(len(hashes), number) for number, hashes in parts])
    return runs, owners[first]


def read_texts(paths: Sequence[str]) -> list[tuple[str, str]]:
    """(name, text) of every file given or below a folder given."""
    texts: list[tuple[str, str]] = []
    for given in paths:
        path = Path(given).expanduser()
        if not path.exists():
            raise EtudeError(f"corpus.decontaminate names {path}, which does not exist: correct the path")
        root, only = (path, None) if path.is_dir() else (path.parent, path.name)
        found = 0
        for file in read_folder(root, lambda name, only=only: only is None or name == only, LARGEST):  # type: ignore[misc]
            text, problem = ("", file.problem) if file.problem else decode(file.data)
            if problem and only:
                raise EtudeError(f"corpus.decontaminate names {path}, which cannot be used: {problem}")
            if not problem:
                texts.append((str(path) if only else f"{path}/{file.path}", text))
                found += 1
        # Nothing to look for would make every corpus look clean.
        if not found:
            raise EtudeError(f"corpus.decontaminate names {path}, which holds no text: correct the path")
    return texts


def digest(texts: Sequence[tuple[str, str]]) -> str:
    """Changes whenever a forbidden text does, so that an old corpus is not taken for a clean one."""
    return hashlib.sha256("\0".join(text for _, text in texts).encode()).hexdigest()[:16]
