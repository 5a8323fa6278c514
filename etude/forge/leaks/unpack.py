"""Everything that a file holds, as pieces to be searched: itself, what is packed in it, and what is packed in that.

Archives, compressed streams, packs of git objects, databases, bytecode, notebooks, blobs in base64, hex or base85,
and the printable stretches of anything else. By content and not by name: a wheel called `data.bin` is a wheel. What
inflates past its limits is a bomb: it is not searched further and named with the reason. Nothing is written to disk
and nothing that was found is run.
"""

from __future__ import annotations

import base64
import bz2
import contextlib
import io
import json
import lzma
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from etude.corpus.sources.archive import BROKEN, MOST_CONTENTS, ZIP_END
from etude.forge.leaks.bytecode import BadBytecode, Code, looks_like_bytecode, read_bytecode
from etude.forge.leaks.git_and_sqlite import Bomb, inflate, read_pack, read_rows
from etude.forge.leaks.shingles import is_text

TAR_MAGIC: Final = 257  # where a tar says that it is one
PLAUSIBLE: Final = 60  # characters from which on a blob may be hidden text

_STRINGS = re.compile(rb"[\t\n\r\x20-\x7e]{6,}")
_BASE64 = re.compile(rb"[A-Za-z0-9+/_-]{%d,}={0,2}(?:[\s\"'\\]{1,12}[A-Za-z0-9+/_-]{4,}={0,2})*" % PLAUSIBLE)
_BASE85 = re.compile(
    rb"[0-9A-Za-z!#$%%&()*+;<=>?@^_`{|}~-]{%d,}(?:\s{1,8}[0-9A-Za-z!#$%%&()*+;<=>?@^_`{|}~-]{5,})*" % 45
)
_ESCAPED_HEX = re.compile(rb"(?:\\x[0-9a-fA-F]{2}){24,}")
_HEX = re.compile(rb"(?:[0-9a-fA-F]{2}){30,}")
_STREAM = re.compile(rb"\x78[\x01\x5e\x9c\xda]|\x1f\x8b\x08|BZh[1-9]1AY|\xfd7zXZ\x00")


@dataclass(frozen=True)
class UnpackLimits:
    """What one file of the tree may cost."""

    file: int = 64 << 20  # bytes of a file that is read whole; a larger one is searched in stretches
    member: int = 32 << 20  # bytes of one member or stream
    total: int = 256 << 20  # bytes that all members and streams of a file may have together
    members: int = 30_000
    depth: int = 6  # archives in archives
    blobs: int = 200  # encoded blobs or embedded streams of one piece


@dataclass(frozen=True)
class UnpackedText:
    """Something that may hold code: a text, or the code objects of bytecode."""

    inner: str  # how to get there from the file: "" for itself, "!pkg/mod.py" for a member
    text: bytes = b""
    name: str = ""  # what it is called, for its ending
    codes: tuple[Code, ...] = ()


@dataclass(frozen=True)
class Unsearchable:
    """Something that could not be looked into, and why."""

    inner: str
    why: str
    cause: Literal["bomb", "locked"]


Found = UnpackedText | Unsearchable


def unpack(data: bytes, name: str, limits: UnpackLimits) -> Iterator[Found]:
    """Everything in a file's content."""
    try:
        yield from _Unpacking(limits).pieces(data, name, "", 0)
    except Bomb as bomb:
        yield Unsearchable("", str(bomb), "bomb")


def printable(data: bytes) -> bytes:
    """The readable stretches of binary data, as the program `strings` shows them."""
    return b"\n".join(_STRINGS.findall(data))


class _Unpacking:
    """What one file has left of its limits."""

    def __init__(self, limits: UnpackLimits) -> None:
        self._limits = limits
        self._total = limits.total
        self._members = limits.members

    def pieces(self, data: bytes, name: str, inner: str, depth: int) -> Iterator[Found]:
        if depth > self._limits.depth:
            yield Unsearchable(inner, f"archives are packed in each other more than {self._limits.depth} deep", "bomb")
            return
        # By content and in this order: a pack, a database and bytecode are known by their first bytes, a zip by its
        # end.
        for is_one, read in _CONTAINERS:
            if is_one(data):
                try:
                    yield from read(self, data, name, inner, depth)
                    return
                except Bomb as bomb:
                    yield Unsearchable(inner, str(bomb), "bomb")
                    return
                except (*BROKEN, lzma.LZMAError, BadBytecode):
                    pass  # it only began like one: search it as it is
        yield from self._plain(data, name, inner, depth)

    def _plain(self, data: bytes, name: str, inner: str, depth: int) -> Iterator[Found]:
        """A text with what is encoded in it; of anything else the printable stretches and embedded streams."""
        # Zero in every second byte means UTF-16 also where the mark is missing.
        if data[:2] in (b"\xff\xfe", b"\xfe\xff") or data[1:64:2].count(0) > 24:
            data = data.decode("utf-16" if data[0] in (0xFF, 0xFE) else "utf-16-le", "replace").encode()
        if is_text(data):
            yield UnpackedText(inner, data, name)
            if data[:1] in b"{[" and name.endswith((".ipynb", ".json", "")):
                yield from _notebook(data, inner)
            yield from self._encoded(data, inner, depth)
            return
        strings = printable(data)
        if strings:
            yield UnpackedText(inner, strings, name)
            yield from self._encoded(strings, inner, depth)
        yield from self._streams(data, inner, depth)

    def _encoded(self, data: bytes, inner: str, depth: int) -> Iterator[Found]:
        for count, (kind, blob) in enumerate(_blobs(data)):
            # Any number of stretches of a minified file can look encoded.
            if count == self._limits.blobs:
                return
            if _worth_a_look(blob):
                yield from self._inside(blob, "", f"{inner}!{kind}", depth)

    def _streams(self, data: bytes, inner: str, depth: int) -> Iterator[Found]:
        """Compressed streams anywhere in a binary file."""
        tried = end = 0
        for match in _STREAM.finditer(data):
            if tried == self._limits.blobs:
                return
            # A stream at the very start was tried as a container already.
            if match.start() < end or not match.start():
                continue
            tried += 1
            try:
                if data[match.start()] == 0x78:
                    found, end = inflate(data, match.start(), self._limits.member)
                else:
                    found = _decompressed(data[match.start() :], self._limits.member)
            except Bomb as bomb:
                yield Unsearchable(f"{inner}!stream at {match.start()}", str(bomb), "bomb")
                return
            except (*BROKEN, lzma.LZMAError):
                continue
            if len(found) >= PLAUSIBLE:
                yield from self._inside(found, "", f"{inner}!stream at {match.start()}", depth)

    def _inside(self, data: bytes, name: str, inner: str, depth: int) -> Iterator[Found]:
        """A member or stream, which counts against the file's limits."""
        # Counted over the whole file: many small members are a bomb as well.
        self._total -= len(data)
        self._members -= 1
        if self._total < 0:
            raise Bomb(f"it unpacks to more than {self._limits.total} bytes")
        if self._members < 0:
            raise Bomb(f"it holds more than {self._limits.members} members")
        yield from self.pieces(data, name, inner, depth + 1)

    def _zip(self, data: bytes, name: str, inner: str, depth: int) -> Iterator[Found]:
        # The last one: bytes that look like an end record may stand in a member.
        at = data.rfind(b"PK\x05\x06")
        if at < 0 or len(data) - at < ZIP_END.size:
            raise zipfile.BadZipFile("it has no end record")
        if ZIP_END.unpack_from(data, at)[5] > MOST_CONTENTS:
            raise Bomb("its list of contents is too long to be read safely")
        before = data[: max(0, data.find(b"PK\x03\x04"))]
        if len(before) >= PLAUSIBLE:  # a program, or anything else that was put in front
            yield from self._plain(before, name, inner, depth)
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for info in archive.infolist():
                place = f"{inner}!{_shown(info.filename)}"
                if info.is_dir():
                    continue
                if info.flag_bits & 1:
                    yield Unsearchable(place, "it is encrypted", "locked")
                elif info.file_size > self._limits.member:
                    # The size that it claims; what it really holds is counted below.
                    yield Unsearchable(place, f"it holds {info.file_size} bytes", "bomb")
                else:
                    try:
                        with archive.open(info) as member:
                            found = member.read(self._limits.member + 1)
                    except (*BROKEN, lzma.LZMAError):
                        continue
                    if len(found) > self._limits.member:
                        raise Bomb(f"{place} holds more than it says")
                    yield from self._inside(found, info.filename, place, depth)

    def _tar(self, data: bytes, name: str, inner: str, depth: int) -> Iterator[Found]:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            for member in archive:
                # tarfile keeps every member that it has seen, which a hostile archive can make any number of.
                archive.members.clear()  # type: ignore[attr-defined]
                # A sparse member can claim any size with no data behind it.
                if not member.isreg() or member.sparse is not None:
                    continue
                content = archive.extractfile(member)
                found = content.read(len(data)) if content else b""
                yield from self._inside(found, member.name, f"{inner}!{_shown(member.name)}", depth)

    def _stream(self, data: bytes, name: str, inner: str, depth: int) -> Iterator[Found]:
        found = _decompressed(data, min(self._limits.total, 4 * self._limits.member))
        stem = re.sub(r"\.(gz|bz2|xz|lzma|z)$", "", name)
        yield from self._inside(found, stem, f"{inner}!" if stem != name else inner, depth)

    def _deflated(self, data: bytes, name: str, inner: str, depth: int) -> Iterator[Found]:
        """A file that is one zlib stream, as loose git objects are."""
        found, end = inflate(data, 0, self._limits.member)
        kind, _, content = found.partition(b"\0")
        # A loose git object is a zlib stream with its kind and size in front.
        is_object = kind.split(b" ")[0] in (b"blob", b"tree", b"commit", b"tag")
        yield from self._inside(
            content if is_object else found, "", f"{inner}!git object" if is_object else inner, depth
        )
        if end < len(data):
            yield from self._streams(data, inner, depth)

    def _pack(self, data: bytes, name: str, inner: str, depth: int) -> Iterator[Found]:
        for label, content in read_pack(data, self._limits.member):
            yield from self._inside(content, "", f"{inner}!{label}", depth)

    def _database(self, data: bytes, name: str, inner: str, depth: int) -> Iterator[Found]:
        for number, row in enumerate(read_rows(data, self._limits.member)):
            if len(row) >= PLAUSIBLE:
                yield from self._inside(row, "", f"{inner}!row {number}", depth)
        # Deleted rows are still on the pages, in no table.
        yield from self._plain(data, name, inner, depth)

    def _bytecode(self, data: bytes, name: str, inner: str, depth: int) -> Iterator[Found]:
        yield UnpackedText(inner, name=name, codes=tuple(read_bytecode(data)))
        yield from self._plain(data, name, inner, depth)


Container = tuple[Callable[[bytes], bool], Callable[[_Unpacking, bytes, str, str, int], Iterator[Found]]]
_CONTAINERS: Final[tuple[Container, ...]] = (
    (lambda data: data[:4] == b"PACK", _Unpacking._pack),
    (lambda data: data.startswith(b"SQLite format 3\0"), _Unpacking._database),
    (looks_like_bytecode, _Unpacking._bytecode),
    (lambda data: data[:3] in (b"\x1f\x8b\x08", b"BZh") or data[:6] == b"\xfd7zXZ\0", _Unpacking._stream),
    (lambda data: data[TAR_MAGIC : TAR_MAGIC + 5] == b"ustar", _Unpacking._tar),
    # A zip may stand behind anything, such as the first line of a program.
    (lambda data: data[:2] == b"PK" or b"PK\x05\x06" in data[-66_000:], _Unpacking._zip),
    (lambda data: data[:1] == b"\x78" and data[1:2] in (b"\x01", b"\x5e", b"\x9c", b"\xda"), _Unpacking._deflated),
)


# How a compressed stream begins, and what reads it.
_STREAMS: Final[Mapping[bytes, Callable[[], Any]]] = {
    b"\x1f\x8b": lambda: zlib.decompressobj(wbits=31),
    b"BZh": bz2.BZ2Decompressor,
    # lzma can ask for any amount of memory in its header.
    b"\xfd7zXZ": lambda: lzma.LZMADecompressor(memlimit=256 << 20),
}


def _decompressed(data: bytes, limit: int) -> bytes:
    """A gzip, bzip2 or xz stream with those that follow it; `Bomb` when they hold more than `limit` bytes."""
    start = next(start for start in _STREAMS if data.startswith(start))
    parts: list[bytes] = []
    room = limit
    while data.startswith(start):
        stream = _STREAMS[start]()
        try:
            parts.append(stream.decompress(data, room + 1))
        except (*BROKEN, lzma.LZMAError):
            if not parts:
                raise
            break  # what was read until here counts: something broken behind it hides nothing
        room -= len(parts[-1])
        if room < 0:
            raise Bomb(f"a compressed stream holds more than {limit} bytes")
        if not stream.eof:
            break
        data = stream.unused_data
    return b"".join(parts)


def _blobs(data: bytes) -> Iterator[tuple[str, bytes]]:
    """What long stretches of base64, hex and base85 decode to."""
    if data.count(b"\\x") >= 24:
        for match in _ESCAPED_HEX.finditer(data):
            yield "hex", bytes.fromhex(match[0].replace(b"\\x", b"").decode())
    stretches = _stretches(data)
    for kind, pattern, decode in _ENCODINGS:
        end = 0
        for start, stop in stretches:
            found = pattern.search(data, max(start, end), stop) if stop > end else None
            whole = pattern.match(data, found.start()) if found else None  # with the lines that go on with it
            if whole is None:
                continue
            end = whole.end()
            with contextlib.suppress(ValueError):
                yield kind, decode(whole[0])


def _stretches(data: bytes) -> list[tuple[int, int]]:
    """Where there are long runs of the letters of such encodings; the patterns are slow on what has none."""
    breaks = np.flatnonzero(~_LETTERS[np.frombuffer(data, np.uint8)])
    breaks = np.concatenate([[-1], breaks, [len(data)]])
    long = np.flatnonzero(np.diff(breaks) > 45).tolist()
    found = [(int(breaks[at]) + 1, int(breaks[at + 1])) for at in long]
    return [
        (start, stop) for start, stop in found if len(set(data[start : min(stop, start + 200)])) >= 10
    ]  # rulers have few


def _from_base64(letters: bytes) -> bytes:
    letters = re.sub(rb"[^A-Za-z0-9+/_-]", b"", letters.replace(b"\\n", b"")).translate(_URL_SAFE)
    # A cut blob is decoded as far as it goes.
    return base64.b64decode(letters[: len(letters) // 4 * 4])


_ENCODINGS: Final[tuple[tuple[str, re.Pattern[bytes], Callable[[bytes], bytes]], ...]] = (
    ("hex", _HEX, lambda letters: bytes.fromhex(letters.decode())),
    ("base64", _BASE64, _from_base64),
    ("base85", _BASE85, lambda letters: base64.b85decode(re.sub(rb"\s", b"", letters))),
)
_LETTERS: Final = np.zeros(256, np.bool_)
_LETTERS[[*range(48, 58), *range(65, 91), *range(97, 123), *b"!#$%&()*+-;<=>?@^_`{|}~/"]] = True
_URL_SAFE: Final = bytes.maketrans(b"-_", b"+/")


def _worth_a_look(blob: bytes) -> bool:
    """Whether decoded bytes are text or begin like something that we can unpack; chance gives neither."""
    # Text, or something that unpacks: random bytes decode to random bytes.
    return len(blob) >= PLAUSIBLE // 2 and (
        (is_text(blob) and _printable(blob)) or any(is_one(blob) for is_one, _ in _CONTAINERS)
    )


def _printable(blob: bytes) -> bool:
    head = blob[:512]
    return sum(32 <= byte < 127 or byte in (9, 10, 13) for byte in head) * 10 >= 9 * len(head)


def _notebook(data: bytes, inner: str) -> Iterator[Found]:
    """The cells of a notebook, and all long strings of any other JSON, as texts of their own."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return
    texts: list[str] = []
    waiting = [found]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            texts.append(value)
        elif isinstance(value, list) and value and all(isinstance(each, str) for each in value):
            texts.append("".join(value))
        elif isinstance(value, list):
            waiting.extend(value)
        elif isinstance(value, dict):
            waiting.extend(value.values())
    joined = "\n".join(reversed([text for text in texts if len(text) >= PLAUSIBLE]))
    if joined:
        yield UnpackedText(f"{inner}!strings", joined.encode("utf-8", "replace"), ".py")


def _shown(name: str) -> str:
    """A hostile name as it may be shown."""
    # Names in archives are chosen by whoever packed them, and are printed.
    return ascii(name)[1:-1][:200]
