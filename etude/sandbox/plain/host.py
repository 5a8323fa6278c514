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
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Final, Self

from etude.core.errors import EtudeError
from etude.sandbox.base import (
    WORKSPACE,
    Capabilities,
    Change,
    CommandResult,
    Layer,
    SandboxFailure,
    SandboxLimits,
    Snapshot,
    absolute,
)
from etude.sandbox.channel import Collector, Feeder
from etude.sandbox.local.programs import ENVIRONMENT
from etude.sandbox.local.rootfs import HOME
from etude.sandbox.store.copied_tree import chosen, copy_merged
from etude.sandbox.store.layers import Store
from etude.sandbox.store.overlay_changes import Row, differences, opened, remove_tree
from etude.sandbox.store.packed_changes import pack, unpack

_MAX_READ: Final = 64 << 20
_GRACE_SECONDS: Final = 15.0


class PlainHost:
    """Makes folders and calls them sandboxes."""

    preload: tuple[str, ...] = ()  # nothing here forks from a loaded process

    def __init__(self, store: Store) -> None:
        self.store = store
        self._sandboxes: set[PlainSandbox] = set()

    @classmethod
    async def open(cls, store: Store | Path) -> PlainHost:
        return cls(store if isinstance(store, Store) else Store(store))

    @property
    def capabilities(self) -> Capabilities:
        linux = sys.platform.startswith("linux")
        return Capabilities(
            backend="plain",
            isolated=False,
            network_off=False,
            memory="rlimit",
            processes="rlimit",
            disk="file size",
            kill="subreaper" if linux else "process group",
        )

    async def start(
        self,
        base: Sequence[Layer] | Snapshot,
        *,
        limits: SandboxLimits | None = None,
        network: bool = False,
        env: Mapping[str, str] | None = None,
        workdir: str = WORKSPACE,
    ) -> PlainSandbox:
        layers = base.layers if isinstance(base, Snapshot) else tuple(base)
        changes = base.path if isinstance(base, Snapshot) else None
        return await self._start(layers, limits or SandboxLimits(), dict(env or {}), workdir, changes)

    async def close(self) -> None:
        await asyncio.gather(*(sandbox.close() for sandbox in list(self._sandboxes)))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _start(
        self, layers: tuple[Layer, ...], limits: SandboxLimits, env: dict[str, str], workdir: str, changes: Path | None
    ) -> PlainSandbox:
        sandbox = PlainSandbox(self, layers, limits, env, workdir, changes)
        try:
            await asyncio.to_thread(sandbox._fill)
        except OSError as error:
            await sandbox.close()
            raise SandboxFailure("start", f"the layers could not be copied: {error}") from error
        except BaseException:
            await sandbox.close()
            raise
        return sandbox


class PlainSandbox:
    """A folder with a copy of the layers."""

    def __init__(
        self,
        host: PlainHost,
        layers: tuple[Layer, ...],
        limits: SandboxLimits,
        env: dict[str, str],
        workdir: str,
        changes: Path | None,
    ) -> None:
        self._host = host
        self._layers = layers
        self._limits = limits
        self._env = env
        self._workdir = workdir
        self._stack = ExitStack()
        self._scratch = self._stack.enter_context(host.store.scratch())
        self._changes = self._scratch / "changes" if changes is not None else None
        if changes is not None:
            shutil.copyfile(changes, self._scratch / "changes")  # what a fork packed is gone soon
        self._processes: set[PlainProcess] = set()
        self._closed = False
        host._sandboxes.add(self)

    @property
    def root(self) -> Path:
        """Where the sandbox's `/` is on the host."""
        return self._scratch / "root"

    @property
    def capabilities(self) -> Capabilities:
        return self._host.capabilities

    @property
    def layers(self) -> tuple[Layer, ...]:
        return self._layers

    @property
    def limits(self) -> SandboxLimits:
        return self._limits

    async def run(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout: float = 60.0,
        max_output: int | None = None,
    ) -> CommandResult:
        process = self._launch(argv, cwd, env, self._limits.output if max_output is None else max_output)
        try:
            await process.send(stdin)
            await process.close_stdin()
            result = await process.wait(timeout)
            return replace(await process.kill(), timed_out=True) if result is None else result
        except asyncio.CancelledError:
            process.end()
            raise

    async def spawn(
        self, argv: Sequence[str], *, cwd: str | None = None, env: Mapping[str, str] | None = None
    ) -> PlainProcess:
        return self._launch(argv, cwd, env, self._limits.output)

    async def read(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
        file = self._resolve(path)
        status = file.stat()
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EISDIR if file.is_dir() else errno.EINVAL, "not a regular file", path)
        if limit is None and status.st_size - offset > _MAX_READ:
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

    async def diff(self, under: str = "/") -> list[Change]:
        folder = absolute(under, self._workdir).rstrip("/")
        rows = await asyncio.to_thread(self._differences)
        changes = [Change(*row) for row in rows]  # type: ignore[arg-type]  # a row has a change's fields
        return [each for each in changes if each.path == folder or each.path.startswith(f"{folder}/")]

    async def snapshot(self) -> Snapshot:
        with self._host.store.writing_snapshot(self._layers) as (file, made):
            await asyncio.to_thread(self._pack, file)
        return made[0]

    async def fork(self) -> PlainSandbox:
        with self._host.store.scratch() as folder:
            path = folder / "changes"
            with path.open("wb") as file:
                await asyncio.to_thread(self._pack, file.fileno())
            return await self._host._start(self._layers, self._limits, self._env, self._workdir, path)

    async def reset(self) -> None:
        await self._end_processes()
        await asyncio.to_thread(self._fill)

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await self._end_processes()
            self._host._sandboxes.discard(self)
            await asyncio.to_thread(self._stack.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def _resolve(self, path: str) -> Path:
        """The file on the host. Links may not lead out of the copy; a program that swaps them meanwhile could."""
        root = self.root.resolve()
        file = (root / absolute(path, self._workdir).lstrip("/")).resolve()
        if not file.is_relative_to(root):
            raise OSError(errno.EXDEV, "leads out of the sandbox", path)
        return file

    def _launch(self, argv: Sequence[str], cwd: str | None, env: Mapping[str, str] | None, limit: int) -> PlainProcess:
        if self._closed:
            raise SandboxFailure("closed", "the sandbox is closed")
        if not argv:
            raise EtudeError("a program needs a name: argv is empty")
        environment = {
            **ENVIRONMENT,
            "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', ENVIRONMENT['PATH'])}",
            "HOME": str(self.root / HOME.strip("/")),
            "TMPDIR": str(self.root / "tmp"),
            **self._env,
            **(env or {}),
        }
        request: dict[str, object] = {
            "argv": list(argv),
            "cwd": str(self.root / absolute(cwd or "", self._workdir).lstrip("/")),
            "env": environment,
            "limits": [
                ("RLIMIT_CORE", 0),
                ("RLIMIT_DATA", self._limits.memory),
                ("RLIMIT_CPU", self._limits.cpu_seconds),
                ("RLIMIT_FSIZE", self._limits.disk),
                ("RLIMIT_NOFILE", self._limits.open_files),
            ],
        }
        process = PlainProcess(request, limit)
        self._processes.add(process)
        process.when_done(lambda: self._processes.discard(process))
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
            lowers = [stack.enter_context(opened(str(layer.path))) for layer in reversed(self._layers)]
            copy_merged(lowers, stack.enter_context(opened(str(self.root))))
            if self._changes is not None:
                source = os.open(self._changes, os.O_RDONLY)
                stack.callback(os.close, source)
                unpack(source, stack.enter_context(opened(str(self.root))), apply=True)

    def _differences(self) -> list[Row]:
        with ExitStack() as stack:
            lowers = [stack.enter_context(opened(str(layer.path))) for layer in reversed(self._layers)]
            rows = differences(stack.enter_context(opened(str(self.root))), lowers, whole=True)
        folders = [PurePosixPath("/", folder) for folder in self._own_folders()]
        own = {str(each) for folder in folders for each in (folder, *folder.parents)}
        return [row for row in rows if not (row[0] in own and row[2] == "folder")]

    def _own_folders(self) -> list[str]:
        """Those that are there whatever the layers bring."""
        return ["tmp", HOME.strip("/"), self._workdir.strip("/")]

    def _pack(self, out: int) -> None:
        rows = self._differences()
        with opened(str(self.root)) as root:
            pack(root, out, chosen(rows))


class PlainProcess:
    """A program and its supervisor on the host."""

    def __init__(self, request: dict[str, object], limit: int) -> None:
        control, self._control = os.pipe()
        self._report, report = os.pipe()
        script = str(Path(__file__).with_name("supervisor.py"))
        self._started = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", script, str(control), str(report)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(control, report),
            start_new_session=True,
        )
        os.close(control)
        os.close(report)
        if self._process.stdin is None or self._process.stdout is None or self._process.stderr is None:
            raise SandboxFailure("start", "a program's streams were not made")
        self._ask = Feeder(self._control)  # kept open: closing it is how the program is ended
        self._ask.feed(json.dumps(request).encode() + b"\n")
        self._feeder = Feeder(os.dup(self._process.stdin.fileno()))
        self._stdout = Collector(os.dup(self._process.stdout.fileno()), limit)
        self._stderr = Collector(os.dup(self._process.stderr.fileno()), limit)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            stream.close()
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[tuple[int, float]] = self._loop.create_future()
        self._loop.add_reader(self._report, self._reported)

    @property
    def running(self) -> bool:
        return not self._done.done()

    def when_done(self, callback: Callable[[], None]) -> None:
        self._done.add_done_callback(lambda _: callback())

    async def send(self, data: bytes) -> None:
        self._feeder.feed(data)

    async def close_stdin(self) -> None:
        self._feeder.end()

    def output(self) -> tuple[bytes, bytes]:
        return self._stdout.take(), self._stderr.take()

    async def wait(self, timeout: float) -> CommandResult | None:
        await asyncio.wait({self._done}, timeout=timeout)
        if not self._done.done():
            return None
        code, seconds = self._done.result()
        truncated = self._stdout.truncated or self._stderr.truncated
        stdout, stderr = self.output()
        return CommandResult(code, stdout, stderr, truncated=truncated, seconds=seconds)

    async def kill(self) -> CommandResult:
        self.end()
        result = await self.wait(_GRACE_SECONDS)
        if result is None:
            raise SandboxFailure("deadline", f"a program did not die within {_GRACE_SECONDS:g} s")
        return result

    def end(self) -> None:
        self._ask.close()

    def _reported(self) -> None:
        told = os.read(self._report, 64)
        self._loop.remove_reader(self._report)
        os.close(self._report)
        self._ask.close()
        self._feeder.close()
        self._stdout.finish()
        self._stderr.finish()
        self._process.wait()
        if not self._done.done():
            code = os.waitstatus_to_exitcode(json.loads(told)) if told else -9
            self._done.set_result((code, time.monotonic() - self._started))
