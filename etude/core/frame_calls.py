"""Calls between our processes over a socket, local or TCP: many at once on one connection, each a frame out and back.

A request's header has a `number`, which its answer repeats, and a `verb`. A caller that is cancelled sends `cancel`
with the number, and a connection that closes cancels all its calls. While a call is under way its side may send news,
frames with the same number and `news` set; those of several calls that come at once travel as one. Errors travel as one
sentence. Where strangers can reach a server, both ends prove first that they know a secret (`tcp_address`). Knows
frames (`transport`) and asyncio; no verb and no message.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket as sockets
import traceback
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from etude.core.errors import EtudeError
from etude.core.tcp_address import FILE, Fence, NotThere, SharedSecret, connect, connect_to, welcome
from etude.core.transport import PREFIX_BYTES, Frame, read_frame, read_prefix, write_frame

CANCEL = "cancel"
LARGEST = 1 << 30  # bytes of one frame, unless a server asks for fewer
JOINED = 1 << 20  # bytes of frames that are copied to be written at once: larger ones may be most of memory
UNPROVEN = 64  # connections that may be proving themselves at once; then the oldest is closed
Send = Callable[[Frame], None]
Handle = Callable[[Frame, Send], Awaitable[Frame]]


class ConnectionLost(EtudeError):
    """The other side went away, or was not there."""


class _Frames(asyncio.Protocol):
    """Splits what arrives into frames."""

    def __init__(self, on_frame: Callable[[Frame], None], on_end: Callable[[str], None], largest: int) -> None:
        self._on_frame, self._on_end = on_frame, on_end
        self._buffer = bytearray()
        self.largest = largest
        self._sizes: tuple[int, int] | None = None
        self._news: list[tuple[int, Frame]] = []  # told and not sent
        self._outgoing: list[bytes] = []  # sent and not written
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        try:
            while self._take():
                pass
        except EtudeError as broken:  # what follows cannot be told apart any more
            self.close(str(broken))

    def _take(self) -> bool:
        buffer = self._buffer
        if self._sizes is None:
            if len(buffer) < PREFIX_BYTES:
                return False
            self._sizes = read_prefix(bytes(buffer[:PREFIX_BYTES]))
            if sum(self._sizes) > self.largest:
                raise EtudeError(f"a frame of {sum(self._sizes)} bytes is too large; at most {self.largest} go")
        header, body = self._sizes
        end = PREFIX_BYTES + header + body
        if len(buffer) < end:
            return False
        frame = read_frame(bytes(buffer[PREFIX_BYTES : PREFIX_BYTES + header]), bytes(buffer[end - body : end]))
        del buffer[:end]
        self._sizes = None
        self._on_frame(frame)
        return True

    def connection_lost(self, error: Exception | None) -> None:
        self._on_end(str(error) if error else "the other side closed the connection")

    def send(self, frame: Frame) -> None:
        if self.transport is None or self.transport.is_closing():
            raise ConnectionLost("the connection is closed")
        data = write_frame(frame)
        # Frames of one turn of the event loop are written together: a write wakes the process at the other end.
        if not self._outgoing:
            asyncio.get_running_loop().call_soon(self._write)
        self._outgoing.append(data)

    def _write(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        if not outgoing or self.transport is None or self.transport.is_closing():
            return
        small = sum(map(len, outgoing)) <= JOINED
        for data in [b"".join(outgoing)] if small else outgoing:
            self.transport.write(data)

    def tell(self, number: int, frame: Frame) -> None:
        """News of a call. What is told before the event loop comes round again goes in one frame."""
        if not self._news:
            asyncio.get_running_loop().call_soon(self.send_news)
        self._news.append((number, frame))

    def send_news(self) -> None:
        """Sends what was told and has not gone yet."""
        news, self._news = self._news, []
        with contextlib.suppress(ConnectionLost):
            for frame in joined_news(news) if news else ():
                self.send(frame)

    def end(self) -> None:
        """Close once everything is sent."""
        self._write()
        if self.transport is not None:
            self.transport.close()

    def close(self, why: str) -> None:
        if self.transport is not None:
            self.transport.abort()
        self._on_end(why)


def joined_news(news: Sequence[tuple[int, Frame]]) -> Iterator[Frame]:
    """News of several calls as one frame, their arrays end to end; or one by one, where they are not alike."""
    first = news[0][1]
    alike = bool(first.arrays) and all(_kinds(frame) == _kinds(first) for _, frame in news)
    if len(news) == 1 or not alike:
        for number, frame in news:
            yield Frame(frame.header | {"number": number, "news": True}, frame.arrays)
        return
    columns = {name: [frame.arrays[name] for _, frame in news] for name in first.arrays}
    ends = {name: np.cumsum([len(array) for array in arrays]).tolist() for name, arrays in columns.items()}
    header = {"numbers": [number for number, _ in news], "headers": [frame.header for _, frame in news], "ends": ends}
    yield Frame(header, {name: np.concatenate(arrays) for name, arrays in columns.items()})


def split_news(frame: Frame) -> list[tuple[int, Frame]]:
    """What `joined_news` put into one frame; or that frame, which is of one call."""
    header, arrays, found = frame.header, frame.arrays, []
    try:
        if "numbers" not in header:
            return [(int(header.get("number", 0)), frame)]
        for place, (number, own) in enumerate(zip(header["numbers"], header["headers"], strict=True)):
            parts = {}
            for name, ends in header["ends"].items():
                parts[name] = arrays[name][ends[place - 1] if place else 0 : ends[place]]
            found.append((int(number), Frame(own | {"news": True}, parts)))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as wrong:
        raise EtudeError(f"news of several calls cannot be told apart ({wrong!r})") from None
    return found


def _kinds(frame: Frame) -> list[tuple[str, Any, Any]]:
    """Of arrays that can stand end to end; those of more dimensions are like no other's."""
    return [(name, array.dtype, None if array.ndim == 1 else id(array)) for name, array in frame.arrays.items()]


class Caller:
    """One connection to a server of frames. Lost, it is opened again by the next call.

    `path` is that of a local socket, or `file:` with the path of a file that holds a TCP address, or with a `secret`
    HOST:PORT. Of `file:` no answer is taken that came from a process whose place another has taken.
    """

    def __init__(self, path: str, *, deadline: float = 60.0, secret: SharedSecret | None = None) -> None:
        self.path, self.deadline, self._secret = path, deadline, secret
        self._link: _Frames | None = None
        self._opening = asyncio.Lock()
        self._number = 0
        self._waiting: dict[int, tuple[asyncio.Future[Frame], Callable[[Frame], None] | None]] = {}

    async def call(
        self, frame: Frame, *, deadline: float | None = None, on_news: Callable[[Frame], None] | None = None
    ) -> Frame:
        """The answer to a request. `ConnectionLost`: the server is gone; `EtudeError`: it refused; or TimeoutError."""
        seconds = self.deadline if deadline is None else deadline
        async with asyncio.timeout(seconds):
            link = await self._connected()
            self._number += 1
            number, answer = self._number, asyncio.get_running_loop().create_future()
            self._waiting[number] = answer, on_news
            try:
                link.send(Frame(frame.header | {"number": number}, frame.arrays))
                found: Frame = await answer
            except BaseException:
                if not answer.done() or answer.cancelled():
                    with contextlib.suppress(EtudeError):
                        link.send(Frame({"verb": CANCEL, "number": number}))
                raise
            finally:
                del self._waiting[number]
        if "error" in found.header:
            kind = ConnectionLost if found.header.get("gone") else EtudeError
            raise kind(str(found.header["error"]))
        return found

    def close(self) -> None:
        if self._link is not None:
            self._link.end()

    async def _connected(self) -> _Frames:
        async with self._opening:
            link = self._link
            if link is not None and link.transport is not None and not link.transport.is_closing():
                return link
            loop, fence = asyncio.get_running_loop(), None
            made = _Frames(
                lambda frame: self._on_frame(made, fence, frame), lambda why: self._on_end(made, why), LARGEST
            )
            try:
                if self.path.startswith(FILE):
                    fence = Fence(Path(self.path.removeprefix(FILE)))
                    await loop.create_connection(lambda: made, sock=await connect(fence.address))
                elif self._secret is not None:
                    await loop.create_connection(lambda: made, sock=await connect_to(self.path, self._secret))
                else:
                    await loop.create_unix_connection(lambda: made, self.path)
            except NotThere as missing:
                raise ConnectionLost(str(missing)) from None
            except OSError as refused:
                raise ConnectionLost(f"nobody answers at {self.path} ({refused})") from None
            self._link = made
            return made

    def _on_frame(self, link: _Frames, fence: Fence | None, frame: Frame) -> None:
        if fence is not None and not fence.holds():
            link.close(f"another process has taken the place of incarnation {fence.address.incarnation}")
            return
        for number, found in split_news(frame):
            answer, on_news = self._waiting.get(number, (None, None))
            if answer is None or answer.done():
                continue  # its caller has left
            if not found.header.get("news"):
                answer.set_result(found)
            elif on_news is not None:
                on_news(found)

    def _on_end(self, link: _Frames, why: str) -> None:
        if link is not self._link:
            return
        self._link = None
        for answer, _ in self._waiting.values():
            if not answer.done():
                answer.set_exception(ConnectionLost(f"the connection to {self.path} is lost: {why}"))


class Answering:
    """A server of frames on a listening socket; `handle` answers a request, or raises `EtudeError`.

    With `ConnectionLost` it says that it is about to end. With a secret, which it needs over TCP, everybody who
    connects must prove that they know it before a frame is read.
    """

    def __init__(self, handle: Handle, *, largest: int = LARGEST) -> None:
        self._handle, self._largest = handle, largest
        self._links: set[_Frames] = set()
        self._server: asyncio.AbstractServer | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._unproven: dict[int, asyncio.Task[None]] = {}  # in the order in which they came

    async def listen(self, listener: sockets.socket, secret: SharedSecret | None = None) -> None:
        if secret is not None:
            self._accepting = asyncio.create_task(self._accept(listener, secret), name="frames of those who prove it")
            return
        self._server = await asyncio.get_running_loop().create_unix_server(self._made, sock=listener)

    async def close(self) -> None:
        """Takes no more connections, and ends those that are there."""
        if self._server is not None:
            self._server.close()
        for task in filter(None, (self._accepting, *self._unproven.values())):
            task.cancel()
        for link in list(self._links):
            link.end()

    async def _accept(self, listener: sockets.socket, secret: SharedSecret) -> None:
        loop = asyncio.get_running_loop()
        listener.setblocking(False)

        async def greet(sock: sockets.socket) -> None:
            if await welcome(sock, secret):
                await loop.connect_accepted_socket(self._made, sock)

        with listener:
            while True:
                try:
                    sock, _ = await loop.sock_accept(listener)
                except OSError:  # gone before it was taken, or too many files are open
                    await asyncio.sleep(0.1)
                    continue
                if len(self._unproven) >= UNPROVEN:
                    # The oldest, and not this one: strangers who say nothing must not keep out who proves itself.
                    self._unproven.pop(next(iter(self._unproven))).cancel()
                task = asyncio.create_task(greet(sock))
                self._unproven[id(task)] = task
                task.add_done_callback(lambda done: self._unproven.pop(id(done), None))

    def _made(self) -> _Frames:
        running: dict[int, asyncio.Task[None]] = {}

        def on_frame(frame: Frame) -> None:
            number = frame.header.get("number")
            if not isinstance(number, int):
                raise EtudeError("a request has no number")
            if frame.header.get("verb") == CANCEL:
                if number in running:
                    running[number].cancel()
                return
            task = asyncio.get_running_loop().create_task(self._answer(link, number, frame))
            running[number] = task
            task.add_done_callback(lambda _: running.pop(number, None))

        def on_end(why: str) -> None:
            self._links.discard(link)
            for task in list(running.values()):
                task.cancel()

        link = _Frames(on_frame, on_end, self._largest)
        self._links.add(link)
        return link

    async def _answer(self, link: _Frames, number: int, frame: Frame) -> None:
        try:
            answer = await self._handle(frame, lambda news: link.tell(number, news))
        except ConnectionLost as gone:  # it is about to end: another one may answer at this address soon
            answer = Frame({"error": str(gone), "gone": True})
        except EtudeError as refused:
            answer = Frame({"error": str(refused)})
        except Exception as bug:  # whoever waits must hear of it
            traceback.print_exc()
            answer = Frame({"error": f"it failed with {bug!r}; its log has the traceback"})
        link.send_news()  # which come before the answer
        with contextlib.suppress(ConnectionLost):
            try:
                link.send(Frame(answer.header | {"number": number}, answer.arrays))
            except ConnectionLost:
                raise
            except (EtudeError, TypeError, ValueError) as unsendable:
                # Too large, or no JSON: who asked hears of it now and not at its deadline.
                link.send(Frame({"error": f"its answer cannot be sent: {unsendable}", "number": number}))
