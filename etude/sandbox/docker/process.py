"""One program in a container, behind one `exec` of the engine's command-line program.

A small shell in the container starts it: it says its own number first and the program's exit code last, both on
standard error and marked by a word that nobody else knows. So a program that could not be started differs
from an engine that failed, and a run ends when its program does, whoever still holds its output. Knows nothing about
other programs of the container.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from etude.sandbox.base import CommandResult, SandboxFailure
from etude.sandbox.streams import Collector, Feeder, StreamedProcess, start_with_pipes

START_SECONDS: Final = 60.0
_DRAIN_SECONDS: Final = 15.0

# The arguments are the mark, the folder and the program. The shell's own remarks about signals go nowhere.
SHELL: Final = """
mark=$1 folder=$2
shift 2
printf '%s %s\\n' "$mark" "$$" >&2
cd "$folder" 2>/dev/null || { printf '%s: it is no folder to start in\\n%s 126\\n' "$folder" "$mark" >&2; exit 126; }
exec 3>&2 2>/dev/null
(exec "$@" 2>&3 3>&-)
code=$?
printf '%s %s\\n' "$mark" "$code" >&3
exit "$code"
"""


class _ErrorCollector(Collector):
    """Standard error without the shell's two lines."""

    def __init__(self, descriptor: int, limit: int, mark: bytes, on_mark: Callable[[str], None]) -> None:
        super().__init__(descriptor, limit)
        self._mark = mark + b" "
        self._on_mark = on_mark
        self._held = b""

    def close(self) -> None:
        if self._open and self._held:
            super().add(self._held)
            self._held = b""
        super().close()

    def add(self, data: bytes) -> None:
        data = self._held + data
        while True:
            at = data.find(self._mark)
            end = data.find(b"\n", at)
            if at < 0 or end < 0:
                break
            super().add(data[:at])
            self._on_mark(data[at + len(self._mark) : end].decode("ascii", "replace"))
            data = data[end + 1 :]
        # What may be the start of a mark waits for the rest of it.
        tail = len(data) - at if at >= 0 else _overlap(data, self._mark)
        super().add(data[: len(data) - tail])
        self._held = data[len(data) - tail :]


def _overlap(data: bytes, mark: bytes) -> int:
    """How many bytes at the end of `data` could begin `mark`."""
    return next((size for size in range(min(len(data), len(mark) - 1), 0, -1) if data.endswith(mark[:size])), 0)


class DockerProcess(StreamedProcess):
    """A program in a container. `clean` ends what it started; it is called when the program has ended or must."""

    def __init__(
        self,
        exec_options: Sequence[str],
        container: str,
        folder: str,
        argv: Sequence[str],
        limit: int,
        clean: Callable[[DockerProcess], asyncio.Task[None]],
        *,
        stdin: bool,
    ) -> None:
        # Unguessable: a program that printed the mark could forge its own exit code.
        mark = secrets.token_hex(12)
        self._clean = clean
        self._loop = asyncio.get_running_loop()
        self.pid = 0  # of the shell, as the container numbers it
        self.started: asyncio.Future[bool] = self._loop.create_future()  # False: the engine's program ended before
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._gone: asyncio.Future[None] = self._loop.create_future()  # the engine's program
        self._cleaned: asyncio.Future[None] | None = None
        self._code: int | None = None
        self._began = time.monotonic()
        command = [*exec_options, container, "/bin/sh", "-c", SHELL, "sh", mark, folder, *argv]
        self._process, streams = start_with_pipes(command, stdin=stdin)
        errors = _ErrorCollector(streams[-1], limit, mark.encode(), self._on_mark)
        super().__init__(Feeder(streams[0]) if stdin else None, Collector(streams[-2], limit), errors)
        self._handle = os.pidfd_open(self._process.pid)
        self._loop.add_reader(self._handle, self._exited)

    @property
    def running(self) -> bool:
        return self._cleaned is None or not self._cleaned.done()

    async def kill(self) -> CommandResult:
        # A program that ended by itself keeps its code, though it is killed for its leftovers now.
        if not self._ended.done():
            self._code = -signal.SIGKILL
        return await self._outcome()

    def abandon(self) -> None:
        """End it without waiting for that."""
        task = self._loop.create_task(self.kill())
        task.add_done_callback(lambda done: done.cancelled() or done.exception())

    def give_up(self) -> None:
        """Its container is gone."""
        self._code = -signal.SIGKILL if self._code is None else self._code
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def last_error_text(self) -> str:
        return self.output()[1].decode(errors="replace").strip()[-400:] or "it left no message"

    async def _outcome(self) -> CommandResult:
        """As the protocol says: its leftovers are dead when this returns how it ended."""
        if self._cleaned is None:
            self._cleaned = asyncio.ensure_future(self._end())
        # Shielded: a caller that gives up must not leave the clean-up half done.
        await asyncio.shield(self._cleaned)
        code = self._code if self._code is not None else -signal.SIGKILL
        return self._result(code, seconds=time.monotonic() - self._began)

    async def _end(self) -> None:
        # What is not in the container yet cannot be ended in it, and would come all the same.
        await asyncio.wait({self.started}, timeout=START_SECONDS)
        try:
            await self._clean(self)
            await asyncio.wait({self._gone}, timeout=_DRAIN_SECONDS)
        finally:
            if not self._gone.done():
                self.give_up()
                await asyncio.wait({self._gone}, timeout=_DRAIN_SECONDS)
        if not self._gone.done():
            raise SandboxFailure("deadline", f"the engine's program did not end within {_DRAIN_SECONDS:g} s")

    def _on_mark(self, text: str) -> None:
        if not self.started.done():
            self.pid = int(text) if text.isascii() and text.isdigit() else 0
            self._began = time.monotonic()
            self.started.set_result(True)
        elif self._code is None:
            self._code = _code(int(text)) if text.isascii() and text.isdigit() else 1
            self._set(self._ended)

    def _exited(self) -> None:
        self._loop.remove_reader(self._handle)
        os.close(self._handle)
        code = self._process.wait()
        self._close_streams()
        if self._code is None:
            self._code = _code(code)  # the shell was killed before it could tell
        if not self.started.done():
            self.started.set_result(False)
        self._set(self._ended)
        self._set(self._gone)

    @staticmethod
    def _set(future: asyncio.Future[None]) -> None:
        if not future.done():
            future.set_result(None)


def _code(code: int) -> int:
    """A shell tells a signal as 128 and its number."""
    return 128 - code if 128 < code < 128 + 65 else code
