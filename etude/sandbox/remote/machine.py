"""One sandbox host as a client sees it: its session, its beats, how busy it is, and which layers it has.

A connection that breaks is opened again; the sandboxes live on if that happens within the lease. After that, or when
the server was started again, they are gone, and every call for one of them is a `SandboxFailure` of cause "host".
Knows one machine; `host.py` chooses among several.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

from etude.core.errors import EtudeError
from etude.core.frame_calls import Caller, ConnectionLost
from etude.core.transport import Frame, pack, unpack
from etude.core.version import __version__
from etude.sandbox.base import Layer, SandboxFailure, Snapshot
from etude.sandbox.remote import layer_transfer
from etude.sandbox.remote.messages import (
    Beat,
    BlockRequest,
    Load,
    MachineFacts,
    MissingRequest,
    Started,
    StartRequest,
    as_array,
    as_bytes,
    raise_error,
    secret_of,
    split_address,
)
from etude.sandbox.store.layers import Store

UNREACHED: Final = "cannot be reached"
CALL_SECONDS: Final = 60.0  # for whatever takes no time of its own
WALK_SECONDS: Final = 150.0  # for what looks at all changed files; a backend's own limit is 120
_BEATS: Final = 4  # in one lease
_LONGEST_PAUSE: Final = 10.0  # seconds between two attempts to reach a machine that does not answer


class Machine:
    """A sandbox host at an address."""

    def __init__(self, address: str, token: str, store: Store) -> None:
        split_address(address)
        self.address, self.store = address, store
        self.session = secrets.token_hex(16)
        self.facts: MachineFacts | None = None
        self.load: Load | None = None
        self.asked = 0  # starts under way that its load does not count yet
        self.down = "it was not reached yet"  # why it takes no sandboxes; empty where it does
        self.cordoned = ""  # why it failed its sentinel
        self.refuse: Callable[[MachineFacts], str] = lambda facts: ""  # why one that is like this cannot be used
        self.generation = 0  # sandboxes of an earlier one are gone
        self.alive: set[int] = set()  # numbers of sandboxes that somebody has or waits for
        self._numbers = itertools.count(1)
        self._last = 0
        self._caller = Caller(address, deadline=CALL_SECONDS, secret=secret_of(token))
        self._sending: dict[str, asyncio.Task[None]] = {}  # layers on their way, by digest

    @property
    def usable(self) -> bool:
        return not self.down and not self.cordoned

    def number(self) -> int:
        """A name for a new sandbox."""
        self._last = next(self._numbers)
        self.alive.add(self._last)
        return self._last

    async def open(self) -> None:
        """Opens the session; an `EtudeError` or `SandboxFailure` says why there is none."""
        facts = unpack(MachineFacts, await self.call("hello", Frame({})))
        refused = self.refuse(facts)
        if facts.version != __version__:
            refused = f"runs etude {facts.version}, this is {__version__}: install the same"
        if refused:
            self.facts, self.down = None, f"the sandbox host {self.address} {refused}"
            raise EtudeError(self.down)
        if self.facts is not None and facts.instance != self.facts.instance:
            self._lose()
        self.facts, self.load, self.down = facts, facts.load, ""

    async def keep(self) -> None:
        """Beats until cancelled; reaches for the machine again when it is gone."""
        silent = 0.0  # seconds since it last answered
        while True:
            lease = 30.0 if self.facts is None else self.facts.lease
            pause = min(lease / _BEATS, _LONGEST_PAUSE)
            await asyncio.sleep(pause)
            try:
                # One that was refused has a session there, and would answer a beat.
                await (self.open() if self.facts is None else self.beat(pause))
                silent = 0.0
            except EtudeError as error:
                silent += pause
                self.down = str(error)
                lost = silent >= lease or (isinstance(error, SandboxFailure) and "does not know" in str(error))
                if lost:
                    self._lose()
                    self.session = secrets.token_hex(16)
                with contextlib.suppress(EtudeError):  # each call has a deadline of its own
                    # Only a new session is opened: the server would open one that it has ended anew, without its
                    # sandboxes, and nobody would hear that they are gone.
                    await (self.open() if lost or self.facts is None else self.beat(pause))
                    silent = 0.0

    async def beat(self, seconds: float = CALL_SECONDS) -> None:
        beat = Beat(tuple(self.alive), self._last)
        self.load = unpack(Load, await self.call("beat", pack(beat), max(seconds, 5.0)))
        self.down = ""

    async def close(self) -> None:
        with contextlib.suppress(EtudeError):
            await self.call("bye", Frame({}), 30.0)
        for task in self._sending.values():
            task.cancel()
        self._caller.close()

    def _lose(self) -> None:
        self.generation += 1
        self.alive.clear()

    async def call(self, verb: str, frame: Frame, seconds: float = CALL_SECONDS) -> Frame:
        """One verb; what went wrong there is raised as it was, what is wrong with the machine has the cause "host"."""
        request = Frame(frame.header | {"verb": verb, "session": self.session}, frame.arrays)
        try:
            answer = await self._caller.call(request, deadline=seconds)
        except ConnectionLost as gone:
            what = UNREACHED if self.facts is None else "is gone"
            raise SandboxFailure("host", f"the sandbox host {self.address} {what}: {gone}") from None
        except TimeoutError:
            text = f"waited {seconds:g} s for the sandbox host {self.address} to answer {verb!r}"
            raise SandboxFailure("host", text) from None
        raise_error(answer)
        return answer

    async def start(self, request: StartRequest, layers: Sequence[Layer], base: Snapshot | None) -> Started:
        """A sandbox, after what it needs was sent there; `Started.full` where there is no place."""
        started = await self._try_start(request)
        if started.missing:
            await self.send_layers(layers, started.missing)
            if base is not None and base.digest in started.missing:
                await self._once(base.digest, self._send_snapshot(base))
            started = await self._try_start(request)
            if started.missing and base is not None:  # it is only asked for once its layers are there
                await self._once(base.digest, self._send_snapshot(base))
                started = await self._try_start(request)
        if started.missing:
            raise SandboxFailure("store", f"{self.address} does not keep layer {started.missing[0][:12]}: is it full?")
        return started

    async def _try_start(self, request: StartRequest) -> Started:
        started = unpack(Started, await self.call("start", pack(request), CALL_SECONDS))
        self.load = started.load or self.load
        return started

    async def missing(self, layers: Sequence[Layer]) -> list[str]:
        """Digests of those that it does not have."""
        asked = MissingRequest(tuple(layer.digest for layer in layers))
        return [str(each) for each in (await self.call("missing", pack(asked))).header["missing"]]

    async def send_layers(self, layers: Sequence[Layer], digests: Sequence[str]) -> None:
        wanted = [layer for layer in layers if layer.digest in digests]
        await asyncio.gather(*(self._once(layer.digest, self._send_layer(layer)) for layer in wanted))

    async def _once(self, digest: str, sending: Any) -> None:
        """Of several that want the same layer sent, one sends it."""
        if digest in self._sending:
            sending.close()
        else:
            task = asyncio.ensure_future(sending)
            self._sending[digest] = task
            task.add_done_callback(lambda _: self._sending.pop(digest, None))
        # Shielded: one that is cancelled must not take it from the others.
        await asyncio.shield(self._sending[digest])

    async def _send_layer(self, layer: Layer) -> None:
        async with self._new_transfer() as (transfer, send):
            request = await layer_transfer.send_layer(self.store, layer, send, transfer)
            await self.call("publish", pack(request), WALK_SECONDS)

    async def _send_snapshot(self, snapshot: Snapshot) -> None:
        async with self._new_transfer() as (transfer, send):
            request = await layer_transfer.send_snapshot(snapshot, send, transfer)
            await self.call("publish", pack(request), WALK_SECONDS)

    @contextlib.asynccontextmanager
    async def _new_transfer(self) -> AsyncIterator[tuple[int, layer_transfer.SendBlock]]:
        transfer = int((await self.call("transfer", Frame({}))).header["transfer"])

        async def send(offset: int, data: bytes) -> None:
            await self.call("put block", pack(BlockRequest(transfer, offset, as_array(data))))

        try:
            yield transfer, send
        except Exception:  # one that is cancelled is so because the session ends
            await self._end_transfer(transfer)  # what came of it would stay on that disk until the session ends
            raise

    async def _end_transfer(self, transfer: int) -> None:
        with contextlib.suppress(EtudeError):
            await self.call("end transfer", pack(BlockRequest(transfer, 0, as_array(b""))))

    async def receive(self, transfer: int, size: int, out: int) -> None:
        """What a machine made, into a file of ours."""

        async def read(offset: int) -> bytes:
            answer = await self.call("get block", pack(BlockRequest(transfer, offset, as_array(b""))))
            return as_bytes(answer.arrays["data"])

        try:
            await layer_transfer.receive(out, size, read)
        finally:
            await self._end_transfer(transfer)
