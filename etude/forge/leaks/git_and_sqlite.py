"""Contents of two formats that keep text in pieces: packs of git objects and pages of SQLite databases.

Both are read here and not by the programs that own them: nothing hostile reaches a library that was not written for
it, a pack without its index or under another name is still read, and rows that were deleted from a database but not
overwritten are seen. Every length is checked; what does not fit ends the reading, and what was read until then counts.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Final

MOST_OBJECTS: Final = 200_000
BASES: Final = 64 << 20  # bytes of objects kept to resolve deltas against
LONGEST_CHAIN: Final = 20_000  # overflow pages of one row
TYPES: Final = {1: "commit", 2: "tree", 3: "blob", 4: "tag"}
OFFSET_DELTA, NAMED_DELTA = 6, 7


class Bomb(Exception):
    """It unpacks to more than it may; the text says what."""


def inflate(data: bytes, start: int, limit: int) -> tuple[bytes, int]:
    """One zlib stream and where it ends. `zlib.error` for what is none, `Bomb` above `limit` bytes."""
    stream = zlib.decompressobj()
    window = memoryview(data)[start:]
    found = stream.decompress(window, limit + 1)
    if len(found) > limit:
        raise Bomb(f"a compressed stream holds more than {limit} bytes")
    if not stream.eof:
        raise zlib.error("the stream is cut")
    return found, len(data) - len(stream.unused_data)


def read_pack(data: bytes, limit: int) -> Iterator[tuple[str, bytes]]:
    """(kind and number, content) of every object, deltas applied. Content is at most `limit` bytes for each."""
    if len(data) < 12 or data[:4] != b"PACK":
        return
    # The pack's own count may be wrong; it is only a bound.
    count = min(int.from_bytes(data[8:12], "big"), MOST_OBJECTS)
    kept: dict[int, tuple[str, bytes]] = {}  # by place in the pack
    room = BASES
    at = 12
    for number in range(count):
        start = at
        try:
            kind, size, at = _object_header(data, at)
            base = -1
            if kind == OFFSET_DELTA:
                back, at = _offset(data, at)
                base = start - back
            elif kind == NAMED_DELTA:
                at += 20
            if size > limit:
                raise Bomb(f"object {number} of a pack holds {size} bytes")
            content, at = inflate(data, at, limit)
        # A cut pack ends here; what was read until then counts.
        except (IndexError, zlib.error):
            return
        if kind in TYPES:
            made = (TYPES[kind], content)
        elif base in kept:
            made = (kept[base][0], _apply(kept[base][1], content, limit))
        else:  # its base lies elsewhere or was dropped: what the delta itself says is looked at
            made = ("delta", content)
        # Bases are kept up to 64 MB: a delta whose base was dropped is searched as it is.
        if len(made[1]) <= room:
            kept[start] = made
            room -= len(made[1])
        yield f"{made[0]} {number}", made[1]


def _object_header(data: bytes, at: int) -> tuple[int, int, int]:
    byte = data[at]
    kind, size, shift = byte >> 4 & 7, byte & 15, 4
    at += 1
    while byte & 0x80:
        byte = data[at]
        size |= (byte & 0x7F) << shift
        shift += 7
        at += 1
        if shift > 60:
            raise IndexError("no size is that long")
    return kind, size, at


def _offset(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    found = byte & 0x7F
    at += 1
    while byte & 0x80:
        byte = data[at]
        found = (found + 1) << 7 | byte & 0x7F
        at += 1
        if found > len(data):
            raise IndexError("it points before the pack")
    return found, at


def _apply(base: bytes, delta: bytes, limit: int) -> bytes:
    """A delta's result; an impossible one ends where it stops making sense."""
    made = bytearray()
    try:
        at = _skip_number(delta, _skip_number(delta, 0))
        while at < len(delta) and len(made) <= limit:
            code = delta[at]
            at += 1
            if code & 0x80:
                place = size = 0
                for bit in range(4):
                    if code & 1 << bit:
                        place |= delta[at] << 8 * bit
                        at += 1
                for bit in range(3):
                    if code & 1 << 4 + bit:
                        size |= delta[at] << 8 * bit
                        at += 1
                made += base[place : place + (size or 0x10000)]
            else:
                made += delta[at : at + code]
                at += code
    except IndexError:
        pass
    if len(made) > limit:
        raise Bomb(f"a delta in a pack makes more than {limit} bytes")
    return bytes(made)


def _skip_number(data: bytes, at: int) -> int:
    while data[at] & 0x80:
        at += 1
    return at + 1


def read_rows(data: bytes, limit: int) -> Iterator[bytes]:
    """The rows of a SQLite database, each as its bytes with overflow pages joined; text in them is text.

    Rows of tables and of indexes alike, also those on pages that no table uses any more.
    """
    if not data.startswith(b"SQLite format 3\0") or len(data) < 512:
        return
    size = int.from_bytes(data[16:18], "big")
    size = 65536 if size == 1 else size
    if size < 512 or size & size - 1:
        return
    usable = size - data[20]
    for number in range(len(data) // size):
        page = data[number * size : (number + 1) * size]
        at = 100 if number == 0 else 0
        kind = page[at]
        # Also pages that no table uses any more: deleted rows stay there until they are overwritten.
        if kind not in (0x0D, 0x0A, 0x02):  # leaves of tables, leaves and inner nodes of indexes
            continue
        cells = int.from_bytes(page[at + 3 : at + 5], "big")
        first = at + (12 if kind == 0x02 else 8)
        for cell in range(min(cells, (size - first) // 2)):
            (place,) = struct.unpack_from(">H", page, first + 2 * cell)
            found = _row(data, page, place, kind, size, usable, limit)
            if found:
                yield found


def _row(data: bytes, page: bytes, place: int, kind: int, size: int, usable: int, limit: int) -> bytes:
    try:
        if kind == 0x02:
            place += 4
        length, place = _varint(page, place)
        if kind == 0x0D:
            _, place = _varint(page, place)
    except IndexError:
        return b""
    # As SQLite lays rows out: above this size a row continues on overflow pages.
    most = usable - 35 if kind == 0x0D else (usable - 12) * 64 // 255 - 23
    if length <= most:
        return page[place : place + length]
    if length > limit:
        raise Bomb(f"a row of a database holds {length} bytes")
    least = (usable - 12) * 32 // 255 - 23
    local = least + (length - least) % (usable - 4)
    local = local if local <= most else least
    parts = [page[place : place + local]]
    following = int.from_bytes(page[place + local : place + local + 4], "big")
    left = length - local
    # Bounded, as a damaged chain can lead in a circle.
    for _ in range(LONGEST_CHAIN):
        start = (following - 1) * size
        if left <= 0 or following < 1 or start + size > len(data):
            break
        take = min(left, usable - 4)
        parts.append(data[start + 4 : start + 4 + take])
        left -= take
        following = int.from_bytes(data[start : start + 4], "big")
    return b"".join(parts)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    found = 0
    for step in range(9):
        byte = data[at + step]
        if step == 8:
            return found << 8 | byte, at + 9
        found = found << 7 | byte & 0x7F
        if not byte & 0x80:
            return found, at + step + 1
    return found, at + 9
