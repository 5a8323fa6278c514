"""The sandbox protocol and its nouns. Knows no backend, no kernel call and no store.

A `Host` makes sandboxes from layers; a `Sandbox` runs programs, reads and writes files, and can be listed
(`diff`), kept (`snapshot`), copied (`fork`), emptied (`reset`) and closed.

Three kinds of trouble, never mixed:
- the program failed: a `CommandResult` with its exit code, also when a limit or the deadline ended it;
- a file was not there or not allowed: `OSError`, exactly as from `open`;
- the machinery failed: `SandboxFailure`, which is nobody's score.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, Self, runtime_checkable

from etude.core.errors import EtudeError

WORKSPACE = "/workspace"

# "host": the machine that the sandbox was on is gone or broken, and others may be there.
FailureCause = Literal["start", "launcher", "died", "deadline", "protocol", "store", "closed", "host"]


class SandboxFailure(EtudeError):
    """The machinery failed, not the program in it: a rollout becomes Void, never a reward."""

    def __init__(self, cause: FailureCause, message: str) -> None:
        super().__init__(message)
        self.cause: FailureCause = cause


class NotFrozen(EtudeError):
    """Programs could not be kept with their memory (their sandbox goes on as it was), or not be brought back."""


@dataclass(frozen=True)
class SandboxLimits:
    """What one sandbox may use. Files of a sandbox live in memory, so it may use `memory + disk` bytes of it."""

    memory: int = 1 << 30  # bytes, all its processes together
    disk: int = 512 << 20  # bytes of files written
    processes: int = 256  # processes and threads alive at once
    cpu_seconds: int = 600  # processor time of any one process
    cpus: float = 0.0  # processors used at once, where a cgroup can say so; 0 is no limit
    open_files: int = 1024  # descriptors of any one process
    output: int = 1 << 20  # bytes kept of each stream of one run, unless `max_output` says otherwise


@dataclass(frozen=True)
class Egress:
    """A network that reaches these hosts alone, through a proxy: `name`, `*.name`, either with `:port` (80 and 443)."""

    hosts: tuple[str, ...] = ()
    private: tuple[str, ...] = ()  # that may be at addresses which are not public: a mirror of one's own


@dataclass(frozen=True)
class Capabilities:
    """What a backend really does on this machine; goes into every report."""

    backend: str
    isolated: bool  # own files, processes and network; False only in the backend that was asked for by name
    network_off: bool  # a sandbox without network has none
    memory: str  # what holds the memory limit: "cgroup2", "cgroup1", "watch" (rlimit and watching), "rlimit"
    processes: str  # what holds the process limit: "namespace", "cgroup" or "none"
    disk: str  # what holds the disk limit: "tmpfs" or "file size"
    kill: str  # what ends a process tree: "pid namespace", "subreaper" or "process group"
    users: str = "shared"  # outside users of the sandboxes: "one each", or "shared", as the kernel's counts then are
    trusted: str = "none"  # what keeps programs off our own processes: "own user", "filter" (of calls) or "none"
    files: str = "shared inodes"  # how files of the host are shown: "own inodes", or as what they are there

    def stamp(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Layer:
    """A read-only tree, named by its content. Paths in it start at the sandbox's root.

    `shows` names the host's folders that a program needs beside the layer (read-only at the same place): the
    system's and the interpreter's for a layer that only brings a workspace, none for one with a root of its own.
    """

    digest: str
    path: Path
    shows: tuple[str, ...] = ()


@dataclass(frozen=True)
class Snapshot:
    """Everything a sandbox changed over its layers, in one file named by its content."""

    digest: str
    path: Path
    layers: tuple[Layer, ...]
    size: int  # bytes of the file


@dataclass(frozen=True)
class FrozenSandbox:
    """A sandbox in the middle of its work: what it changed over its layers, and its programs with their memory."""

    digest: str
    path: Path  # a folder
    layers: tuple[Layer, ...]
    size: int  # bytes of all files in it


@dataclass(frozen=True)
class Change:
    """One path that differs from the layers. A changed folder is listed only when it came, went or changed its mode."""

    path: str  # absolute, in the sandbox; bytes that are not UTF-8 as lone surrogates
    kind: Literal["added", "modified", "deleted"]
    what: Literal["file", "folder", "link", "other"]
    size: int = 0
    mode: int = 0  # permission bits
    target: str = ""  # where a link points


@dataclass(frozen=True)
class CommandResult:
    """How a program ended and what it wrote."""

    code: int  # exit code; minus the signal that ended it; 127 or 126 when it could not be started, as a shell says it
    stdout: bytes
    stderr: bytes
    timed_out: bool = False
    truncated: bool = False  # a stream was longer than `max_output`: its middle is left out, and says so
    oom: bool = False  # the memory limit ended it, or a process of it
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return self.code == 0 and not self.timed_out


class Process(Protocol):
    """A program that was spawned: it lives until it ends, is killed, or its sandbox is reset or closed."""

    @property
    def running(self) -> bool: ...

    async def send(self, data: bytes) -> None:
        """Write to its standard input."""
        ...

    async def close_stdin(self) -> None: ...

    def output(self) -> tuple[bytes, bytes]:
        """Standard output and error since the last call (each at most the limit: the oldest is dropped)."""
        ...

    async def wait(self, timeout: float) -> CommandResult | None:
        """How it ended, with the output not yet taken; None when it still runs after `timeout` seconds."""
        ...

    async def kill(self) -> CommandResult:
        """End it and everything it started."""
        ...


class Sandbox(Protocol):
    """One sandbox. Closed by `close()` or by leaving `async with`; nothing in it outlives that.

    Paths are those of the sandbox; relative ones start at its working folder.
    """

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def layers(self) -> tuple[Layer, ...]: ...

    @property
    def limits(self) -> SandboxLimits: ...

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
        """Run a program to its end or its deadline; when this returns, everything that it started is dead.

        `cwd` is the workspace unless given; `env` is added to a small fixed environment (never the host's).
        """
        ...

    async def spawn(
        self, argv: Sequence[str], *, cwd: str | None = None, env: Mapping[str, str] | None = None
    ) -> Process:
        """Start a program that may stay."""
        ...

    async def read(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
        """Bytes of a regular file. Without `limit` the whole file, at most 64 MiB (`OSError` EFBIG above)."""
        ...

    async def write(self, path: str, data: bytes, *, mode: int | None = None) -> None:
        """Replace a file's content, making its folders. Links are followed, never out of the sandbox."""
        ...

    async def diff(self, under: str = "/") -> list[Change]:
        """What differs from the layers, sorted by path. Counted from the layers also after a fork or a restore."""
        ...

    async def snapshot(self) -> Snapshot:
        """Keep all changes in the store. Programs that run are stopped meanwhile and go on afterwards."""
        ...

    async def fork(self) -> Sandbox:
        """A new sandbox with the same layers, limits and files; programs are not copied."""
        ...

    async def reset(self) -> None:
        """End every program and go back to the files that the sandbox was started with."""
        ...

    async def close(self) -> None: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *error: object) -> None: ...


@runtime_checkable
class RunsApart(Protocol):
    """A sandbox whose backend can give a program a pid namespace of its own."""

    async def run_apart(
        self,
        program: str | Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout: float = 60.0,
        max_output: int | None = None,
    ) -> CommandResult:
        """As `run`, but the program is alone in its pid namespace: nothing that it starts can name it.

        It can start processes, but no thread of its own (the kernel's rule for such a process).
        A name is a module that the host has loaded (`preload`): its `main` runs in a fork of that process, without
        an exec, in the workspace.
        """
        ...


@runtime_checkable
class Freezes(Protocol):
    """A sandbox whose backend can keep its programs with their memory."""

    @property
    def programs(self) -> tuple[Process, ...]:
        """What was spawned and still runs, first one first: in a thawed sandbox, what came back."""
        ...

    async def freeze(self) -> FrozenSandbox:
        """Keep all changes and every program that runs in the store. The programs stand still meanwhile, then go on."""
        ...


@runtime_checkable
class Thaws(Protocol):
    """A host that can make a sandbox of one that was frozen, any number of times."""

    async def thaw(self, frozen: FrozenSandbox) -> Sandbox:
        """A new sandbox with the same limits and files, in which the programs go on from where they were."""
        ...


class Host(Protocol):
    """Makes sandboxes on one machine. Closing it closes them all."""

    @property
    def capabilities(self) -> Capabilities: ...

    async def start(
        self,
        base: Sequence[Layer] | Snapshot,
        *,
        limits: SandboxLimits | None = None,
        network: bool | Egress = False,
        env: Mapping[str, str] | None = None,
        workdir: str = WORKSPACE,
    ) -> Sandbox:
        """A new sandbox over layers (later ones on top), or over a snapshot and the layers it belongs to."""
        ...

    async def close(self) -> None: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *error: object) -> None: ...
