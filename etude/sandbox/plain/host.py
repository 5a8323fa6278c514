"""The weaker backend, for machines without namespaces: a copy of the layers in a folder, and limits on processes.

Nothing is hidden from a program here: it runs as the user who started it, sees the host's files, processes and
network, and calls its files by the host's names. It is only ever used when asked for by its name, and its
`capabilities` say so in every report. Paths of the protocol (`/workspace/...`) are those of the copy.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import stat
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import Final

from etude.sandbox.backend import (
    MAX_READ,
    BackendHost,
    BackendSandbox,
    Command,
    SandboxRecipe,
    copy_changes,
    isolated_python,
)
from etude.sandbox.base import Capabilities, CommandResult, SandboxFailure
from etude.sandbox.environment import ENVIRONMENT, HOME
from etude.sandbox.store.copied_tree import chosen, copy_merged
from etude.sandbox.store.layers import Store
from etude.sandbox.store.overlay_changes import Row, differences, opened, remove_tree
from etude.sandbox.store.packed_changes import pack, unpack
from etude.sandbox.streams import Collector, Feeder, StreamedProcess, start_with_pipes

_GRACE_SECONDS: Final = 15.0  # for a supervisor to end its program and itself


class PlainHost(BackendHost["PlainSandbox"]):
    """Makes folders and calls them sandboxes."""

    @classmethod
    async def open(cls, store: Store | Path, preload: Sequence[str] = ()) -> PlainHost:
        return cls(store)

    @property
    def capabilities(self) -> Capabilities:
        linux = sys.platform.startswith("linux")
        return Capabilities(
            backend="plain",
            isolated=False,
            network_off=False,
            memory="rlimit",
            processes="none",  # the limit counts all processes of a user, on the whole machine, and root's not at all
            disk="file size",
            kill="subreaper" if linux else "process group",
        )

    async def open_sandbox(self, recipe: SandboxRecipe, changes: Path | None) -> PlainSandbox:
        sandbox = PlainSandbox(self, recipe)
        return await self._opened(sandbox, sandbox.open(changes), "the layers could not be copied")


class PlainSandbox(BackendSandbox):
    """A folder with a copy of the layers."""

    _host: PlainHost

    def __init__(self, host: PlainHost, recipe: SandboxRecipe) -> None:
        super().__init__(host, recipe)
        self._stack = ExitStack()
        self._scratch = self._stack.enter_context(host.store.scratch())
        self._changes: Path | None = None
        self._processes: set[PlainProcess] = set()
        self._closed = False

    @property
    def root(self) -> Path:
        """Where the sandbox's `/` is on the host."""
        return self._scratch / "root"

    async def open(self, changes: Path | None) -> None:
        if changes is not None:
            self._changes = copy_changes(changes, self._scratch)
        await asyncio.to_thread(self._fill)

    async def read(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
        file = self._resolve(path)
        status = file.stat()
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EISDIR if file.is_dir() else errno.EINVAL, "not a regular file", path)
        if limit is None and status.st_size - offset > MAX_READ:
            raise OSError(errno.EFBIG, f"the file has {status.st_size} bytes; read it in parts", path)
        with file.open("rb") as stream:
            stream.seek(offset)
            return stream.read(-1 if limit is None else limit)

    async def write(self, path: str, data: bytes, *, mode: int | None = None) -> None:
        file = self._resolve(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        if mode is not None:
            file.chmod(mode & 0o777)

    async def reset(self) -> None:
        await self._end_processes()
        await asyncio.to_thread(self._fill)

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await self._end_processes()
            self._host.forget(self)
            await asyncio.to_thread(self._stack.close)

    def _resolve(self, path: str) -> Path:
        """The file on the host. Links may not lead out of the copy; a program that swaps them meanwhile could."""
        root = self.root.resolve()
        file = (root / self._absolute(path).lstrip("/")).resolve()
        if not file.is_relative_to(root):
            raise OSError(errno.EXDEV, "leads out of the sandbox", path)
        return file

    async def _launch(self, command: Command) -> PlainProcess:
        if self._closed:
            raise SandboxFailure("closed", "the sandbox is closed")
        environment = {
            **ENVIRONMENT,
            "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', ENVIRONMENT['PATH'])}",
            "HOME": str(self.root / HOME.strip("/")),
            "TMPDIR": str(self.root / "tmp"),
            **self._recipe.env,
            **command.env,
        }
        request: dict[str, object] = {
            "argv": list(command.argv),
            "cwd": str(self.root / command.cwd.lstrip("/")),
            "env": environment,
            "limits": [
                ("RLIMIT_CORE", 0),
                ("RLIMIT_DATA", self.limits.memory),
                ("RLIMIT_CPU", self.limits.cpu_seconds),
                ("RLIMIT_FSIZE", self.limits.disk),
                ("RLIMIT_NOFILE", self.limits.open_files),
            ],
        }
        process = PlainProcess(request, command.max_output)
        self._processes.add(process)
        process._ended.add_done_callback(lambda _: self._processes.discard(process))
        return process

    async def _end_processes(self) -> None:
        await asyncio.gather(*(process.kill() for process in list(self._processes)))

    def _fill(self) -> None:
        """The layers over each other, then the changes that the sandbox was started with."""
        if self.root.exists():
            with opened(str(self._scratch)) as scratch:
                remove_tree("root", scratch)
        self.root.mkdir()
        for folder in self._own_folders():
            (self.root / folder).mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            lowers = [stack.enter_context(opened(str(layer.path))) for layer in reversed(self.layers)]
            root = stack.enter_context(opened(str(self.root)))
            copy_merged(lowers, root)
            if self._changes is not None:
                with self._changes.open("rb") as source:
                    unpack(source.fileno(), root, apply=True)

    async def _changes_below(self, folder: str) -> list[Row]:
        return await asyncio.to_thread(self._differences)

    def _differences(self) -> list[Row]:
        with ExitStack() as stack:
            lowers = [stack.enter_context(opened(str(layer.path))) for layer in reversed(self.layers)]
            rows = differences(stack.enter_context(opened(str(self.root))), lowers, whole=True)
        # They are made here and in no layer, so each would look like an addition.
        folders = [PurePosixPath("/", folder) for folder in self._own_folders()]
        own = {str(each) for folder in folders for each in (folder, *folder.parents)}
        return [row for row in rows if not (row[0] in own and row[2] == "folder")]

    def _own_folders(self) -> list[str]:
        """Those that are there whatever the layers bring."""
        return ["tmp", HOME.strip("/"), self._recipe.workdir.strip("/")]

    async def _pack(self, out: int) -> None:
        await asyncio.to_thread(self._pack_now, out)

    def _pack_now(self, out: int) -> None:
        rows = self._differences()
        with opened(str(self.root)) as root:
            pack(root, out, chosen(rows))


class PlainProcess(StreamedProcess):
    """A program and its supervisor on the host."""

    def __init__(self, request: dict[str, object], limit: int) -> None:
        control, our_control = os.pipe()
        self._report, report = os.pipe()
        self._started = time.monotonic()
        supervisor = isolated_python("etude.sandbox.plain.supervisor", control, report)
        self._process, (stdin, *outputs) = start_with_pipes(supervisor, pass_fds=(control, report))
        os.close(control)
        os.close(report)
        super().__init__(Feeder(stdin), *(Collector(output, limit) for output in outputs))
        self._control = Feeder(our_control)  # kept open: closing it is how the program is ended
        self._control.feed(json.dumps(request).encode() + b"\n")
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[tuple[int, float]] = self._loop.create_future()
        self._loop.add_reader(self._report, self._on_report)

    async def _outcome(self) -> CommandResult:
        code, seconds = self._ended.result()
        return self._result(code, seconds=seconds)

    async def kill(self) -> CommandResult:
        self.abandon()
        result = await self.wait(_GRACE_SECONDS)
        if result is None:
            raise SandboxFailure("deadline", f"a program did not die within {_GRACE_SECONDS:g} s")
        return result

    def abandon(self) -> None:
        self._control.close()

    def _on_report(self) -> None:
        status = os.read(self._report, 64)
        self._loop.remove_reader(self._report)
        os.close(self._report)
        self._control.close()
        self._close_streams()
        # Reaped before its end is reported, so no zombie is left when the caller goes on.
        self._process.wait()
        if not self._ended.done():
            # No report: the supervisor itself was killed.
            code = os.waitstatus_to_exitcode(json.loads(status)) if status else -signal.SIGKILL
            self._ended.set_result((code, time.monotonic() - self._started))
