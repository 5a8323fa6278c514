"""Strict reading of the head of an HTTP/1.1 message: whatever two readers could take differently is refused.

One `Host`, one way to tell a body's length, no folded lines, no bare line ends, no control characters. Knows no socket.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

MOST_HEAD: Final = 32 << 10  # bytes
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)
_TARGET: Final = re.compile(r"[\x21-\x7e]+", re.ASCII)
_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
# Of one connection only, or ways to another protocol on it.
HOP: Final = frozenset(
    ("connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "http2-settings")
)
# What a program may not send (somebody's name or way), and what may not come back.
STRIPPED: Final = frozenset(
    ("authorization", "cookie", "cookie2", "forwarded", "via", "expect", "x-real-ip", "origin-isolation")
)
STRIPPED_BACK: Final = frozenset(("set-cookie", "set-cookie2", "alt-svc", "via", "strict-transport-security"))


class BadMessage(Exception):
    """A head that is not read."""


@dataclass(frozen=True)
class Head:
    first: tuple[str, str, str]
    headers: tuple[tuple[str, str], ...]  # names in lower case
    length: int | None = field(default=None)  # of the body; None: chunked, or until the end for a response
    chunked: bool = False

    def get(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key == name]

    def kept(self, dropped: frozenset[str]) -> list[tuple[str, str]]:
        """Headers that go on: without those of the connection, and those that the connection names."""
        named = {word.strip().lower() for value in self.get("connection") for word in value.split(",")}
        gone = HOP | dropped | named | {"host", "content-length"}
        return [
            (key, value)
            for key, value in self.headers
            if key not in gone and not key.startswith(("proxy-", "x-forwarded-"))
        ]


def read_head(data: bytes, *, request: bool) -> Head:
    """`data` ends with the empty line."""
    if not data.endswith(b"\r\n\r\n") or b"\n" in data.replace(b"\r\n", b"") or b"\r" in data.replace(b"\r\n", b""):
        raise BadMessage("its lines do not end as they must")
    lines = data[:-4].decode("latin-1").split("\r\n")
    first = lines[0].split(" ", 2) if not request else lines[0].split(" ")
    if len(first) == 2 and not request:
        first.append("")
    if len(first) != 3:
        raise BadMessage("its first line has not three parts")
    if request:
        if not _TOKEN.fullmatch(first[0]) or not _TARGET.fullmatch(first[1]):
            raise BadMessage("its first line holds what it may not")
        if first[2] not in ("HTTP/1.1", "HTTP/1.0"):
            raise BadMessage("only HTTP/1.1 is spoken here")
    elif not re.fullmatch(r"HTTP/1\.[01]", first[0]) or not re.fullmatch(r"[1-5][0-9]{2}", first[1]):
        raise BadMessage("its first line is no status")
    headers = []
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon or not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
            raise BadMessage("a header holds what it may not")
        headers.append((name.lower(), value.strip(" \t")))
    head = Head((first[0], first[1], first[2]), tuple(headers))
    lengths, codings = head.get("content-length"), head.get("transfer-encoding")
    if len(lengths) > 1 or len(codings) > 1 or (lengths and codings):
        raise BadMessage("it tells the length of its body twice")
    if codings and (codings[0].lower() != "chunked" or first[2] == "HTTP/1.0"):
        raise BadMessage("its body comes in a coding that is not known here")
    if lengths and not re.fullmatch(r"[0-9]{1,15}", lengths[0], re.ASCII):
        raise BadMessage("the length of its body is no number")
    length = int(lengths[0]) if lengths else (0 if request and not codings else None)
    return Head(head.first, head.headers, length, bool(codings))


def chunk_size(line: bytes) -> int:
    """Of a chunk's first line, without extensions."""
    if not re.fullmatch(rb"[0-9A-Fa-f]{1,12}\r\n", line):
        raise BadMessage("a chunk has no length")
    return int(line, 16)
