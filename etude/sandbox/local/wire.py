"""Messages over a Unix stream socket: a length, one JSON object, and the descriptors that it carries.

Both ends of every socket of this backend use it: orchestrator to launcher, orchestrator to sandbox. Strings keep
bytes that are not UTF-8 as lone surrogates, which JSON escapes. Knows no message by name.
"""

from __future__ import annotations

import array
import errno
import json
import os
import socket
import struct
from collections import deque
from collections.abc import Iterable
from typing import Any

# Both ends are bounded: a broken stream must not make the other end reserve gigabytes.
MAX_MESSAGE = 16 << 20
MAX_DESCRIPTORS = 8
_HEADER = struct.Struct("=II")  # length of the JSON, number of descriptors

Message = dict[str, Any]


def encode(message: Message, descriptors: int = 0) -> bytes:
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) > MAX_MESSAGE:
        raise OSError(errno.E2BIG, f"a request of {len(body)} bytes is longer than {MAX_MESSAGE}")
    return _HEADER.pack(len(body), descriptors) + body


def send(connection: socket.socket, message: Message, descriptors: tuple[int, ...] = ()) -> None:
    """Send all of it; for sockets that block."""
    data = encode(message, len(descriptors))
    sent = send_some(connection, data, descriptors)
    connection.sendall(memoryview(data)[sent:])


def send_some(connection: socket.socket, data: bytes | memoryview, descriptors: tuple[int, ...] = ()) -> int:
    """As much as fits now; the descriptors travel with the first byte."""
    return socket.send_fds(connection, [data], descriptors) if descriptors else connection.send(data)


class Reader:
    """Puts the stream of one socket back together into messages."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._data = bytearray()
        self._descriptors: deque[int] = deque()

    def fill(self) -> bool:
        """Take what is there (waits for some if the socket blocks); False at the end of the stream."""
        # Not `socket.recv_fds`: Python 3.11's ignores the flags, and programs would inherit the descriptors.
        space = socket.CMSG_SPACE(MAX_DESCRIPTORS * 4)
        data, rights, flags, _ = self._connection.recvmsg(1 << 16, space, getattr(socket, "MSG_CMSG_CLOEXEC", 0))
        for level, kind, numbers in rights:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                received = array.array("i")
                # A partial number can stand at the end when the kernel cut the list.
                received.frombytes(numbers[: len(numbers) - len(numbers) % received.itemsize])
                self._descriptors.extend(received)
        if flags & getattr(socket, "MSG_CTRUNC", 0):
            raise ValueError("descriptors were lost on the way: this process has too many open files")
        self._data += data
        return bool(data)

    def take(self) -> tuple[Message, tuple[int, ...]] | None:
        """The next whole message with its descriptors, which the caller then owns."""
        if len(self._data) < _HEADER.size:
            return None
        length, count = _HEADER.unpack_from(self._data)
        if length > MAX_MESSAGE or count > MAX_DESCRIPTORS:
            raise ValueError("the stream is not one of ours")
        end = _HEADER.size + length
        if len(self._data) < end:
            return None
        message = json.loads(bytes(self._data[_HEADER.size : end]))
        del self._data[:end]
        return message, tuple(self._descriptors.popleft() for _ in range(count))

    def close(self) -> None:
        close_all(self._descriptors)
        self._descriptors.clear()


def close_all(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
