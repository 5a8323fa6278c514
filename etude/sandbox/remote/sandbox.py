"""A sandbox and a program on another machine, by the usual protocol: each verb is one call there.

What fails there is raised here as it was. A failure that a program may have caused is believed only if the machine
passes its sentinel; otherwise it is the machine's (cause "host"). Knows one machine and the host it belongs to.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from etude.core.errors import EtudeError
from etude.core.transport import Frame, pack, unpack
from etude.sandbox.backend import BackendSandbox, Command, SandboxRecipe
from etude.sandbox.base import Capabilities, CommandResult, SandboxFailure
from etude.sandbox.remote.machine import CALL_SECONDS, WALK_SECONDS, Machine
from etude.sandbox.remote.messages import (
    CommandRequest,
    ProcessRequest,
    ReadRequest,
    ReplaceRequest,
    SandboxRequest,
    Started,
    WriteRequest,
    as_array,
    as_bytes,
    read_result,
)
from etude.sandbox.sentinel import CAUSED_INSIDE
from etude.sandbox.store.overlay_changes import Row
from etude.sandbox.streams import KeptOutput, StreamedProcess

if TYPE_CHECKING:
    from etude.sandbox.remote.host import RemoteHost

_GRACE_SECONDS: Final = 60.0  # past a program's deadline, for the backend to end it and for the way back


class RemoteSandbox(BackendSandbox):
    """One sandbox; made by `RemoteHost.start`."""

    _host: RemoteHost

    def __init__(
        self,
        host: RemoteHost,
        machine: Machine,
        number: int,
        recipe: SandboxRecipe,
        started: Started,
        sentinel: bool = False,
    ) -> None:
        super().__init__(host, recipe)
        self._machine, self._number, self._sentinel = machine, number, sentinel
        self._generation = machine.generation
        self._closed = False
        self._failure: SandboxFailure | None = None
        assert machine.facts is not None
        self._capabilities = replace(machine.facts.capabilities, files=started.files)
        if started.apart:  # only where its machine can: who asks looks whether the method is there
            self.run_apart = self._run_apart

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def machine(self) -> str:
        """The address of the host that it is on."""
        return self._machine.address

    async def run_command(self, command: Command, stdin: bytes) -> CommandResult:
        assert command.timeout is not None
        request = CommandRequest(self._number, command, as_array(stdin))
        return read_result(await self.call("run", pack(request), command.timeout + _GRACE_SECONDS))

    async def _launch(self, command: Command) -> RemoteProcess:
        answer = await self.call("spawn", pack(CommandRequest(self._number, command, as_array(b""))))
        return RemoteProcess(self, self._number, int(answer.header["process"]), command.max_output)

    async def read(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
        request = ReadRequest(self._number, self._absolute(path), offset, limit)
        return as_bytes((await self.call("read", pack(request))).arrays["data"])

    async def write(self, path: str, data: bytes, *, mode: int | None = None) -> None:
        await self.call("write", pack(WriteRequest(self._number, self._absolute(path), as_array(data), mode)))

    async def replace_text(self, path: str, old: bytes, new: bytes, *, most: int) -> bytes | None:
        request = ReplaceRequest(self._number, self._absolute(path), as_array(old), as_array(new), most)
        answer = await self.call("replace", pack(request))
        return as_bytes(answer.arrays["data"]) if "data" in answer.arrays else None

    async def _changes_below(self, folder: str) -> list[Row]:
        answer = await self.call("diff", pack(SandboxRequest(self._number, folder or "/")), WALK_SECONDS)
        rows: list[Row] = json.loads(as_bytes(answer.arrays["changes"]))
        return rows

    async def _pack(self, out: int) -> None:
        made = (await self.call("snapshot", pack(SandboxRequest(self._number)), WALK_SECONDS)).header
        await self._machine.receive(int(made["transfer"]), int(made["size"]), out)

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

    async def call(self, verb: str, frame: Frame, seconds: float = CALL_SECONDS) -> Frame:
        self.check()
        try:
            answer = await self._machine.call(verb, frame, seconds)
        except SandboxFailure as failure:
            if failure.cause == "host":
                self._machine.down = self._machine.down or str(failure)
            # A failure of the sentinel's own sandbox must not start another sentinel.
            asked = failure.cause in CAUSED_INSIDE and not self._sentinel
            if asked and not await self._host.machine_works(self._machine, self.layers):
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


class RemoteProcess(StreamedProcess):
    """A program that stays. What it writes is asked for one answer after the other, so a slow way holds it back."""

    _ended: asyncio.Future[CommandResult]

    def __init__(self, sandbox: RemoteSandbox, place: int, number: int, limit: int) -> None:
        super().__init__(None, KeptOutput(limit), KeptOutput(limit))
        self._sandbox, self._place, self._number = sandbox, place, number
        self._ended = asyncio.get_running_loop().create_future()
        self._following = asyncio.ensure_future(self._follow())

    async def send(self, data: bytes) -> None:
        await self._call("send", data)

    async def close_stdin(self) -> None:
        await self._call("close stdin")

    async def _outcome(self) -> CommandResult:
        result = self._ended.result()
        kept = self._result(result.code)
        truncated = result.truncated or kept.truncated
        return replace(result, stdout=kept.stdout, stderr=kept.stderr, truncated=truncated)

    def abandon(self) -> None:
        self._killing = asyncio.ensure_future(self._call("kill"))

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
