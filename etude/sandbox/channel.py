"""The asyncio ends of a sandbox's sockets and pipes: numbered requests, and streams that are kept within bounds.

Knows the shape of messages (`wire.py`) and nothing of what they ask for.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable
from typing import Final, Self

from etude.sandbox import wire
from etude.sandbox.base import SandboxFailure

_READ: Final = 1 << 16

Answer = tuple[wire.Message, tuple[int, ...]]


class Channel:
    """One end of a socket in an event loop. Messages with an `id` answer requests; all others go to `on_event`."""

    def __init__(self, connection: socket.socket, name: str, on_event: Callable[[wire.Message], None]) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._name = name
        self._on_event = on_event
        self._reader = wire.Reader(connection)
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, deque[asyncio.Future[Answer]]] = {}
        self._unsent: deque[tuple[memoryview, tuple[int, ...]]] = deque()
        self._last = 0
        self.failure: SandboxFailure | None = None
        self._loop.add_reader(connection.fileno(), self._receive)

    def ask(self, message: wire.Message, descriptors: tuple[int, ...] = (), answers: int = 1) -> _Answers:
        """Send a request that gets `answers` messages back. The descriptors stay the caller's."""
        if self.failure is not None:
            raise self.failure
        self._last += 1
        self.tell({**message, "id": self._last}, descriptors)
        futures = [self._loop.create_future() for _ in range(answers)]
        self._waiting[self._last] = deque(futures)
        return _Answers(self._last, futures)

    def tell(self, message: wire.Message, descriptors: tuple[int, ...] = ()) -> None:
        if self.failure is not None:
            raise self.failure
        # What cannot be sent at once needs descriptors that outlive the caller's.
        data = memoryview(wire.encode(message, len(descriptors)))
        if not self._unsent:
            data, descriptors = self._send(data, descriptors)
            if not data:
                return
            self._loop.add_writer(self._connection.fileno(), self._send_rest)
        self._unsent.append((data, tuple(os.dup(each) for each in descriptors)))

    def close(self, failure: SandboxFailure) -> None:
        """Every request still waiting fails with this, and every later one."""
        if self.failure is not None:
            return
        self.failure = failure
        self._loop.remove_reader(self._connection.fileno())
        self._loop.remove_writer(self._connection.fileno())
        self._connection.close()
        self._reader.close()
        for _, descriptors in self._unsent:
            _close(descriptors)
        self._unsent.clear()
        for futures in self._waiting.values():
            for future in futures:
                if not future.done():
                    future.set_exception(failure)
                    future.exception()  # nobody may be waiting for this one any more
        self._waiting.clear()
        self._on_event = _ignore  # our owner's, who holds us: uncut, both would wait for a garbage collection

    def _send(self, data: memoryview, descriptors: tuple[int, ...]) -> tuple[memoryview, tuple[int, ...]]:
        """What is left to send."""
        try:
            sent = wire.send_some(self._connection, data, descriptors)
        except BlockingIOError:
            return data, descriptors
        except OSError:  # the reader sees the end and says so
            return data[:0], ()
        return data[sent:], ()

    def _send_rest(self) -> None:
        while self._unsent:
            data, descriptors = self._unsent.popleft()
            left, kept = self._send(data, descriptors)
            if not kept:
                _close(descriptors)
            if left:
                self._unsent.appendleft((left, kept))
                return
        self._loop.remove_writer(self._connection.fileno())

    def drain(self) -> None:
        """Take what the other end, now dead, had still sent: its last words may say why."""
        while self.failure is None and self._receive():
            pass

    def _receive(self) -> bool:
        """Whether something was there."""
        try:
            more = self._reader.fill()
            while self.failure is None and (message := self._reader.take()) is not None:
                self._deliver(*message)
        except BlockingIOError:
            return False
        except OSError:  # it was killed with something still unread
            more = False
        except ValueError as error:
            self.close(SandboxFailure("protocol", f"{self._name}: {error}"))
            return False
        if not more:
            self.close(SandboxFailure("died", f"{self._name} ended unexpectedly"))
        return more

    def _deliver(self, message: wire.Message, descriptors: tuple[int, ...]) -> None:
        futures = self._waiting.get(message.get("id", 0))
        if futures is None:
            _close(descriptors)
            self._on_event(message)
            return
        future = futures.popleft()
        if not futures:
            del self._waiting[message["id"]]
        if future.done():  # cancelled
            _close(descriptors)
        else:
            future.set_result((message, descriptors))

    def forget(self, number: int) -> None:
        """Nobody waits for the answers to this request any more; they are dropped when they come."""
        for future in self._waiting.get(number, ()):
            future.cancel()


class _Answers:
    """The answers to one request, in order."""

    def __init__(self, number: int, futures: list[asyncio.Future[Answer]]) -> None:
        self.number = number
        self._futures = futures

    def __getitem__(self, index: int) -> asyncio.Future[Answer]:
        return self._futures[index]


def _ignore(message: wire.Message) -> None:
    pass


def _close(descriptors: tuple[int, ...]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


class Collector:
    """Reads one stream of a program as it comes, and keeps at most `limit` bytes: its start and its end."""

    def __init__(self, descriptor: int, limit: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._start = bytearray()
        self._end: deque[bytes] = deque()
        self._end_size = 0
        self._dropped = 0
        self._open = True
        self._loop.add_reader(descriptor, self._read)

    @property
    def truncated(self) -> bool:
        return self._dropped > 0

    def take(self) -> bytes:
        """What was kept since the last call."""
        end = b"".join(self._end)
        if self._dropped:
            said = f"\n[... {self._dropped} bytes left out ...]\n".encode()
            text = bytes(self._start) + said + end
        else:
            text = bytes(self._start) + end
        self._start.clear()
        self._end.clear()
        self._end_size = self._dropped = 0
        return text

    def finish(self) -> None:
        """Take what is still in the pipe and close it. Called when the program is dead: nothing can follow."""
        while self._open and self._read():
            pass
        self.close()

    def close(self) -> None:
        if self._open:
            self._open = False
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)

    def _read(self) -> bool:
        try:
            data = os.read(self._descriptor, _READ)
        except BlockingIOError:
            return False
        if not data:
            self.close()
            return False
        self._keep(data)
        return True

    def _keep(self, data: bytes) -> None:
        room = self._limit - self._limit // 2 - len(self._start)
        if room > 0:
            self._start += data[:room]
            data = data[room:]
        if data:
            self._end.append(data)
            self._end_size += len(data)
        while self._end_size > self._limit // 2:
            first = self._end.popleft()
            excess = min(len(first), self._end_size - self._limit // 2)
            self._end_size -= excess
            self._dropped += excess
            if excess < len(first):
                self._end.appendleft(first[excess:])


class Feeder:
    """Writes to a program's standard input as fast as it reads; a program that does not is no error."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._left: deque[memoryview] = deque()
        self._ending = False
        self._open = True

    def feed(self, data: bytes) -> None:
        if self._open and data:
            if not self._left:
                self._loop.add_writer(self._descriptor, self._write)
            self._left.append(memoryview(data))

    def end(self) -> None:
        """Close once everything is written."""
        self._ending = True
        if not self._left:
            self.close()

    def close(self) -> None:
        if self._open:
            self._open = False
            self._loop.remove_writer(self._descriptor)
            self._left.clear()
            os.close(self._descriptor)

    def _write(self) -> None:
        try:
            while self._left:
                written = os.write(self._descriptor, self._left[0][:_READ])
                self._left[0] = self._left[0][written:]
                if not self._left[0]:
                    self._left.popleft()
        except BlockingIOError:
            return
        except BrokenPipeError:
            self.close()
            return
        self._loop.remove_writer(self._descriptor)
        if self._ending:
            self.close()


class Signal:
    """A pipe over which one side tells the other, once, that something is done; its end without that means never."""

    def __init__(self) -> None:
        try:
            self.reader, self._writer = os.pipe()
        except OSError as error:
            raise SandboxFailure("start", f"no pipe for a sandbox: {error.strerror}") from error

    def give(self) -> None:
        os.write(self._writer, b"x")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.reader)
        os.close(self._writer)
