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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from etude.core.errors import EtudeError
from etude.sandbox import wire
from etude.sandbox.base import (
    Capabilities,
    Change,
    CommandResult,
    Frozen,
    Layer,
    NotFrozen,
    SandboxFailure,
    SandboxLimits,
    Snapshot,
    absolute,
)
from etude.sandbox.channel import Answer, Channel, Collector, Feeder, Signal
from etude.sandbox.local.criu import Criu
from etude.sandbox.store import frozen

if TYPE_CHECKING:
    from etude.sandbox.local.host import LocalHost

_ANSWER_SECONDS: Final = 30.0
_WALK_SECONDS: Final = 120.0  # for everything that looks at all changed files
_GRACE_SECONDS: Final = 15.0  # init ends a program at its deadline; past this it is init that hangs
_MAX_READ: Final = 64 << 20


class Recipe:
    """What a sandbox was made of, and is made of again when it is forked."""

    def __init__(self, layers: tuple[Layer, ...], limits: SandboxLimits, network: bool, workdir: str) -> None:
        if not workdir.startswith("/") or ".." in workdir.split("/"):
            raise EtudeError(f"{workdir!r} cannot be the working folder: give an absolute path without '..'")
        self.layers, self.limits, self.network, self.workdir = layers, limits, network, workdir

    def message(self) -> wire.Message:
        shows = dict.fromkeys(path for layer in self.layers for path in layer.shows)
        plan = {
            "layers": [str(layer.path) for layer in reversed(self.layers)],
            "shows": list(shows),
            "network": self.network,
            "workdir": self.workdir,
        }
        return {"plan": plan, "limits": asdict(self.limits)}


class LocalSandbox:
    """One sandbox; made by `LocalHost.start`."""

    def __init__(
        self, host: LocalHost, number: int, connection: socket.socket, recipe: Recipe, env: Mapping[str, str]
    ) -> None:
        loop = asyncio.get_running_loop()
        self._host = host
        self.number = number
        self._recipe = recipe
        self._env = env
        self.ready: asyncio.Future[None] = loop.create_future()
        self._dead: asyncio.Future[None] = loop.create_future()
        self._channel = Channel(connection, f"sandbox {number}", self._on_event)
        self._spawned: list[LocalProcess] = []

    @property
    def capabilities(self) -> Capabilities:
        return self._host.capabilities

    @property
    def layers(self) -> tuple[Layer, ...]:
        return self._recipe.layers

    @property
    def limits(self) -> SandboxLimits:
        return self._recipe.limits

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
        limit = self.limits.output if max_output is None else max_output
        return await self._finish(await self._launch(argv, cwd, env, bool(stdin), timeout, limit), stdin, timeout)

    async def run_apart(
        self,
        program: str | Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout: float = 60.0,
        max_output: int | None = None,
    ) -> CommandResult:
        limit = self.limits.output if max_output is None else max_output
        loaded, argv = (program, [program]) if isinstance(program, str) else ("", program)
        process = await self._launch(argv, None, env, bool(stdin), timeout, limit, {"loaded": loaded})
        return await self._finish(process, stdin, timeout)

    async def _finish(self, process: LocalProcess, stdin: bytes, timeout: float) -> CommandResult:
        try:
            await process.send(stdin)
            await process.close_stdin()
            result = await process.wait(timeout + _GRACE_SECONDS)
        except asyncio.CancelledError:
            process.abandon()
            raise
        if result is None:
            raise self.give_up(
                SandboxFailure("deadline", f"a program did not end {_GRACE_SECONDS:g} s after its deadline")
            )
        return result

    async def spawn(
        self, argv: Sequence[str], *, cwd: str | None = None, env: Mapping[str, str] | None = None
    ) -> LocalProcess:
        return self._keep(await self._launch(argv, cwd, env, True, None, self.limits.output))

    def _keep(self, process: LocalProcess) -> LocalProcess:
        self._spawned = [*self.programs, process]
        return process

    @property
    def programs(self) -> tuple[LocalProcess, ...]:
        return tuple(each for each in self._spawned if each.running)

    async def read(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
        _, (file,) = await self._ask({"do": "open", "path": absolute(path, self._recipe.workdir)}, path=path)
        try:
            size = os.fstat(file).st_size
            wanted = max(0, size - offset) if limit is None else limit
            if wanted > _MAX_READ and limit is None:
                raise OSError(errno.EFBIG, f"the file has {size} bytes; read it in parts", path)
            parts = []
            while wanted > 0 and (part := os.pread(file, min(wanted, 1 << 20), offset)):
                parts.append(part)
                offset, wanted = offset + len(part), wanted - len(part)
            return b"".join(parts)
        finally:
            os.close(file)

    async def write(self, path: str, data: bytes, *, mode: int | None = None) -> None:
        message = {"do": "create", "path": absolute(path, self._recipe.workdir), "mode": mode}
        _, (file,) = await self._ask(message, path=path)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(file, view) :]
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from None
        finally:
            os.close(file)

    async def diff(self, under: str = "/") -> list[Change]:
        _, (file,) = await self._ask({"do": "diff"}, seconds=_WALK_SECONDS)
        with open(file, "rb") as answer:  # noqa: PTH123 - a descriptor
            changes = [Change(*row) for row in json.loads(answer.read())]
        folder = absolute(under, self._recipe.workdir).rstrip("/")
        return [each for each in changes if each.path == folder or each.path.startswith(f"{folder}/")]

    async def snapshot(self) -> Snapshot:
        with self._host.store.writing_snapshot(self.layers) as (file, made):
            await self._ask({"do": "pack"}, (file,), seconds=_WALK_SECONDS)
        return made[0]

    async def fork(self) -> LocalSandbox:
        changes = self._host.store.unnamed_file()
        try:
            with Signal() as packed:
                # Its namespaces and mounts are made while the changes are packed.
                copy = self._host.begin(self._recipe, self._env, (changes, packed.reader))
                try:
                    await self._ask({"do": "pack"}, (changes,), seconds=_WALK_SECONDS)
                except BaseException:
                    await copy.close()
                    raise
                packed.give()
                return await self._host.begun(copy)
        finally:
            os.close(changes)

    async def freeze(self) -> Frozen:
        criu = await self._host.criu()
        if self._recipe.network:
            raise NotFrozen("a sandbox with network cannot be frozen: its connections lead out of it")
        facts = {
            "layers": [layer.digest for layer in self.layers],
            "limits": asdict(self.limits),
            "workdir": self._recipe.workdir,
            "env": dict(self._env),
        }
        with self._host.store.scratch() as folder:
            halted, _ = await self._ask({"do": "halt"})
            if "refused" in halted:
                raise NotFrozen(f"sandbox {self.number} cannot be frozen: {halted['refused']}")
            try:
                with (folder / frozen.CHANGES).open("wb") as changes:
                    await self._ask({"do": "pack"}, (changes.fileno(),), seconds=_WALK_SECONDS)
                for place, program in enumerate(halted["programs"]):
                    with _folder(folder / str(place), make=True) as images:
                        await self._host.send_in("dump", self.number, criu, {"pid": program["pid"]}, (images,))
            except BaseException as error:
                if isinstance(error, SandboxFailure) and error.cause == "deadline":
                    raise self.give_up(error) from None  # CRIU may still hold its programs
                await self.go_on()
                raise
            await self.go_on()
            facts |= {"programs": halted["programs"], "highest": halted["highest"]}
            return await asyncio.to_thread(frozen.keep, self._host.store, folder, facts)

    async def go_on(self) -> None:
        """Whatever was halted, or came back halted."""
        await self._ask({"do": "go on"})

    async def bring_back(self, criu: Criu, images: Path, order: wire.Message) -> LocalProcess:
        """A program out of CRIU's images, with new streams; it stands still until `go_on`."""
        answers = self._channel.ask({"do": "expect"}, answers=2)
        _, streams = await self._answer(answers[0], _ANSWER_SECONDS, "streams for a program")
        ours, theirs = streams[:3], streams[3:]
        process = self._keep(LocalProcess(self, answers.number, answers[1], ours, self.limits.output))
        try:
            with _folder(images) as folder:
                answer = await self._host.send_in("restore", self.number, criu, order, (folder, *theirs))
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        await self._ask({"do": "supervised", "program": answers.number, "supervisor": answer["supervisor"]})
        return process

    async def reset(self) -> None:
        await self._ask({"do": "reset"}, seconds=_WALK_SECONDS)

    async def close(self) -> None:
        if self._channel.failure is None or self._channel.failure.cause != "closed":
            self.give_up(SandboxFailure("closed", f"sandbox {self.number} is closed"))
        try:
            await self._host.within(_ANSWER_SECONDS, self._dead, f"sandbox {self.number} to end")
        except SandboxFailure as failure:
            if failure.cause != "launcher":  # without a launcher there are no sandboxes
                raise
        finally:
            self._host.forget(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _launch(
        self,
        argv: Sequence[str],
        cwd: str | None,
        env: Mapping[str, str] | None,
        stdin: bool,
        timeout: float | None,
        limit: int,
        more: wire.Message | None = None,
    ) -> LocalProcess:
        if not argv:
            raise EtudeError("a program needs a name: argv is empty")
        message = {
            "do": "run",
            "argv": list(argv),
            "cwd": absolute(cwd or "", self._recipe.workdir),
            "env": {**self._env, **(env or {})},
            "stdin": stdin,
            "timeout": timeout,
            **(more or {}),
        }
        answers = self._channel.ask(message, answers=2)
        try:
            answer, streams = await self._answer(answers[0], _ANSWER_SECONDS, "a program to start")
        except asyncio.CancelledError:
            self._channel.forget(answers.number)
            self.kill_program(answers.number)
            raise
        if "errno" in answer or "failure" in answer:
            raise SandboxFailure(
                "protocol", f"a program could not be started: {answer.get('text') or answer['failure']}"
            )
        return LocalProcess(self, answers.number, answers[1], streams, limit)

    async def _ask(
        self,
        message: wire.Message,
        descriptors: tuple[int, ...] = (),
        *,
        path: str = "",
        seconds: float = 0.0,
    ) -> Answer:
        """One request, one answer. What the files did wrong is raised as the `OSError` that it was."""
        answers = self._channel.ask(message, descriptors)
        try:
            answer, attached = await self._answer(
                answers[0], seconds or _ANSWER_SECONDS, f"the answer to {message['do']!r}"
            )
        except asyncio.CancelledError:
            self._channel.forget(answers.number)
            raise
        if "errno" in answer:
            raise OSError(answer["errno"], answer["text"], path or None)
        if "failure" in answer:
            raise SandboxFailure("protocol", f"sandbox {self.number} failed at {message['do']!r}: {answer['failure']}")
        return answer, attached

    async def _answer(self, future: asyncio.Future[Answer], seconds: float, what: str) -> Answer:
        await asyncio.wait({future}, timeout=seconds)
        if not future.done():
            raise self.give_up(SandboxFailure("deadline", f"sandbox {self.number}: waited {seconds:g} s for {what}"))
        return future.result()

    def kill_program(self, number: int) -> None:
        if self._channel.failure is None:
            self._channel.ask({"do": "kill", "program": number})

    def forget_program(self, number: int) -> None:
        """Nobody waits for it any more."""
        self._channel.forget(number)

    def give_up(self, failure: SandboxFailure) -> SandboxFailure:
        """End the sandbox: whoever waits for it gets this failure."""
        self._channel.close(failure)
        if not self.ready.done():
            self.ready.set_exception(failure)
            self.ready.exception()
        self._host.kill(self.number)
        return failure

    def _on_event(self, message: wire.Message) -> None:
        if self.ready.done():
            return
        if "ready" in message:
            self.ready.set_result(None)
        elif "failed" in message:
            self.give_up(SandboxFailure("start", f"a sandbox did not start: {message['failed']}"))

    def ended(self) -> None:
        """Its init is dead, and with it every process that it had."""
        if not self._dead.done():
            self._dead.set_result(None)
        self._channel.drain()
        failure = SandboxFailure("died", f"sandbox {self.number} ended unexpectedly")
        self._channel.close(failure)
        if not self.ready.done():
            self.ready.set_exception(failure)
            self.ready.exception()


@contextmanager
def _folder(path: Path, make: bool = False) -> Iterator[int]:
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


class LocalProcess:
    """A program in a sandbox."""

    def __init__(
        self, sandbox: LocalSandbox, number: int, done: asyncio.Future[Answer], streams: tuple[int, ...], limit: int
    ) -> None:
        self._sandbox = sandbox
        self._number = number
        self._done = done
        self._feeder = Feeder(streams[0]) if len(streams) == 3 else None
        self._stdout, self._stderr = (Collector(stream, limit) for stream in streams[-2:])
        done.add_done_callback(lambda _: self._finish())

    @property
    def running(self) -> bool:
        return not self._done.done()

    async def send(self, data: bytes) -> None:
        if self._feeder is not None:
            self._feeder.feed(data)

    async def close_stdin(self) -> None:
        if self._feeder is not None:
            self._feeder.end()

    def output(self) -> tuple[bytes, bytes]:
        return self._stdout.take(), self._stderr.take()

    async def wait(self, timeout: float) -> CommandResult | None:
        await asyncio.wait({self._done}, timeout=timeout)
        if not self._done.done():
            return None
        answer, _ = self._done.result()
        self._finish()
        if "failure" in answer:
            raise SandboxFailure("protocol", f"a program could not be started: {answer['failure']}")
        truncated = self._stdout.truncated or self._stderr.truncated
        stdout, stderr = self.output()
        return CommandResult(stdout=stdout, stderr=stderr, truncated=truncated, **answer["done"])

    async def kill(self) -> CommandResult:
        if self.running:
            self._sandbox.kill_program(self._number)
        result = await self.wait(_ANSWER_SECONDS)
        if result is None:
            failure = SandboxFailure("deadline", f"a program did not die within {_ANSWER_SECONDS:g} s")
            raise self._sandbox.give_up(failure)
        return result

    def abandon(self) -> None:
        """Nobody is interested any more."""
        self._sandbox.kill_program(self._number)
        self._sandbox.forget_program(self._number)

    def _finish(self) -> None:
        if self._feeder is not None:
            self._feeder.close()
        self._stdout.finish()
        self._stderr.finish()
