"""The asyncio ends of a program's pipes: what it writes is kept within bounds, what it reads is sent as it reads.

Every backend's process stands on these. Knows nothing of how a program is started or ended.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from etude.sandbox.base import CommandResult

_BLOCK: Final = 1 << 16  # bytes of one read or write: what a Linux pipe holds


class KeptOutput:
    """At most `limit` bytes of a stream: its start and its end, and how much was left out between them."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._start = bytearray()
        self._end: deque[bytes] = deque()
        self._end_size = 0
        self._dropped = 0
        self.on_data: Callable[[], None] = lambda: None  # called when there is more to take

    @property
    def truncated(self) -> bool:
        return self._dropped > 0

    @property
    def empty(self) -> bool:
        return not self._start and not self._end_size

    def take(self) -> bytes:
        """What was kept since the last call."""
        end = b"".join(self._end)
        if self._dropped:
            note = f"\n[... {self._dropped} bytes left out ...]\n".encode()
            text = bytes(self._start) + note + end
        else:
            text = bytes(self._start) + end
        self._start.clear()
        self._end.clear()
        self._end_size = self._dropped = 0
        return text

    def add(self, data: bytes) -> None:
        # Half for the start and half for the end: the command shows in the one, the error in the other.
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
        self.on_data()

    def finish(self) -> None:
        """The program is dead: nothing can follow."""


class Collector(KeptOutput):
    """Reads one stream of a program as it comes, and keeps at most `limit` bytes of it."""

    def __init__(self, descriptor: int, limit: int) -> None:
        super().__init__(limit)
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._open = True
        self._loop.add_reader(descriptor, self._read)

    def finish(self) -> None:
        """Take what is still in the pipe and close it."""
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
            data = os.read(self._descriptor, _BLOCK)
        except BlockingIOError:
            return False
        if not data:
            self.close()
            return False
        self.add(data)
        return True


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
                written = os.write(self._descriptor, self._left[0][:_BLOCK])
                self._left[0] = self._left[0][written:]
                if not self._left[0]:
                    self._left.popleft()
        except BlockingIOError:
            return
        except BrokenPipeError:
            # A program need not read its input, and its end is no error of ours.
            self.close()
            return
        self._loop.remove_writer(self._descriptor)
        if self._ending:
            self.close()


class StreamedProcess(ABC):
    """The part of the `Process` protocol that only needs the program's pipes; a backend says how it ends."""

    _ended: asyncio.Future[Any]  # done when the program is

    def __init__(self, stdin: Feeder | None, stdout: KeptOutput, stderr: KeptOutput) -> None:
        self._stdin, self._stdout, self._stderr = stdin, stdout, stderr

    @property
    def running(self) -> bool:
        return not self._ended.done()

    async def send(self, data: bytes) -> None:
        if self._stdin is not None:
            self._stdin.feed(data)

    async def close_stdin(self) -> None:
        if self._stdin is not None:
            self._stdin.end()

    def output(self) -> tuple[bytes, bytes]:
        return self._stdout.take(), self._stderr.take()

    async def more_output(self) -> None:
        """Wait until there is output to take, or the program has ended."""
        if self._stdout.empty and self._stderr.empty and not self._ended.done():
            more = asyncio.Event()
            self._stdout.on_data = self._stderr.on_data = more.set
            waiting = asyncio.ensure_future(more.wait())
            try:
                await asyncio.wait({waiting, self._ended}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                waiting.cancel()

    async def wait(self, timeout: float) -> CommandResult | None:
        await asyncio.wait({self._ended}, timeout=timeout)
        return await self._outcome() if self._ended.done() else None

    @abstractmethod
    async def kill(self) -> CommandResult: ...

    @abstractmethod
    def abandon(self) -> None:
        """Kill it without waiting for its end: nobody will ask how it ended."""

    @abstractmethod
    async def _outcome(self) -> CommandResult:
        """How it ended; only asked once it has."""

    def _result(self, code: int, **facts: Any) -> CommandResult:
        # Asked before the output is taken, which starts a new count.
        truncated = self._stdout.truncated or self._stderr.truncated
        stdout, stderr = self.output()
        return CommandResult(code, stdout, stderr, truncated=truncated, **facts)

    def _close_streams(self) -> None:
        if self._stdin is not None:
            self._stdin.close()
        self._stdout.finish()
        self._stderr.finish()


def start_with_pipes(
    argv: Sequence[str], *, stdin: bool = True, pass_fds: Sequence[int] = ()
) -> tuple[subprocess.Popen[bytes], list[int]]:
    """A process in a session of its own, and our ends of its standard streams, which the caller then owns."""
    process = subprocess.Popen(
        argv,
        stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=pass_fds,
        start_new_session=True,
    )
    streams = [stream for stream in (process.stdin, process.stdout, process.stderr) if stream is not None]
    # Duplicates, as `Popen` closes its own files when it is collected.
    descriptors = [os.dup(stream.fileno()) for stream in streams]
    for stream in streams:
        stream.close()
    return process, descriptors
