"""A sandbox and a program on another machine, by the usual protocol: each verb is one call there.

What fails there is raised here as it was. A failure that a program may have caused is believed only if the machine
passes its sentinel; otherwise it is the machine's (cause "host"). Knows one machine and the host it belongs to.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol, Self

from etude.core.errors import EtudeError
from etude.core.transport import Frame, pack, unpack
from etude.sandbox.backend import SandboxRecipe
from etude.sandbox.base import Capabilities, Change, CommandResult, Layer, SandboxFailure, SandboxLimits, Snapshot
from etude.sandbox.remote.machine import CALL_SECONDS, WALK_SECONDS, Machine
from etude.sandbox.remote.messages import (
    ProcessRequest,
    ReadRequest,
    RunRequest,
    SandboxRequest,
    SnapshotAnswer,
    SpawnRequest,
    Started,
    WriteRequest,
    as_array,
    as_bytes,
    read_result,
)
from etude.sandbox.sentinel import CAUSED_INSIDE
from etude.sandbox.streams import KeptOutput

_GRACE_SECONDS: Final = 60.0  # past a program's deadline, for the backend to end it and for the way back


class SandboxOwner(Protocol):
    """What a sandbox asks of the host that made it."""

    def made(self, machine: Machine, number: int, recipe: SandboxRecipe, started: Started) -> RemoteSandbox:
        """A sandbox that came up on a machine."""
        ...

    def forget(self, sandbox: RemoteSandbox) -> None: ...

    async def machine_works(self, machine: Machine, layers: Sequence[Layer]) -> bool: ...


class RemoteSandbox:
    """One sandbox; made by `RemoteHost.start`."""

    def __init__(
        self, host: SandboxOwner, machine: Machine, number: int, recipe: SandboxRecipe, started: Started
    ) -> None:
        self._host, self._machine, self._number = host, machine, number
        self._recipe = recipe
        self._started = started
        self._generation = machine.generation
        self._closed = False
        self._failure: SandboxFailure | None = None
        assert machine.facts is not None
        self._capabilities = replace(machine.facts.capabilities, files=started.files)

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def layers(self) -> tuple[Layer, ...]:
        return self._recipe.layers

    @property
    def limits(self) -> SandboxLimits:
        return self._recipe.limits

    @property
    def machine(self) -> str:
        """The address of the host that it is on."""
        return self._machine.address

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
        if not argv:
            raise EtudeError("a program needs a name: argv is empty")
        request = RunRequest(
            self._number, tuple(argv), cwd, dict(env or {}), as_array(stdin), float(timeout), max_output
        )
        return read_result(await self.call("run", pack(request), timeout + _GRACE_SECONDS))

    async def spawn(
        self, argv: Sequence[str], *, cwd: str | None = None, env: Mapping[str, str] | None = None
    ) -> RemoteProcess:
        if not argv:
            raise EtudeError("a program needs a name: argv is empty")
        request = SpawnRequest(self._number, tuple(argv), cwd, dict(env or {}))
        answer = await self.call("spawn", pack(request))
        return RemoteProcess(self, self._number, int(answer.header["process"]))

    async def read(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
        request = ReadRequest(self._number, path, offset, limit)
        return as_bytes((await self.call("read", pack(request))).arrays["data"])

    async def write(self, path: str, data: bytes, *, mode: int | None = None) -> None:
        await self.call("write", pack(WriteRequest(self._number, path, as_array(data), mode)))

    async def diff(self, under: str = "/") -> list[Change]:
        answer = await self.call("diff", pack(SandboxRequest(self._number, under)), WALK_SECONDS)
        return [Change(*row) for row in json.loads(as_bytes(answer.arrays["changes"]))]

    async def snapshot(self) -> Snapshot:
        made = unpack(SnapshotAnswer, await self.call("snapshot", pack(SandboxRequest(self._number)), WALK_SECONDS))
        return await self._machine.receive_snapshot(made.transfer, made.digest, self.layers)

    async def fork(self) -> RemoteSandbox:
        number = self._machine.number()
        try:
            request = SandboxRequest(self._number, number=number)
            started = unpack(Started, await self.call("fork", pack(request), WALK_SECONDS))
        except BaseException:
            self._machine.alive.discard(number)  # what may have been made is closed at the next beat
            raise
        return self._host.made(self._machine, number, self._recipe, started)

    async def reset(self) -> None:
        await self.call("reset", pack(SandboxRequest(self._number)), WALK_SECONDS)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._host.forget(self)
        try:
            if self._generation == self._machine.generation:
                await self._machine.call("close", pack(SandboxRequest(self._number)))
        except SandboxFailure as failure:
            # Of a machine that is gone: its sandboxes end with it, or with the lease.
            if failure.cause != "host":
                raise
        finally:
            if self._generation == self._machine.generation:
                self._machine.alive.discard(self._number)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def call(self, verb: str, frame: Frame, seconds: float = CALL_SECONDS) -> Frame:
        self.check()
        try:
            answer = await self._machine.call(verb, frame, seconds)
        except SandboxFailure as failure:
            if failure.cause == "host":
                self._machine.down = self._machine.down or str(failure)
            if failure.cause in CAUSED_INSIDE and not await self._host.machine_works(self._machine, self.layers):
                text = f"the sandbox host {self.machine} failed its own check after this: {failure}"
                raise SandboxFailure("host", text) from failure
            raise
        self.check()  # a machine that was found broken meanwhile is not believed
        return answer

    def check(self) -> None:
        if self._closed:
            raise SandboxFailure("closed", f"sandbox {self._number} of {self.machine} is closed")
        if self._failure is not None:
            raise self._failure
        if self._generation != self._machine.generation:
            why = self._machine.down or "it was started again"
            raise SandboxFailure("host", f"the sandbox host {self.machine} is gone, and the sandbox with it: {why}")

    def fail(self, failure: SandboxFailure) -> None:
        """Its machine is broken: whatever it says from now on counts as nothing."""
        self._failure = failure


class RemoteApartSandbox(RemoteSandbox):
    """One whose machine can give a program a pid namespace of its own."""

    async def run_apart(
        self,
        program: str | Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout: float = 60.0,
        max_output: int | None = None,
    ) -> CommandResult:
        name = program if isinstance(program, str) else ""
        argv = () if name else tuple(program)
        given: dict[str, Any] = {"apart": True, "preloaded": name}
        request = RunRequest(
            self._number, argv, None, dict(env or {}), as_array(stdin), float(timeout), max_output, **given
        )
        return read_result(await self.call("run", pack(request), timeout + _GRACE_SECONDS))


class RemoteProcess:
    """A program that stays. What it writes is asked for one answer after the other, so a slow way holds it back."""

    def __init__(self, sandbox: RemoteSandbox, place: int, number: int) -> None:
        self._sandbox, self._place, self._number = sandbox, place, number
        self._stdout, self._stderr = (KeptOutput(sandbox.limits.output) for _ in range(2))
        self._ended: asyncio.Future[CommandResult] = asyncio.get_running_loop().create_future()
        self._following = asyncio.ensure_future(self._follow())

    @property
    def running(self) -> bool:
        return not self._ended.done()

    async def send(self, data: bytes) -> None:
        await self._call("send", data)

    async def close_stdin(self) -> None:
        await self._call("close stdin")

    def output(self) -> tuple[bytes, bytes]:
        return self._stdout.take(), self._stderr.take()

    async def wait(self, timeout: float) -> CommandResult | None:
        await asyncio.wait({self._ended}, timeout=timeout)
        if not self._ended.done():
            return None
        result = self._ended.result()
        truncated = result.truncated or self._stdout.truncated or self._stderr.truncated
        stdout, stderr = self.output()
        return replace(result, stdout=stdout, stderr=stderr, truncated=truncated)

    async def kill(self) -> CommandResult:
        if self.running:
            self._keep(await self._call("kill"))
        result = await self.wait(CALL_SECONDS)
        if result is None:
            raise SandboxFailure("deadline", f"a program did not die within {CALL_SECONDS:g} s")
        return result

    async def _call(self, verb: str, data: bytes = b"") -> Frame:
        return await self._sandbox.call(verb, pack(ProcessRequest(self._place, self._number, as_array(data))))

    def _keep(self, answer: Frame) -> None:
        for kept, name in ((self._stdout, "stdout"), (self._stderr, "stderr")):
            kept.add(as_bytes(answer.arrays[name]))
        if "result" in answer.header and not self._ended.done():
            self._ended.set_result(read_result(answer))

    async def _follow(self) -> None:
        try:
            while not self._ended.done():
                self._keep(await self._call("output"))
        except (EtudeError, OSError) as error:
            if not self._ended.done():
                self._ended.set_exception(error)
                self._ended.exception()  # nobody may be waiting
