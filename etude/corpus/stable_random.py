"""Choices that look random and are the same on every machine, in every version of Python and NumPy.

A file keeps its side of the split and a resumed mix keeps its order only if nothing here ever changes.
Knows nothing of documents.
"""

from __future__ import annotations

import hashlib
import json

WORD = 0xFFFF_FFFF_FFFF_FFFF
ROUNDS = 6  # of the Feistel network; four would do for large sizes, tiny ones mix slower


def stable_hash(*parts: str | int) -> int:
    """64 bits that depend on the parts alone, and on where one part ends and the next begins."""
    return int.from_bytes(hashlib.blake2b(json.dumps(parts).encode(), digest_size=8).digest(), "little")


def stable_share(*parts: str | int) -> float:
    """A number in [0, 1) that depends on the parts alone."""
    return (stable_hash(*parts) >> 11) / 2**53


def permuted(index: int, size: int, key: int) -> int:
    """Where a shuffle of range(size) sends `index`: one element in constant time and memory, any order of asking.

    A Feistel network is a bijection on its power-of-four domain whatever its round function; walking on until
    the value falls below `size` keeps it a bijection there.
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    value = index
    while True:
        left, right = value >> half, value & mask
        for turn in range(ROUNDS):
            left, right = right, left ^ (_mix(right + _mix(key + turn)) & mask)
        value = left << half | right
        if value < size:
            return value


def _mix(value: int) -> int:
    """The finaliser of splitmix64: every bit of the input reaches every bit of the output."""
    value = (value + 0x9E37_79B9_7F4A_7C15) & WORD
    value = (value ^ (value >> 30)) * 0xBF58_476D_1CE4_E5B9 & WORD
    value = (value ^ (value >> 27)) * 0x94D0_49BB_1331_11EB & WORD
    return value ^ (value >> 31)
