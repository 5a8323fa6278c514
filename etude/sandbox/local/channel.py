"""The orchestrator's end of a socket to the launcher or to a sandbox: numbered requests and their answers, in asyncio.

Knows the shape of messages (`wire.py`) and nothing of what they ask for.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Self

from etude.sandbox.base import SandboxFailure
from etude.sandbox.local import wire

Answer = tuple[wire.Message, tuple[int, ...]]


class Request(NamedTuple):
    """A request that was sent, and its answers in the order in which they come."""

    number: int
    answers: tuple[asyncio.Future[Answer], ...]


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

    def request(self, message: wire.Message, descriptors: tuple[int, ...] = (), answers: int = 1) -> Request:
        """Send a request that gets `answers` messages back. The descriptors stay the caller's."""
        self._last += 1
        self.send({**message, "id": self._last}, descriptors)
        futures = tuple(self._loop.create_future() for _ in range(answers))
        # Some requests are answered twice: a program is started, and later it has ended.
        self._waiting[self._last] = deque(futures)
        return Request(self._last, futures)

    def send(self, message: wire.Message, descriptors: tuple[int, ...] = ()) -> None:
        if self.failure is not None:
            raise self.failure
        data = memoryview(wire.encode(message, len(descriptors)))
        if not self._unsent:
            data, descriptors = self._send_some(data, descriptors)
            if not data:
                return
            self._loop.add_writer(self._connection.fileno(), self._send_rest)
        # What cannot be sent at once needs descriptors that outlive the caller's.
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
            wire.close_all(descriptors)
        self._unsent.clear()
        for future in [future for futures in self._waiting.values() for future in futures if not future.done()]:
            future.set_exception(failure)
            future.exception()  # nobody may be waiting for this one any more
        self._waiting.clear()
        # Our owner's method, and our owner holds us: uncut, both would wait for a garbage collection.
        self._on_event = lambda _: None

    def _send_some(self, data: memoryview, descriptors: tuple[int, ...]) -> tuple[memoryview, tuple[int, ...]]:
        """What is left to send."""
        try:
            sent = wire.send_some(self._connection, data, descriptors)
        except BlockingIOError:
            return data, descriptors
        # Not closed here: the other end's last message, with its reason, may still be in the socket.
        except OSError:  # the other end is gone: `_receive` sees that too, and closes with the reason
            return data[:0], ()
        return data[sent:], ()

    def _send_rest(self) -> None:
        while self._unsent:
            data, descriptors = self._unsent.popleft()
            left, kept = self._send_some(data, descriptors)
            if not kept:
                wire.close_all(descriptors)
            if left:
                self._unsent.appendleft((left, kept))
                return
        self._loop.remove_writer(self._connection.fileno())

    def drain(self) -> None:
        """Take what the other end, now dead, had still sent: its last message may say why."""
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
        except OSError:  # the other end was killed with something still unread
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
            wire.close_all(descriptors)
            self._on_event(message)
            return
        future = futures.popleft()
        if not futures:
            del self._waiting[message["id"]]
        if future.done():  # cancelled
            wire.close_all(descriptors)
        else:
            future.set_result((message, descriptors))

    def forget(self, number: int) -> None:
        """Nobody waits for the answers to this request any more; they are dropped when they come."""
        for future in self._waiting.get(number, ()):
            future.cancel()


class Signal:
    """A pipe over which one side says, once, that something is done; its end without a byte means that it never is."""

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
