"""Values on their way between two processes that do not trust each other: plain data as JSON, the rest by number.

What arrives is built here, from exact builtin types only: an object that claims to be equal to everything arrives as
its plain value or as a number to ask about. Knows no socket; `remote_objects` and `code_process` say what
their numbers mean.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

LARGEST: Final = 64 << 20  # bytes of one message
# Encoding recurses, and so does JSON: a deeper value would end in a RecursionError.
DEEPEST: Final = 200  # containers in one another
_SAFE: Final = 1 << 63
_HEADER: Final = struct.Struct("=I")

Other = Callable[[Any], list[Any]]  # how an end spells what is not plain: [tag, ...]
Read = Callable[[list[Any]], Any]  # and reads what the other end spelled so


def encode(value: Any, other: Other, depth: int = 0) -> Any:
    """A value as JSON. A subclass of a builtin type is sent as the builtin value in it."""
    if depth > DEEPEST:
        raise ValueError(f"a value is nested more than {DEEPEST} deep")
    if value is None or value is True or value is False:
        return value
    kind = type(value)
    if kind is str:
        return value
    if isinstance(value, int):
        # Through int itself: a subclass may have overridden __int__ and __index__.
        plain = int.__int__(value)
        # Larger ones in hexadecimal: decimal text has a limit of digits in Python.
        return plain if -_SAFE < plain < _SAFE else ["int", format(plain, "x")]
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, str):
        return str.__str__(value)
    for tag, base in _SEQUENCES.items():
        if isinstance(value, base):
            return [tag, [encode(item, other, depth + 1) for item in base.__iter__(value)]]
    if isinstance(value, dict):
        pairs = dict.items(value)
        return ["dict", [[encode(key, other, depth + 1), encode(item, other, depth + 1)] for key, item in pairs]]
    if isinstance(value, bytes | bytearray):
        return ["bytearray" if isinstance(value, bytearray) else "bytes", bytes(value).hex()]
    # By exact type: a subclass could answer `.real` differently each time.
    if kind is complex:
        return ["complex", value.real, value.imag]
    if kind is range:
        return ["range", value.start, value.stop, value.step]
    return other(value)


def decode(data: Any, read: Read) -> Any:
    """What `encode` of the other end meant. Anything else is a `ValueError` or `TypeError`."""
    if not isinstance(data, list):
        # We never send one.
        if isinstance(data, dict):
            raise ValueError("not one of our messages")
        return data
    tag = data[0]
    if tag in _SEQUENCES:
        return _SEQUENCES[tag]([decode(item, read) for item in data[1]])
    match tag:
        case "dict":
            return {decode(key, read): decode(item, read) for key, item in data[1]}
        case "int":
            return int(data[1], 16)
        case "bytes":
            return bytes.fromhex(data[1])
        case "bytearray":
            return bytearray.fromhex(data[1])
        case "complex":
            return complex(data[1], data[2])
        case "range":
            return range(*data[1:])
    return read(data)


def encode_call(given: Sequence[Any], named: Mapping[str, Any], other: Other) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call, each encoded."""
    return [encode(each, other) for each in given], {name: encode(each, other) for name, each in named.items()}


def decode_call(given: Sequence[Any], named: Mapping[str, Any], read: Read) -> tuple[list[Any], dict[str, Any]]:
    return [decode(each, read) for each in given], {name: decode(each, read) for name, each in named.items()}


_SEQUENCES: Final[dict[str, Any]] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}


class Closed(Exception):
    """The other process is gone."""


def send(connection: socket.socket, message: Any) -> None:
    body = json.dumps(message).encode()
    if len(body) > LARGEST:
        raise ValueError(f"a message of {len(body)} bytes is longer than {LARGEST}")
    try:
        connection.sendall(_HEADER.pack(len(body)) + body)
    except OSError as error:
        raise Closed from error


def receive(connection: socket.socket) -> Any:
    """The next message; `Closed` at the end, `ValueError` for what is not one."""
    (length,) = _HEADER.unpack(_exactly(connection, _HEADER.size))
    if length > LARGEST:
        raise ValueError(f"a message of {length} bytes is longer than {LARGEST}")
    return json.loads(_exactly(connection, length))


def _exactly(connection: socket.socket, count: int) -> bytes:
    parts = []
    while count:
        try:
            part = connection.recv(min(count, 1 << 20))
        except OSError as error:
            raise Closed from error
        if not part:
            raise Closed
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
