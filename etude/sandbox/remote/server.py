"""The sandboxes of this machine for clients on others: `etude sandbox serve`.

A client opens a session with the token and names its sandboxes by numbers of its own. Its beats renew its lease and
list what it still has: what a lost answer left behind is closed at the next beat, and all of a client that is gone
when its lease is over. A server that is killed takes its sandboxes along (the backend sees to that). Places, memory
and pressure decide whether another sandbox is made; many that are asked for at once are made a few at a time.
Knows no machine but its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from etude.core.errors import EtudeError
from etude.core.frame_calls import Answering, Send
from etude.core.transport import Frame, pack, unpack
from etude.core.version import __version__
from etude.sandbox.backend import BackendHost, BackendSandbox
from etude.sandbox.base import Layer, NotFrozen, RunsApart, SandboxFailure, Snapshot
from etude.sandbox.remote import layer_transfer, messages
from etude.sandbox.remote.messages import (
    Beat,
    BlockRequest,
    CommandRequest,
    LayerName,
    Load,
    MachineFacts,
    MissingRequest,
    ProcessRequest,
    PublishRequest,
    ReadRequest,
    ReplaceRequest,
    SandboxRequest,
    Started,
    StartRequest,
    WriteRequest,
    as_array,
    as_bytes,
)
from etude.sandbox.remote.pressure import Pressure, read_pressure
from etude.sandbox.replace_text import replace_text
from etude.sandbox.store.layers import interpreter_folders, system_folders
from etude.sandbox.streams import StreamedProcess

POLL_SECONDS: Final = 20.0  # after which a program without output is reported as such: the client sees that we live
_TICKS: Final = 4  # looks at a lease before it is over
_RESERVE: Final = 512 << 20  # bytes of memory that are never given to sandboxes
_BUSY: Final = 0.5  # share of time with tasks waiting for memory above which no sandbox is added
_PRUNE_SECONDS: Final = 60.0
_PRESSURE_SECONDS: Final = 0.2  # between two looks at memory and pressure: a burst adds some 20 sandboxes meanwhile


@dataclass
class HeldSandbox:
    sandbox: BackendSandbox
    processes: dict[int, StreamedProcess] = field(default_factory=dict)
    last: int = 0

    def process(self, number: int) -> StreamedProcess:
        if number not in self.processes:
            raise EtudeError(f"there is no program {number} in this sandbox")
        return self.processes[number]


@dataclass
class Session:
    """One client."""

    sandboxes: dict[int, HeldSandbox] = field(default_factory=dict)
    starting: set[int] = field(default_factory=set)
    transfers: dict[int, int] = field(default_factory=dict)  # number -> file without a name
    last: int = 0
    ticks: int = 0  # looks at the lease since it was last renewed
    closed: bool = False

    def held(self, number: int) -> HeldSandbox:
        if number not in self.sandboxes:
            raise SandboxFailure("closed", f"sandbox {number} is not open on this host")
        return self.sandboxes[number]


@dataclass(frozen=True)
class ServerSettings:
    token: str
    places: int  # sandboxes at once
    lease: float = 30.0  # seconds
    shows: tuple[str, ...] = ()  # folders that layers may show beside the system's and the interpreter's
    store_bytes: int = 50 << 30  # of layers and snapshots that are kept
    idle: float = 0.0  # seconds without a client after which the server ends; 0: it stays


class SandboxServer:
    """The verbs of a sandbox host, for `frame_calls.Answering`."""

    def __init__(self, host: BackendHost[Any], settings: ServerSettings) -> None:
        self.host, self.settings = host, settings
        self.instance = secrets.token_hex(8)
        self._pressure: Pressure | None = None
        self._looked = 0.0
        self.sessions: dict[str, Session] = {}
        self._shown = {*system_folders(), *interpreter_folders(), *settings.shows}
        # Two for each core: one waits while another works. More at once only make each of them late.
        self._burst = asyncio.Semaphore(2 * (os.cpu_count() or 1))
        self._verbs: dict[str, Callable[[Session, Frame], Awaitable[Frame]]] = {
            "beat": self._beat,
            "start": self._start,
            "fork": self._fork,
            "run": self._run,
            "spawn": self._spawn,
            "output": self._output,
            "send": self._send,
            "close stdin": self._close_stdin,
            "kill": self._kill,
            "read": self._read,
            "write": self._write,
            "replace": self._replace,
            "diff": self._diff,
            "snapshot": self._snapshot,
            "reset": self._reset,
            "close": self._close,
            "missing": self._missing,
            "transfer": self._transfer,
            "put block": self._put_block,
            "get block": self._get_block,
            "end transfer": self._end_transfer,
            "publish": self._publish,
        }

    async def listen(self, listener: socket.socket) -> Answering:
        """Answer whoever knows the token, until the answer of this is closed."""
        answering = Answering(self.handle, largest=messages.LARGEST)
        await answering.listen(listener, messages.secret_of(self.settings.token))
        return answering

    async def handle(self, frame: Frame, send: Send) -> Frame:
        verb, name = frame.header.get("verb"), frame.header.get("session")
        if not isinstance(name, str) or len(name) < 16:
            raise EtudeError("a request has no session")
        try:
            if verb == "hello":
                return self._hello(name)
            if verb == "bye":
                await self._end(name)
                return Frame({})
            if name not in self.sessions:
                text = "the sandbox host does not know this session: it was started again, or the lease ended"
                raise SandboxFailure("host", text)
            session = self.sessions[name]
            session.ticks = 0
            if verb not in self._verbs:
                raise EtudeError(f"a sandbox host has no verb {verb!r}")
            return await self._verbs[verb](session, frame)
        except (SandboxFailure, NotFrozen, OSError) as error:
            return messages.error_frame(error)

    async def keep(self) -> None:
        """Ends sessions whose lease is over, and keeps the store within its bounds; until nobody needs it."""
        waited = idle = 0.0
        pause = self.settings.lease / _TICKS
        while True:
            await asyncio.sleep(pause)
            # Looks are counted, not seconds: when this process stood still, no client is at fault.
            for name, session in list(self.sessions.items()):
                session.ticks += 1
                if session.ticks > _TICKS:
                    await self._end(name)
            idle = 0.0 if self.sessions else idle + pause
            if self.settings.idle and idle >= self.settings.idle:
                return
            waited += pause
            if waited > _PRUNE_SECONDS:
                waited = 0.0
                try:
                    await asyncio.to_thread(self.host.store.prune, self.settings.store_bytes)
                except OSError as error:  # of another process at the same store, or of the disk: sandboxes live on
                    print(f"the layer store was not pruned: {error}", file=sys.stderr, flush=True)

    async def close(self) -> None:
        await asyncio.gather(*(self._end(name) for name in list(self.sessions)))

    # Sessions

    def _hello(self, name: str) -> Frame:
        self.sessions.setdefault(name, Session()).ticks = 0
        capabilities, preload = self.host.capabilities, self.host.preload
        facts = MachineFacts(self.instance, __version__, capabilities, preload, self.settings.lease, self.load())
        return pack(facts)

    async def _beat(self, session: Session, frame: Frame) -> Frame:
        beat = unpack(Beat, frame)
        alive = set(beat.alive)
        gone = [number for number in session.sandboxes if number <= beat.highest and number not in alive]
        await asyncio.gather(*(self._forget(session, number) for number in gone))
        return pack(self.load())

    async def _end(self, name: str) -> None:
        session = self.sessions.pop(name, None)
        if session is None:
            return
        session.closed = True
        for file in session.transfers.values():
            os.close(file)
        session.transfers.clear()
        await asyncio.gather(*(self._forget(session, number) for number in list(session.sandboxes)))

    async def _forget(self, session: Session, number: int) -> None:
        held = session.sandboxes.pop(number, None)
        if held is not None:
            try:
                with contextlib.suppress(SandboxFailure):
                    await held.sandbox.close()
            except OSError as error:  # of this machine: neither the other sandboxes nor the leases may end with it
                print(f"a sandbox was not ended properly: {error}", file=sys.stderr, flush=True)

    def load(self) -> Load:
        now = asyncio.get_running_loop().time()
        # Not at every start of a burst: the kernel sums up a control group anew for each reader.
        if self._pressure is None or now - self._looked > _PRESSURE_SECONDS:
            self._pressure, self._looked = read_pressure(), now
        pressure = self._pressure
        return Load(
            self.settings.places,
            sum(len(each.sandboxes) for each in self.sessions.values()),
            sum(len(each.starting) for each in self.sessions.values()),
            pressure.memory_bytes,
            max(0, pressure.available - _RESERVE),
            pressure.cpu,
            pressure.memory,
            pressure.io,
        )

    # Sandboxes

    async def _start(self, session: Session, frame: Frame) -> Frame:
        asked = unpack(StartRequest, frame)
        base, missing = await asyncio.to_thread(self._base, asked)
        if missing:
            return pack(Started(missing=missing))
        load = self.load()
        why = "" if asked.sentinel else _full(load)
        if why:
            return pack(Started(full=why, load=load))

        async def make() -> BackendSandbox:
            given: dict[str, Any] = {"limits": asked.limits, "network": asked.egress or asked.network, "env": asked.env}
            sandbox: BackendSandbox = await self.host.start(base, workdir=asked.workdir, **given)
            return sandbox

        sandbox = await self._make(session, asked.number, make)
        return pack(Started(load=load, files=sandbox.capabilities.files, apart=isinstance(sandbox, RunsApart)))

    async def _fork(self, session: Session, frame: Frame) -> Frame:
        asked = unpack(SandboxRequest, frame)
        sandbox = await self._make(session, asked.number, session.held(asked.sandbox).sandbox.fork)
        return pack(Started(files=sandbox.capabilities.files, apart=isinstance(sandbox, RunsApart)))

    async def _make(
        self, session: Session, number: int, make: Callable[[], Awaitable[BackendSandbox]]
    ) -> BackendSandbox:
        if number in session.sandboxes or number in session.starting:
            raise EtudeError(f"there is a sandbox {number} already")
        session.starting.add(number)
        try:
            async with self._burst:
                sandbox = await make()
        finally:
            session.starting.discard(number)
        if session.closed:
            await sandbox.close()
            raise SandboxFailure("closed", "the session has ended")
        session.sandboxes[number] = HeldSandbox(sandbox)
        return sandbox

    def _base(self, asked: StartRequest) -> tuple[Sequence[Layer] | Snapshot, tuple[str, ...]]:
        """What to start over, or the digests that are not here."""
        store = self.host.store
        self._check_shows(asked.layers)
        missing = [each.digest for each in asked.layers if not self._has(each.digest)]
        layers = tuple(store.layer(each.digest) for each in asked.layers if each.digest not in missing)
        # What the store says counts: whoever shares it may have made a layer that shows more than the client says.
        self._check_shows([LayerName(each.digest, each.shows) for each in layers])
        if not missing and asked.snapshot:
            try:
                # Over the layers that are asked for: the same changes over others have the same name.
                return replace(store.snapshot(asked.snapshot), layers=layers), ()
            except EtudeError:
                missing.append(asked.snapshot)
        return layers, tuple(missing)

    def _check_shows(self, layers: Sequence[LayerName]) -> None:
        # A client may not have any folder of this machine shown: the token is for sandboxes, not for our files.
        for path in (path for layer in layers for path in layer.shows):
            if path not in self._shown:
                raise EtudeError(
                    f"a layer shows {path}, which this sandbox host does not: install the same Python at the same "
                    "place here, or allow the folder with --show"
                )

    async def _run(self, session: Session, frame: Frame) -> Frame:
        asked = unpack(CommandRequest, frame)
        sandbox = session.held(asked.sandbox).sandbox
        if asked.command.timeout is None or (asked.command.apart and not isinstance(sandbox, RunsApart)):
            raise EtudeError("this sandbox host cannot run a program so: without a deadline, or apart")
        return messages.result_frame(await sandbox.run_command(asked.command, as_bytes(asked.stdin)))

    async def _read(self, session: Session, frame: Frame) -> Frame:
        asked = unpack(ReadRequest, frame)
        data = await session.held(asked.sandbox).sandbox.read(asked.path, offset=asked.offset, limit=asked.limit)
        return Frame({}, {"data": as_array(data)})

    async def _write(self, session: Session, frame: Frame) -> Frame:
        asked = unpack(WriteRequest, frame)
        await session.held(asked.sandbox).sandbox.write(asked.path, as_bytes(asked.data), mode=asked.mode)
        return Frame({})

    async def _replace(self, session: Session, frame: Frame) -> Frame:
        asked = unpack(ReplaceRequest, frame)
        sandbox, (old, new) = session.held(asked.sandbox).sandbox, map(as_bytes, (asked.old, asked.new))
        data = await replace_text(sandbox, asked.path, old, new, most=asked.most)
        return Frame({}) if data is None else Frame({}, {"data": as_array(data)})

    async def _diff(self, session: Session, frame: Frame) -> Frame:
        asked = unpack(SandboxRequest, frame)
        changes = await session.held(asked.sandbox).sandbox.diff(asked.path)
        # Behind the header, whose size is bounded: an agent may leave any number of files with long names.
        data = json.dumps([list(vars(change).values()) for change in changes]).encode()
        if len(data) > messages.LARGEST:
            raise SandboxFailure("protocol", f"the list of changes has {len(data)} bytes; too many files were changed")
        return Frame({}, {"changes": as_array(data)})

    async def _snapshot(self, session: Session, frame: Frame) -> Frame:
        asked = unpack(SandboxRequest, frame)
        made = await session.held(asked.sandbox).sandbox.snapshot()
        file = os.open(made.path, os.O_RDONLY | os.O_CLOEXEC)
        return Frame({"transfer": self._keep_transfer(session, file), "size": made.size})

    async def _reset(self, session: Session, frame: Frame) -> Frame:
        await session.held(unpack(SandboxRequest, frame).sandbox).sandbox.reset()
        return Frame({})

    async def _close(self, session: Session, frame: Frame) -> Frame:
        await self._forget(session, unpack(SandboxRequest, frame).sandbox)
        return Frame({})

    # Programs that stay

    async def _spawn(self, session: Session, frame: Frame) -> Frame:
        asked = unpack(CommandRequest, frame)
        held = session.held(asked.sandbox)
        process = await held.sandbox.spawn_command(replace(asked.command, timeout=None, apart=False))
        held.last += 1
        held.processes[held.last] = process
        return Frame({"process": held.last})

    async def _output(self, session: Session, frame: Frame) -> Frame:
        """What a program wrote since the last answer, as soon as there is something; with its end, how it ended."""
        asked = unpack(ProcessRequest, frame)
        held = session.held(asked.sandbox)
        process = held.process(asked.process)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(POLL_SECONDS):
                await process.more_output()
        if not process.running:
            result = await process.wait(0)
            assert result is not None
            return messages.result_frame(result)
        stdout, stderr = process.output()
        return Frame({}, {"stdout": as_array(stdout), "stderr": as_array(stderr)})

    async def _send(self, session: Session, frame: Frame) -> Frame:
        asked = unpack(ProcessRequest, frame)
        held = session.held(asked.sandbox)
        if asked.process in held.processes:  # one that has ended takes nothing, which is no error
            await held.process(asked.process).send(as_bytes(asked.data))
        return Frame({})

    async def _close_stdin(self, session: Session, frame: Frame) -> Frame:
        asked = unpack(ProcessRequest, frame)
        held = session.held(asked.sandbox)
        if asked.process in held.processes:
            await held.process(asked.process).close_stdin()
        return Frame({})

    async def _kill(self, session: Session, frame: Frame) -> Frame:
        asked = unpack(ProcessRequest, frame)
        return messages.result_frame(await session.held(asked.sandbox).process(asked.process).kill())

    # Layers and snapshots

    async def _missing(self, session: Session, frame: Frame) -> Frame:
        asked = unpack(MissingRequest, frame)
        return Frame({"missing": await asyncio.to_thread(lambda: [d for d in asked.digests if not self._has(d)])})

    def _has(self, digest: str) -> bool:
        with contextlib.suppress(EtudeError):
            self.host.store.layer(digest)
            return True
        return False

    async def _transfer(self, session: Session, frame: Frame) -> Frame:
        return Frame({"transfer": self._keep_transfer(session, self.host.store.unnamed_file())})

    def _keep_transfer(self, session: Session, file: int) -> int:
        session.last += 1
        session.transfers[session.last] = file
        return session.last

    def _file(self, session: Session, number: int) -> int:
        if number not in session.transfers:
            raise EtudeError(f"there is no transfer {number}")
        return session.transfers[number]

    async def _put_block(self, session: Session, frame: Frame) -> Frame:
        asked = unpack(BlockRequest, frame)
        file = os.dup(self._file(session, asked.transfer))  # the session may end meanwhile
        try:
            await asyncio.to_thread(layer_transfer.write_block, file, asked.offset, as_bytes(asked.data))
        except OSError as error:  # of this machine's disk, not of a sandbox's files
            raise SandboxFailure("store", f"a layer cannot be taken: {error.strerror or error}") from None
        finally:
            os.close(file)
        return Frame({})

    async def _get_block(self, session: Session, frame: Frame) -> Frame:
        asked = unpack(BlockRequest, frame)
        data = os.pread(self._file(session, asked.transfer), messages.BLOCK, asked.offset)
        return Frame({}, {"data": as_array(data)})

    async def _end_transfer(self, session: Session, frame: Frame) -> Frame:
        number = unpack(BlockRequest, frame).transfer
        self._file(session, number)
        os.close(session.transfers.pop(number))
        return Frame({})

    async def _publish(self, session: Session, frame: Frame) -> Frame:
        asked = unpack(PublishRequest, frame)
        self._check_shows([LayerName(asked.digest, asked.shows)])
        self._file(session, asked.transfer)
        file = session.transfers.pop(asked.transfer)
        try:
            await asyncio.to_thread(layer_transfer.publish, self.host.store, file, asked)
        finally:
            os.close(file)
        return Frame({})


def _full(load: Load) -> str:
    """Why no sandbox is added now; empty where one is."""
    if not load.free:
        return f"all {load.places} places are taken"
    if not load.available:
        return f"less than {_RESERVE >> 20} MB of memory are left"
    if load.memory_pressure > _BUSY:
        return f"tasks wait for memory {load.memory_pressure:.0%} of the time"
    return ""


def default_places(memory: int) -> int:
    """One sandbox for each 8 MB: an idle one with one small program took 4.4 MB, measured over 200 by
    `benchmarks/reliability/sandbox_fleet.py`. What sandboxes use beyond that, memory and pressure watch."""
    return max(1, min(4000, memory // (8 << 20)))
