"""One local sandbox and its programs as the orchestrator sees them: the other end of the socket of `init.py`.

Only asyncio: requests, answers, streams, deadlines. What the files did wrong is raised as the `OSError` that it was;
what the machinery did wrong is a `SandboxFailure`, and the sandbox is given up with it.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from etude.sandbox.backend import MAX_READ, BackendSandbox, Command, SandboxRecipe
from etude.sandbox.base import Capabilities, CommandResult, Egress, FrozenSandbox, NotFrozen, SandboxFailure
from etude.sandbox.egress.proxy import PORT, PROXY_VARIABLES, EgressProxy
from etude.sandbox.environment import ENVIRONMENT
from etude.sandbox.local import wire
from etude.sandbox.local.channel import Answer, Channel, Signal
from etude.sandbox.local.criu import Criu
from etude.sandbox.store import frozen_sandboxes
from etude.sandbox.store.overlay_changes import Row
from etude.sandbox.streams import Collector, Feeder, StreamedProcess

if TYPE_CHECKING:
    from etude.sandbox.local.host import LocalHost

_ANSWER_SECONDS: Final = 30.0
_WALK_SECONDS: Final = 120.0  # for everything that looks at all changed files
_GRACE_SECONDS: Final = 15.0  # init ends a program at its deadline; past this it is init that hangs


class LocalSandbox(BackendSandbox):
    """One sandbox; made by `LocalHost.start`."""

    _host: LocalHost

    def __init__(self, host: LocalHost, number: int, connection: socket.socket, recipe: SandboxRecipe) -> None:
        super().__init__(host, recipe)
        loop = asyncio.get_running_loop()
        self.number = number
        # `python` is the interpreter that we run on, which a layer shows unless it says otherwise.
        path = f"{Path(sys.executable).parent}:{ENVIRONMENT['PATH']}"
        proxy = PROXY_VARIABLES if isinstance(recipe.network, Egress) else {}
        self._env = {**ENVIRONMENT, "PATH": path, "PWD": recipe.workdir, **proxy, **recipe.env}
        self._proxy: EgressProxy | None = None
        self.ready: asyncio.Future[bool] = loop.create_future()  # whether no file in it is an inode of the host's
        self._dead: asyncio.Future[None] = loop.create_future()
        self._channel = Channel(connection, f"sandbox {number}", self._on_event)
        self._spawned: list[LocalProcess] = []
        self.held: list[int] = []  # descriptors that keep its layers from being pruned

    @property
    def capabilities(self) -> Capabilities:
        """As the host's, but for its files: a layer may name one of the host's that cannot be made its own."""
        own = self.ready.done() and self.ready.exception() is None and self.ready.result()
        return replace(super().capabilities, files="own inodes" if own else "shared inodes")

    run_apart = BackendSandbox._run_apart

    async def _end_of(self, process: StreamedProcess, command: Command) -> CommandResult:
        assert command.timeout is not None
        result = await process.wait(command.timeout + _GRACE_SECONDS)
        if result is None:
            text = f"a program did not end {_GRACE_SECONDS:g} s after its deadline"
            raise self.give_up(SandboxFailure("deadline", text))
        return result

    async def open_egress(self) -> None:
        """The proxy on its loopback, where it may use a network through one: its only way out."""
        if isinstance(self._recipe.network, Egress):
            # Before there is a listener to lose: names that cannot be allowed are refused here.
            self._proxy = self._host.egress_proxy(self._recipe.network, self.number)
            _, (listener,) = await self._request({"do": "listen", "port": PORT})
            await self._proxy.listen(socket.socket(fileno=listener))

    @property
    def programs(self) -> tuple[LocalProcess, ...]:
        return tuple(each for each in self._spawned if each.running)

    async def read(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
        _, (file,) = await self._request({"do": "open", "path": self._absolute(path)}, path=path)
        try:
            size = os.fstat(file).st_size
            left = max(0, size - offset) if limit is None else limit
            # A sparse file can claim any size; without a limit from the caller nothing larger is read into memory.
            if left > MAX_READ and limit is None:
                raise OSError(errno.EFBIG, f"the file has {size} bytes; read it in parts", path)
            parts = []
            while left > 0 and (part := os.pread(file, min(left, 1 << 20), offset)):
                parts.append(part)
                offset, left = offset + len(part), left - len(part)
            return b"".join(parts)
        finally:
            os.close(file)

    async def write(self, path: str, data: bytes, *, mode: int | None = None) -> None:
        message = {"do": "create", "path": self._absolute(path), "mode": mode}
        _, (file,) = await self._request(message, path=path)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(file, view) :]
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from None
        finally:
            os.close(file)

    async def _changes_below(self, folder: str) -> list[Row]:
        _, (file,) = await self._request({"do": "diff"}, seconds=_WALK_SECONDS)
        with open(file, "rb") as answer:  # noqa: PTH123 - a descriptor
            rows: list[Row] = json.loads(answer.read())
        return rows

    async def _pack(self, out: int) -> None:
        await self._request({"do": "pack"}, (out,), seconds=_WALK_SECONDS)

    async def fork(self) -> LocalSandbox:
        changes = self._host.store.unnamed_file()
        try:
            with Signal() as packed:
                # Its namespaces and mounts are made while the changes are packed.
                copy = self._host.begin(self._recipe, (changes, packed.reader))
                try:
                    await self._pack(changes)
                except BaseException:
                    await copy.close()
                    raise
                packed.give()
                return await self._host.when_ready(copy)
        finally:
            os.close(changes)

    async def freeze(self) -> FrozenSandbox:
        criu = await self._host.criu()
        # Its connections lead to peers that do not stop.
        if self._recipe.network:
            raise NotFrozen("a sandbox with network cannot be frozen: its connections lead out of it")
        facts = {
            "layers": [layer.digest for layer in self.layers],
            "limits": asdict(self.limits),
            "workdir": self._recipe.workdir,
            "env": self._env,
        }
        with self._host.store.scratch() as folder:
            stopped, _ = await self._request({"do": "stop programs"})
            if "refused" in stopped:
                raise NotFrozen(f"sandbox {self.number} cannot be frozen: {stopped['refused']}")
            try:
                with (folder / frozen_sandboxes.CHANGES).open("wb") as changes:
                    await self._pack(changes.fileno())
                for number, program in enumerate(stopped["programs"]):
                    with _open_folder(folder / str(number), make=True) as images:
                        await self._host.run_criu("dump", self.number, criu, {"pid": program["pid"]}, (images,))
            except BaseException as error:
                # Programs are not let go while CRIU may still be reading them.
                if isinstance(error, SandboxFailure) and error.cause == "deadline":
                    raise self.give_up(error) from None  # CRIU may still hold its programs
                await self.continue_programs()
                raise
            await self.continue_programs()
            facts |= {"programs": stopped["programs"], "highest": stopped["highest"]}
            return await asyncio.to_thread(frozen_sandboxes.save, self._host.store, folder, facts)

    async def continue_programs(self) -> None:
        """Let go on what was stopped, or what came back stopped."""
        await self._request({"do": "continue programs"})

    async def restore_program(self, criu: Criu, images: Path, facts: wire.Message) -> None:
        """A program out of CRIU's images, with new streams; it is stopped until `continue_programs`."""
        request = self._channel.request({"do": "expect"}, answers=2)
        _, streams = await self._answer(request.answers[0], _ANSWER_SECONDS, "streams for a program")
        ours, theirs = streams[:3], streams[3:]
        # Kept before CRIU runs: its end may be reported as soon as it is back.
        self._keep(LocalProcess(self, request.number, request.answers[1], ours, self.limits.output))
        try:
            with _open_folder(images) as folder:
                answer = await self._host.run_criu("restore", self.number, criu, facts, (folder, *theirs))
        finally:
            wire.close_all(theirs)
        await self._request({"do": "supervised", "program": request.number, "supervisor": answer["supervisor"]})

    async def reset(self) -> None:
        await self._request({"do": "reset"}, seconds=_WALK_SECONDS)

    async def close(self) -> None:
        if self._channel.failure is None or self._channel.failure.cause != "closed":
            self.give_up(SandboxFailure("closed", f"sandbox {self.number} is closed"))
        if self._proxy is not None:
            await self._proxy.close()
        try:
            await self._host.within(_ANSWER_SECONDS, self._dead, f"sandbox {self.number} to end")
        except SandboxFailure as failure:
            if failure.cause != "launcher":  # without a launcher there are no sandboxes
                raise
        finally:
            self._host.forget(self)

    async def _launch(self, command: Command) -> LocalProcess:
        message = {"do": "run", **vars(command), "argv": list(command.argv), "env": {**self._env, **command.env}}
        request = self._channel.request(message, answers=2)
        try:
            answer, streams = await self._answer(request.answers[0], _ANSWER_SECONDS, "a program to start")
        except asyncio.CancelledError:
            # Nobody knows its number after this, so nobody else could end it.
            self.abandon_program(request.number)
            raise
        if "errno" in answer or "failure" in answer:
            text = f"a program could not be started: {answer.get('text') or answer['failure']}"
            raise SandboxFailure("protocol", text)
        process = LocalProcess(self, request.number, request.answers[1], streams, command.max_output)
        return process if command.timeout is not None else self._keep(process)

    def _keep(self, process: LocalProcess) -> LocalProcess:
        self._spawned = [*self.programs, process]
        return process

    async def _request(
        self, message: wire.Message, descriptors: tuple[int, ...] = (), *, path: str = "", seconds: float = 0.0
    ) -> Answer:
        """One request, one answer. What the files did wrong is raised as the `OSError` that it was."""
        request = self._channel.request(message, descriptors)
        what = f"the answer to {message['do']!r}"
        try:
            answer, attached = await self._answer(request.answers[0], seconds or _ANSWER_SECONDS, what)
        except asyncio.CancelledError:
            self._channel.forget(request.number)
            raise
        if "errno" in answer:
            raise OSError(answer["errno"], answer["text"], path or None)
        if "failure" in answer:
            raise SandboxFailure("protocol", f"sandbox {self.number} failed at {message['do']!r}: {answer['failure']}")
        return answer, attached

    async def _answer(self, future: asyncio.Future[Answer], seconds: float, what: str) -> Answer:
        await asyncio.wait({future}, timeout=seconds)
        if not future.done():
            # An init that does not answer in time is not trusted any more: the whole sandbox ends.
            raise self.give_up(SandboxFailure("deadline", f"sandbox {self.number}: waited {seconds:g} s for {what}"))
        return future.result()

    def kill_program(self, number: int) -> None:
        if self._channel.failure is None:
            self._channel.request({"do": "kill", "program": number})

    def abandon_program(self, number: int) -> None:
        """Kill it; nobody waits for its end."""
        self._channel.forget(number)
        self.kill_program(number)

    def give_up(self, failure: SandboxFailure) -> SandboxFailure:
        """End the sandbox: whoever waits for it gets this failure."""
        self._fail(failure)
        self._host.kill(self.number)
        return failure

    def ended(self) -> None:
        """Its init is dead, and with it every process that it had."""
        if not self._dead.done():
            self._dead.set_result(None)
        # The failure that its init sent last is better than "ended unexpectedly".
        self._channel.drain()
        self._fail(SandboxFailure("died", f"sandbox {self.number} ended unexpectedly"))

    def _fail(self, failure: SandboxFailure) -> None:
        self._channel.close(failure)
        if not self.ready.done():
            self.ready.set_exception(failure)
            self.ready.exception()  # nobody may be waiting

    def _on_event(self, message: wire.Message) -> None:
        if self.ready.done():
            return
        if "ready" in message:
            self._host.spent.update({"sandbox_starts": 1, "sandbox_start_seconds": message["seconds"]})
            self.ready.set_result(message["own files"])
        elif "failed" in message:
            self.give_up(SandboxFailure("start", f"a sandbox did not start: {message['failed']}"))


@contextmanager
def _open_folder(path: Path, make: bool = False) -> Iterator[int]:
    """A descriptor of a folder of the store."""
    try:
        if make:
            path.mkdir()
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise SandboxFailure("store", f"{path} cannot be used: {error.strerror}") from None
    try:
        yield handle
    finally:
        os.close(handle)


class LocalProcess(StreamedProcess):
    """A program in a sandbox."""

    def __init__(
        self, sandbox: LocalSandbox, number: int, ended: asyncio.Future[Answer], streams: tuple[int, ...], limit: int
    ) -> None:
        stdin = Feeder(streams[0]) if len(streams) == 3 else None
        super().__init__(stdin, *(Collector(stream, limit) for stream in streams[-2:]))
        self._sandbox = sandbox
        self._number = number
        self._ended = ended
        ended.add_done_callback(lambda _: self._close_streams())

    async def _outcome(self) -> CommandResult:
        answer, _ = self._ended.result()
        self._close_streams()  # the callback may not have run yet
        if "failure" in answer:
            raise SandboxFailure("protocol", f"a program could not be started: {answer['failure']}")
        return self._result(**answer["done"])

    async def kill(self) -> CommandResult:
        if self.running:
            self._sandbox.kill_program(self._number)
        result = await self.wait(_ANSWER_SECONDS)
        if result is None:
            failure = SandboxFailure("deadline", f"a program did not die within {_ANSWER_SECONDS:g} s")
            raise self._sandbox.give_up(failure)
        return result

    def abandon(self) -> None:
        self._sandbox.abandon_program(self._number)
