"""What every backend does alike: `run` over the start of a program, `diff`, `snapshot`, and a host's bookkeeping.

A backend derives its host and its sandbox from these classes and brings the rest of the protocol (`base.py`). Knows
no backend by name.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Generic, Self, TypeVar

from etude.core.errors import EtudeError
from etude.sandbox.base import (
    WORKSPACE,
    Capabilities,
    Change,
    CommandResult,
    Egress,
    Layer,
    Sandbox,
    SandboxFailure,
    SandboxLimits,
    Snapshot,
)
from etude.sandbox.store.layers import Store
from etude.sandbox.store.overlay_changes import Row
from etude.sandbox.streams import StreamedProcess

MAX_READ: Final = 64 << 20  # bytes that `read` returns without a limit; the protocol states it


@dataclass(frozen=True)
class SandboxRecipe:
    """What a sandbox is made of, and is made of again when it is forked."""

    layers: tuple[Layer, ...]
    limits: SandboxLimits = field(default_factory=SandboxLimits)
    network: bool | Egress = False
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str = WORKSPACE

    def __post_init__(self) -> None:
        if not self.workdir.startswith("/") or ".." in self.workdir.split("/"):
            raise EtudeError(f"{self.workdir!r} cannot be the working folder: give an absolute path without '..'")

    @property
    def shows(self) -> tuple[str, ...]:
        """The host's folders that the layers name."""
        return tuple(dict.fromkeys(path for layer in self.layers for path in layer.shows))


@dataclass(frozen=True)
class Command:
    """One program to start, with every default filled in."""

    argv: tuple[str, ...]
    cwd: str  # absolute
    env: dict[str, str]  # beside the sandbox's own
    stdin: bool  # whether anything will be written to its standard input
    timeout: float | None  # None: it may stay
    max_output: int
    apart: bool = False  # in a pid namespace of its own
    preloaded: str = ""  # the module to run instead of `argv`


class BackendSandbox(Sandbox, ABC):
    """The part of the `Sandbox` protocol that needs nothing of a backend but how it starts and packs."""

    def __init__(self, host: BackendHost[Any], recipe: SandboxRecipe) -> None:
        self._host = host
        self._recipe = recipe

    @property
    def capabilities(self) -> Capabilities:
        return self._host.capabilities

    @property
    def layers(self) -> tuple[Layer, ...]:
        return self._recipe.layers

    @property
    def limits(self) -> SandboxLimits:
        return self._recipe.limits

    @abstractmethod
    async def _launch(self, command: Command) -> StreamedProcess: ...

    @abstractmethod
    async def _changes_below(self, folder: str) -> list[Row]:
        """What differs from the layers, sorted by path; a backend may leave out what is not below `folder`."""

    @abstractmethod
    async def _pack(self, out: int) -> None:
        """Write all changes to a file as `packed_changes.py` does, with the programs stopped meanwhile."""

    @abstractmethod
    async def close(self) -> None: ...

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
        return await self.run_command(self._command(argv, cwd, env, bool(stdin), timeout, max_output), stdin)

    async def spawn(
        self, argv: Sequence[str], *, cwd: str | None = None, env: Mapping[str, str] | None = None
    ) -> StreamedProcess:
        return await self.spawn_command(self._command(argv, cwd, env, True))

    async def spawn_command(self, command: Command) -> StreamedProcess:
        return await self._launch(command)

    async def _run_apart(
        self,
        program: str | Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout: float = 60.0,
        max_output: int | None = None,
    ) -> CommandResult:
        """`RunsApart.run_apart`, for a backend that has it: it says `run_apart = BackendSandbox._run_apart`."""
        preloaded, argv = (program, [program]) if isinstance(program, str) else ("", program)
        command = self._command(argv, None, env, bool(stdin), timeout, max_output)
        return await self.run_command(replace(command, apart=True, preloaded=preloaded), stdin)

    def _command(
        self,
        argv: Sequence[str],
        cwd: str | None,
        env: Mapping[str, str] | None,
        stdin: bool,
        timeout: float | None = None,
        max_output: int | None = None,
    ) -> Command:
        if not argv:
            raise EtudeError("a program needs a name: argv is empty")
        limit = self.limits.output if max_output is None else max_output
        return Command(tuple(argv), self._absolute(cwd or ""), dict(env or {}), stdin, timeout, limit)

    async def run_command(self, command: Command, stdin: bytes) -> CommandResult:
        process = await self._launch(command)
        try:
            # Before waiting: a program that reads its input to the end would otherwise wait for us.
            await process.send(stdin)
            await process.close_stdin()
            return await self._end_of(process, command)
        except asyncio.CancelledError:
            process.abandon()
            raise

    async def _end_of(self, process: StreamedProcess, command: Command) -> CommandResult:
        """How a run ends, at its deadline at the latest."""
        assert command.timeout is not None
        result = await process.wait(command.timeout)
        return replace(await process.kill(), timed_out=True) if result is None else result

    async def diff(self, under: str = "/") -> list[Change]:
        folder = self._absolute(under).rstrip("/")
        rows = await self._changes_below(folder)
        found = [row for row in rows if row[0] == folder or row[0].startswith(f"{folder}/")]
        return [Change(*row) for row in found]  # type: ignore[arg-type]  # a row has a change's fields

    async def snapshot(self) -> Snapshot:
        with self._host.store.writing_snapshot(self.layers) as (file, made):
            await self._pack(file)
        return made[0]

    async def fork(self) -> Any:
        with self._host.store.scratch() as folder:
            path = folder / "changes"
            with path.open("wb") as file:
                await self._pack(file.fileno())
            return await self._host.open_sandbox(self._recipe, path)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def _absolute(self, path: str) -> str:
        """A path of the protocol: a relative one starts at the sandbox's working folder."""
        return path if path.startswith("/") else f"{self._recipe.workdir}/{path}"


SandboxType = TypeVar("SandboxType", bound=BackendSandbox)


class BackendHost(ABC, Generic[SandboxType]):
    """The part of the `StoringHost` protocol that needs nothing of a backend but how it makes one sandbox."""

    egress = False  # whether its sandboxes can have a proxy as their only way out

    def __init__(self, store: Store | Path, preload: tuple[str, ...] = ()) -> None:
        self.store = store if isinstance(store, Store) else Store(store)
        self._preload = preload
        self._sandboxes: set[SandboxType] = set()

    @property
    def preload(self) -> tuple[str, ...]:
        """Modules that its sandboxes can run; only a backend that forks from a loaded process has any."""
        return self._preload

    @classmethod
    @abstractmethod
    async def open(cls, store: Store | Path, preload: Sequence[str] = ()) -> Self:
        """Ready to make sandboxes; an `EtudeError` says why this machine cannot."""

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities: ...

    async def open_sandbox(self, recipe: SandboxRecipe, changes: Path | None) -> SandboxType:
        """A sandbox over the recipe's layers and, where given, a file of packed changes: for `start` and `fork`."""
        raise NotImplementedError

    async def start(
        self,
        base: Sequence[Layer] | Snapshot,
        *,
        limits: SandboxLimits | None = None,
        network: bool | Egress = False,
        env: Mapping[str, str] | None = None,
        workdir: str = WORKSPACE,
    ) -> SandboxType:
        if isinstance(network, Egress) and not self.egress:
            raise EtudeError(
                f"{self.capabilities.backend} sandboxes have no egress proxy; use local ones for this task"
            )
        layers = base.layers if isinstance(base, Snapshot) else tuple(base)
        recipe = SandboxRecipe(layers, limits or SandboxLimits(), network, dict(env or {}), workdir)
        return await self._start(recipe, base if isinstance(base, Snapshot) else None)

    async def _start(self, recipe: SandboxRecipe, snapshot: Snapshot | None) -> SandboxType:
        return await self.open_sandbox(recipe, None if snapshot is None else snapshot.path)

    async def _opened(self, sandbox: SandboxType, opening: Awaitable[None], failure: str) -> SandboxType:
        """The sandbox once it is open; one that cannot be opened is closed, and `failure` says what went wrong."""
        self._sandboxes.add(sandbox)
        try:
            await opening
        except OSError as error:
            await sandbox.close()
            raise SandboxFailure("start", f"{failure}: {error}") from error
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    def forget(self, sandbox: SandboxType) -> None:
        self._sandboxes.discard(sandbox)

    async def close(self) -> None:
        await asyncio.gather(*(sandbox.close() for sandbox in list(self._sandboxes)))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


def isolated_python(module: str, *arguments: object) -> list[str]:
    """The command that calls `main` of a module of ours in a new interpreter without site packages."""
    folder = str(Path(__file__).parents[2])
    given = ", ".join(map(repr, arguments))
    code = f"import sys; sys.path.insert(0, {folder!r}); from {module} import main; main({given})"
    # -I and -S: no environment variable, user folder or site package of the host runs in there.
    return [sys.executable, "-I", "-S", "-c", code]


def open_changes(path: Path) -> int:
    """A descriptor of packed changes of the store."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise SandboxFailure("store", f"the changes {path} cannot be read: {error.strerror}") from None


def copy_changes(path: Path, scratch: Path) -> Path:
    """Changes that stay while a sandbox can be reset: those that a fork packed are gone once it has started."""
    try:
        return Path(shutil.copyfile(path, scratch / "changes"))
    except OSError as error:
        raise SandboxFailure("store", f"the changes {path} cannot be read: {error.strerror}") from error
