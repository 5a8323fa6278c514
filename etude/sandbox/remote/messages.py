"""What a client and a sandbox server say to each other, and how errors travel.

Every call is a frame (`core.frame_calls`) with a verb, the client's session and one of these messages; bytes travel as
arrays. Knows neither sockets nor sandboxes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from etude.core.errors import EtudeError
from etude.core.tcp_address import SharedSecret
from etude.core.transport import Frame
from etude.sandbox.backend import Command
from etude.sandbox.base import (
    Capabilities,
    CommandResult,
    Egress,
    FailureCause,
    NotFrozen,
    SandboxFailure,
    SandboxLimits,
)

_PROTOCOL: Final = 2  # another number is another set of messages, and no side believes the other's proof
BLOCK: Final = 4 << 20  # bytes of a layer that travel in one frame
LARGEST: Final = 256 << 20  # bytes of one frame: a file that is written is sent whole

Bytes = npt.NDArray[np.uint8]


def as_array(data: bytes) -> Bytes:
    return np.frombuffer(data, np.uint8)


def as_bytes(data: Bytes) -> bytes:
    return data.tobytes()


@dataclass(frozen=True)
class Load:
    """How busy a machine is. Shares are of 1; a pressure that the kernel does not tell is 0."""

    places: int  # sandboxes that it offers
    live: int  # sandboxes that there are
    starting: int  # that are being made or wait for it
    memory: int  # bytes that it has
    available: int  # bytes of them that a new sandbox could have
    cpu: float  # share of the last 10 s in which something waited for a processor
    memory_pressure: float  # ... for memory
    io: float  # ... for a disk

    @property
    def free(self) -> int:
        return max(0, self.places - self.live - self.starting)


@dataclass(frozen=True)
class MachineFacts:
    """What a server says about itself when a session opens."""

    instance: str  # another one after every start of the server: older sandboxes are gone
    version: str  # of the package
    capabilities: Capabilities
    preload: tuple[str, ...]
    lease: float  # seconds without a word from a client after which its sandboxes end
    load: Load


@dataclass(frozen=True)
class LayerName:
    """A layer that a sandbox is to start over."""

    digest: str
    shows: tuple[str, ...]


@dataclass(frozen=True)
class StartRequest:
    number: int  # the client's own name for it: one whose answer was lost can still be closed
    layers: tuple[LayerName, ...]
    snapshot: str  # its digest; empty: none
    limits: SandboxLimits
    network: bool
    egress: Egress | None
    env: dict[str, str]
    workdir: str
    sentinel: bool = False  # made to see whether this machine works: without regard to places


@dataclass(frozen=True)
class Started:
    """A new sandbox; or what has to be sent first, or that there is no place."""

    missing: tuple[str, ...] = ()  # digests
    full: str = ""  # why
    load: Load | None = None
    files: str = ""  # as in `Capabilities`: a sandbox's own may differ from the host's
    apart: bool = False  # whether it has `run_apart`


@dataclass(frozen=True)
class CommandRequest:
    """A program to run to its end, or to start."""

    sandbox: int
    command: Command
    stdin: Bytes


@dataclass(frozen=True)
class ProcessRequest:
    """Of a spawned program: more output, its input, its end."""

    sandbox: int
    process: int
    data: Bytes = field(default_factory=lambda: as_array(b""))


@dataclass(frozen=True)
class ReadRequest:
    sandbox: int
    path: str
    offset: int
    limit: int | None


@dataclass(frozen=True)
class WriteRequest:
    sandbox: int
    path: str
    data: Bytes
    mode: int | None


@dataclass(frozen=True)
class ReplaceRequest:
    sandbox: int
    path: str
    old: Bytes
    new: Bytes
    most: int


@dataclass(frozen=True)
class SandboxRequest:
    """What needs nothing but the sandbox: snapshot, reset, close; `path` for diff, `number` for the copy of a fork."""

    sandbox: int
    path: str = "/"
    number: int = 0


@dataclass(frozen=True)
class Beat:
    """A client lives, and these are the sandboxes that it has or waits for; older ones that are missing are closed."""

    alive: tuple[int, ...]
    highest: int


@dataclass(frozen=True)
class BlockRequest:
    """A part of a layer or snapshot: to be kept, or to be read."""

    transfer: int
    offset: int
    data: Bytes


@dataclass(frozen=True)
class MissingRequest:
    """Which of these layers are not there?"""

    digests: tuple[str, ...]


@dataclass(frozen=True)
class PublishRequest:
    """What was sent is whole: take it into the store under its digest."""

    transfer: int
    digest: str
    shows: tuple[str, ...]
    layers: tuple[LayerName, ...]  # that a snapshot lies over
    kind: str  # "tree", "changes" (a layer made from a snapshot) or "snapshot"


def secret_of(token: str) -> SharedSecret:
    """What a client and a sandbox host prove to each other that they know."""
    return SharedSecret(token.encode(), f"a sandbox host with messages of version {_PROTOCOL}")


def result_frame(result: CommandResult) -> Frame:
    facts = {key: value for key, value in vars(result).items() if key not in ("stdout", "stderr")}
    return Frame({"result": facts}, {"stdout": as_array(result.stdout), "stderr": as_array(result.stderr)})


def read_result(frame: Frame) -> CommandResult:
    stdout, stderr = (as_bytes(frame.arrays[name]) for name in ("stdout", "stderr"))
    return CommandResult(stdout=stdout, stderr=stderr, **frame.header["result"])


def error_frame(error: SandboxFailure | NotFrozen | OSError) -> Frame:
    if isinstance(error, SandboxFailure):
        return Frame({"failure": [error.cause, str(error)]})
    if isinstance(error, NotFrozen):
        return Frame({"not frozen": str(error)})
    return Frame({"os": [error.errno, error.strerror or str(error), error.filename]})


def raise_error(frame: Frame) -> None:
    """What went wrong on the other side, raised as it was there."""
    header: dict[str, Any] = frame.header
    if "failure" in header:
        cause: FailureCause = header["failure"][0]
        raise SandboxFailure(cause, str(header["failure"][1]))
    if "not frozen" in header:
        raise NotFrozen(str(header["not frozen"]))
    if "os" in header:
        number, text, name = header["os"]
        raise OSError(number, text, name) if isinstance(number, int) else OSError(text)


def split_address(address: str) -> tuple[str, int] | None:
    """Host and port; None for the path of a local socket."""
    if "/" in address:
        return None
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise EtudeError(f"{address!r} is no address of a sandbox host: give HOST:PORT or the path of a local socket")
    return host.strip("[]"), int(port)
