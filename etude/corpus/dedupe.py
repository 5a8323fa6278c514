"""Finds files that are the same, and files that are nearly the same.

Exact: equal when white space is taken away. Near: the Jaccard similarity of their sets of five-word runs is at
or above a threshold. MinHash signatures, compared band by band, propose pairs; each proposal is then checked on
the true sets, so nothing is dropped on an estimate. The first file in reading order stays, and two files that
stay are never near-duplicates of each other: a chain of small edits is not cut down to its first link.

Memory does not grow with the number of documents, but for one byte each. Digests, signatures and texts stay wherever
the caller keeps them, who shares a band with whom lies in files, and keys are sorted part by part.
"""

from __future__ import annotations

import hashlib
import os
import struct
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from etude.corpus.word_hashes import Hashes, hash_runs, hash_words, split_words

Signature = npt.NDArray[np.uint32]

RUN = 5  # words in a shingle
SIZE = 128  # numbers in a signature: the estimate is off by 0.04 at 0.7
BLOCK = 1024  # shingles hashed at once: 128 x 1024 numbers stay in the second-level cache
RECALL = 0.99  # wanted chance that a pair exactly at the threshold is proposed
SORTED_AT_ONCE = 100_000  # documents: some five megabytes
ROWS_AT_ONCE = 16_384  # signatures in memory: eight megabytes
DOUBT = 0.15  # a proposal whose estimate is this far below the threshold is not worth the true comparison


class Rows(Protocol):
    """Signatures or digests of all documents: an array, or rows of a file."""

    def __len__(self) -> int: ...

    def __getitem__(self, asked: Any, /) -> npt.NDArray[Any]:
        """The rows of a slice, or those with the given numbers."""


def exact_digest(text: str) -> bytes:
    """Sixteen bytes that are equal for texts that are equal but for white space."""
    return hashlib.blake2b("".join(text.split()).encode(), digest_size=16).digest()


def find_copies(digests: Rows, among: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Which of some documents have the digest of an earlier one of them. A digest is two numbers."""
    copies = np.zeros(len(digests), bool)
    for numbers, keys in _parts(lambda: _blocks(digests), len(digests)):
        wanted = among[numbers]
        numbers, keys = numbers[wanted], keys[wanted]
        # A stable sort by both numbers: of equal digests the first document comes first.
        order = np.lexsort((keys[:, 1], keys[:, 0]))
        ordered = keys[order]
        copies[numbers[order[1:]]] = (ordered[1:] == ordered[:-1]).all(axis=1)
    return copies


def _blocks(rows: Rows) -> Iterator[npt.NDArray[Any]]:
    return (rows[start : start + ROWS_AT_ONCE] for start in range(0, len(rows), ROWS_AT_ONCE))


def _parts(
    blocks: Callable[[], Iterator[Hashes]], documents: int
) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]]:
    """All documents in order and their keys, those with equal (first) keys in one part.

    The keys are read once for each part, and only those of one part are in memory.
    """
    count = max(1, -(-documents // SORTED_AT_ONCE))
    for part in range(count):
        numbers, keys, start = [], [], 0
        for block in blocks():
            mine = np.flatnonzero(block.reshape(len(block), -1)[:, 0] % np.uint64(count) == part)
            numbers.append(mine + start)
            keys.append(block[mine])
            start += len(block)
        if numbers:
            yield np.concatenate(numbers), np.concatenate(keys)


@dataclass(frozen=True)
class NearDuplicate:
    """Document `number` says nearly the same as `original`, which stays."""

    number: int
    original: int
    similarity: float


def shingles(text: str) -> Hashes:
    """The set of runs of five words, sorted."""
    return np.unique(hash_runs(hash_words(split_words(text)), RUN))


def jaccard(left: Hashes, right: Hashes) -> float:
    """Share of what two sorted sets have in common; two empty sets are equal."""
    both = len(np.intersect1d(left, right, assume_unique=True))
    return both / union if (union := len(left) + len(right) - both) else 1.0


class MinHash:
    """Signatures whose share of equal entries estimates the Jaccard similarity of the sets behind them."""

    def __init__(self) -> None:
        # Fixed numbers, so that signatures are equal everywhere; hash_words(...) serves as the generator.
        drawn = hash_words([f"minhash {number}".encode() for number in range(2 * SIZE)]) >> np.uint64(32)
        self._factors = drawn[:SIZE, None].astype(np.uint32) | np.uint32(1)  # odd: a permutation of 32-bit numbers
        self._shifts = drawn[SIZE:, None].astype(np.uint32)
        self._room = np.empty((SIZE, BLOCK), np.uint32)

    def sign(self, hashes: Hashes) -> Signature:
        signature = np.full(SIZE, 0xFFFF_FFFF, np.uint32)
        high = (hashes >> np.uint64(32)).astype(np.uint32)
        for start in range(0, len(high), BLOCK):
            block = high[start : start + BLOCK]
            room = self._room[:, : len(block)]
            np.multiply(self._factors, block, out=room)
            room += self._shifts
            np.minimum(signature, room.min(axis=1), out=signature)
        return signature


def choose_bands(threshold: float) -> tuple[int, int]:
    """(bands, rows): the most rows for which a pair at the threshold still shares a band with chance RECALL."""
    for rows in range(SIZE, 1, -1):
        bands = SIZE // rows
        if 1 - (1 - threshold**rows) ** bands >= RECALL:
            return bands, rows
    return SIZE, 1


def find_near_duplicates(
    signatures: Rows, threshold: float, shingles_of: Callable[[int], Hashes], room: Path | None = None
) -> list[NearDuplicate]:
    """The documents to drop, in order. Files that it needs lie in `room` and are gone afterwards."""
    return list(near_duplicates(signatures, threshold, shingles_of, room))


def near_duplicates(
    signatures: Rows, threshold: float, shingles_of: Callable[[int], Hashes], room: Path | None = None
) -> Iterator[NearDuplicate]:
    """The same, one by one."""
    with _Meetings(signatures, *choose_bands(threshold), room) as meetings:
        for number, places in meetings:
            proposed = np.array(sorted({other for place in places for other in meetings.kept(place)}), np.int64)
            original = _most_similar(number, proposed, signatures, threshold, shingles_of)
            if original is not None:
                yield original
                continue
            for place in places:
                meetings.keep(place, number)


def _most_similar(
    number: int,
    proposed: npt.NDArray[np.int64],
    signatures: Rows,
    threshold: float,
    shingles_of: Callable[[int], Hashes],
) -> NearDuplicate | None:
    """The proposed document that is near enough, tried from the most promising on."""
    if not len(proposed):
        return None
    estimates = (signatures[proposed] == signatures[number : number + 1]).mean(axis=1)
    own = None
    for choice in np.argsort(-estimates, kind="stable"):
        if estimates[choice] < threshold - DOUBT:
            break
        own = shingles_of(number) if own is None else own
        other = int(proposed[choice])
        # On the true sets: held against all pairs of 1,546 files, none was missed and none too many.
        if (similarity := jaccard(own, shingles_of(other))) >= threshold:
            return NearDuplicate(number, other, similarity)
    return None


class _Meetings:
    """Which documents share a band, and which of them stay.

    Those that share a band are a group. A group has a place in a file: how many of its members stay, then their
    numbers. In memory all groups of a large corpus would be gigabytes.
    """

    def __init__(self, signatures: Rows, bands: int, rows: int, room: Path | None) -> None:
        self._count = len(signatures)
        self._bands = [tempfile.TemporaryFile(dir=room) for _ in range(bands)]  # noqa: SIM115 closed by __exit__
        self._groups = tempfile.TemporaryFile(dir=room)  # noqa: SIM115
        for start in range(0, self._count, ROWS_AT_ONCE):
            block = signatures[start : start + ROWS_AT_ONCE]
            for band, file in enumerate(self._bands):
                file.write(hash_rows(block[:, band * rows : (band + 1) * rows]).tobytes())
        end = 0
        for band, keys in enumerate(self._bands):
            self._bands[band] = tempfile.TemporaryFile(dir=room)  # noqa: SIM115
            end = self._place_groups(keys, self._bands[band], end)
            keys.close()
        self._groups.truncate(4 * end)  # zeros: nobody stays yet

    def _place_groups(self, keys: IO[bytes], places: IO[bytes], end: int) -> int:
        """Writes for each key of a band the place of its group, -1 for a key that only one document has."""
        places.truncate(8 * self._count)
        for numbers, own in _parts(lambda: self._read(keys), self._count):
            order = np.argsort(own, kind="stable")
            edges = np.flatnonzero(np.diff(own[order]).astype(bool)) + 1
            members = np.diff(np.concatenate([[0], edges, [len(order)]]))
            room = np.where(members > 1, members + 1, 0)  # a number for each member, and the count
            placed = np.empty(len(own), np.int64)
            placed[order] = np.repeat(np.where(members > 1, end + np.cumsum(room) - room, -1), members)
            end += int(room.sum())
            self._scatter(numbers, placed, places)
        return end

    def _read(self, file: IO[bytes]) -> Iterator[Hashes]:
        """Eight bytes for each document, block by block."""
        file.seek(0)
        while data := file.read(8 * ROWS_AT_ONCE):
            yield np.frombuffer(data, np.uint64)

    def _scatter(self, numbers: npt.NDArray[np.int64], values: npt.NDArray[np.int64], file: IO[bytes]) -> None:
        """Sets the values of some documents, which are in order, in a file of all."""
        for start in range(0, self._count, ROWS_AT_ONCE):
            begin, end = np.searchsorted(numbers, (start, start + ROWS_AT_ONCE))
            file.seek(8 * start)
            block = np.frombuffer(file.read(8 * ROWS_AT_ONCE), np.int64).copy()
            block[numbers[begin:end] - start] = values[begin:end]
            file.seek(8 * start)
            file.write(block.tobytes())

    def __iter__(self) -> Iterator[tuple[int, list[int]]]:
        """Documents that share a band with another, in order, with the places of their groups."""
        for file in self._bands:
            file.seek(0)
        for start in range(0, self._count, ROWS_AT_ONCE):
            count = min(ROWS_AT_ONCE, self._count - start)
            places = np.stack([np.frombuffer(file.read(8 * count), np.int64) for file in self._bands], axis=1)
            for number in np.flatnonzero((places >= 0).any(axis=1)).tolist():
                yield start + number, [place for place in places[number].tolist() if place >= 0]

    def kept(self, place: int) -> tuple[int, ...]:
        """The members of a group that stay."""
        # Most groups keep one or two members: one read does.
        data = os.pread(self._groups.fileno(), 4 * 16, 4 * place)
        count = int.from_bytes(data[:4], "little")
        if count >= 16:
            data = os.pread(self._groups.fileno(), 4 * (count + 1), 4 * place)
        return struct.unpack_from(f"<{count}I", data, 4)

    def keep(self, place: int, number: int) -> None:
        count = int.from_bytes(os.pread(self._groups.fileno(), 4, 4 * place), "little") + 1
        os.pwrite(self._groups.fileno(), struct.pack("<I", number), 4 * (place + count))
        os.pwrite(self._groups.fileno(), struct.pack("<I", count), 4 * place)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in (*self._bands, self._groups):
            file.close()


def hash_rows(rows: npt.NDArray[np.uint32]) -> Hashes:
    """One number for each row."""
    keys = np.zeros(len(rows), np.uint64)
    for column in range(rows.shape[1]):
        keys = (keys ^ rows[:, column]) * np.uint64(0x9E37_79B9_7F4A_7C15)
        keys ^= keys >> np.uint64(29)
    return keys
