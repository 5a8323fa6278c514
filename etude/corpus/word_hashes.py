"""Texts as sequences of word hashes, and hashes of every run of n words, vectorised.

Case, white space and punctuation do not count: reformatted code is the same code. Duplicates and contamination
are both found through these numbers.
"""

from __future__ import annotations

import re
import zlib

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]

WORD = re.compile(rb"[0-9a-z_\x80-\xff]+")
BASE = np.uint64(0x9E37_79B9_7F4A_7C15)


def split_words(text: str) -> list[bytes]:
    return WORD.findall(text.lower().encode())


def hash_words(words: list[bytes]) -> Hashes:
    """One number for each word. Python's own hash differs from process to process; this one never does."""
    return _mix(np.fromiter(map(zlib.crc32, words), np.uint64, len(words)))


def hash_runs(words: Hashes, length: int) -> Hashes:
    """One number for each run of `length` words in a row; a shorter text is one run as a whole."""
    length = min(length, len(words))
    if length == 0:
        return np.empty(0, np.uint64)
    runs = words[: len(words) - length + 1].copy()
    for start in range(1, length):
        runs *= BASE  # modulo 2**64, which is what the wrap-around gives
        runs += words[start : len(words) - length + 1 + start]
    return _mix(runs)


def _mix(values: Hashes) -> Hashes:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
    return values ^ (values >> np.uint64(31))
