"""The local backend as the orchestrator sees it: one launcher process, one socket to each sandbox's init.

Everything that touches namespaces happens in `launcher.py` and `init.py`, on the other side of the sockets; here is
only asyncio. Every wait has a deadline, and whatever goes wrong on the other side becomes a `SandboxFailure`.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from etude.core.errors import EtudeError
from etude.sandbox import wire
from etude.sandbox.base import (
    WORKSPACE,
    Capabilities,
    Frozen,
    Layer,
    NotFrozen,
    SandboxFailure,
    SandboxLimits,
    Snapshot,
)
from etude.sandbox.channel import Channel, Signal
from etude.sandbox.local.criu import Criu
from etude.sandbox.local.programs import ENVIRONMENT
from etude.sandbox.local.sandbox import LocalSandbox, Recipe
from etude.sandbox.store import frozen as freezer
from etude.sandbox.store.layers import Store

_START_SECONDS: Final = 30.0  # a loaded machine starting many at once
_MEMORY_SECONDS: Final = 120.0  # for CRIU to write or read a gigabyte
_PAST: Final = {"dump": "kept", "restore": "brought back"}


class LocalHost:
    """Makes sandboxes out of Linux namespaces. `await LocalHost.open(store)`, then `start`."""

    def __init__(
        self,
        store: Store,
        process: subprocess.Popen[bytes],
        log: int,
        control: socket.socket,
        preload: tuple[str, ...] = (),
    ) -> None:
        self.store = store
        self.preload = preload
        self._process = process
        self._log = log
        self._greeting: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._channel = Channel(control, "the sandbox launcher", self._on_event)
        self._sandboxes: dict[int, LocalSandbox] = {}
        self._held: dict[int, list[int]] = {}  # sandbox -> descriptors that keep its layers from being pruned
        self._last = 0
        self._memory = ""
        self._criu: Criu | None = None

    @classmethod
    async def open(cls, store: Store | Path, preload: Sequence[str] = ()) -> LocalHost:
        """Start the launcher and try one sandbox, so that a machine that cannot do it says so at once."""
        if not sys.platform.startswith("linux"):
            raise EtudeError("the local sandbox needs Linux; ask for the weaker backend by its name, plain")
        ours, theirs = socket.socketpair()
        log = os.memfd_create("launcher", os.MFD_CLOEXEC)
        code = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[3])!r})\n"
        code += (
            f"from etude.sandbox.local.launcher import main; main({theirs.fileno()}, {os.getpid()}, {tuple(preload)!r})"
        )
        with theirs:
            process = subprocess.Popen(
                # No site, no environment: a small process with nothing in it that a program could be after.
                [sys.executable, "-I", "-S", "-c", code],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={},
                cwd="/",
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        host = cls(store if isinstance(store, Store) else Store(store), process, log, ours, tuple(preload))
        try:
            host._memory = await host.within(_START_SECONDS, host._greeting, "the sandbox launcher to start")
            trial = await host.start(())
            await trial.close()
        except SandboxFailure as failure:
            await host.close()
            raise EtudeError(f"sandboxes cannot be made on this machine: {failure}. {_advice()}") from failure
        except BaseException:
            await host.close()
            raise
        return host

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            backend="local",
            isolated=True,
            network_off=True,
            memory=self._memory,
            processes="namespace",
            disk="tmpfs",
            kill="pid namespace",
        )

    @property
    def launcher_pid(self) -> int:
        return self._process.pid

    async def start(
        self,
        base: Sequence[Layer] | Snapshot,
        *,
        limits: SandboxLimits | None = None,
        network: bool = False,
        env: Mapping[str, str] | None = None,
        workdir: str = WORKSPACE,
    ) -> LocalSandbox:
        recipe = Recipe(
            tuple(base.layers if isinstance(base, Snapshot) else base), limits or SandboxLimits(), network, workdir
        )
        # `python` is the interpreter that we run on, which a layer shows unless it says otherwise
        path = f"{Path(sys.executable).parent}:{ENVIRONMENT['PATH']}"
        environment = {**ENVIRONMENT, "PATH": path, "PWD": workdir, **(env or {})}
        if not isinstance(base, Snapshot):
            return await self.begun(self.begin(recipe, environment))
        return await self._start_from(base.path, f"snapshot {base.digest[:12]}", recipe, environment)

    async def _start_from(self, path: Path, name: str, recipe: Recipe, env: Mapping[str, str]) -> LocalSandbox:
        try:
            changes = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise SandboxFailure("store", f"{name} cannot be read: {error.strerror}") from None
        try:
            with Signal() as packed:
                packed.give()
                return await self.begun(self.begin(recipe, env, (changes, packed.reader)))
        finally:
            os.close(changes)

    async def thaw(self, frozen: Frozen) -> LocalSandbox:
        criu = await self.criu()
        folder, facts = await asyncio.to_thread(freezer.opened, self.store, frozen)
        layers = tuple(self.store.layer(digest) for digest in facts["layers"])
        recipe = Recipe(layers, SandboxLimits(**facts["limits"]), False, facts["workdir"])
        name = f"frozen sandbox {frozen.digest[:12]}"
        sandbox = await self._start_from(folder / freezer.CHANGES, name, recipe, facts["env"])
        try:
            for place, program in enumerate(facts["programs"]):
                order = {"pid": program["pid"], "pipes": program["pipes"], "highest": facts["highest"]}
                await sandbox.bring_back(criu, folder / str(place), order)
            await sandbox.go_on()
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    async def criu(self) -> Criu:
        """What keeps memory on this machine; an `EtudeError` where nothing does."""
        if self._criu is None:
            self._criu = await asyncio.to_thread(freezer.find_criu)
        return self._criu

    async def send_in(
        self, verb: str, sandbox: int, criu: Criu, order: wire.Message, descriptors: tuple[int, ...]
    ) -> wire.Message:
        """Have CRIU sent into a sandbox; `NotFrozen` says what it could not do there."""
        message = {"do": verb, "sandbox": sandbox, **asdict(criu), **order}
        answers = self._channel.ask(message, descriptors)
        answer: wire.Message
        answer, _ = await self.within(_MEMORY_SECONDS, answers[0], f"CRIU to {verb} a program")
        if "error" in answer:
            raise NotFrozen(f"a program's memory could not be {_PAST[verb]}: {answer['error']}")
        return answer

    async def close(self) -> None:
        await asyncio.gather(*(sandbox.close() for sandbox in list(self._sandboxes.values())))
        self._channel.close(SandboxFailure("closed", "the sandbox host is closed"))
        try:
            await asyncio.to_thread(self._process.wait, 15.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)
        if self._log >= 0:
            os.close(self._log)
            self._log = -1

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def begin(self, recipe: Recipe, env: Mapping[str, str], changes: tuple[int, ...] = ()) -> LocalSandbox:
        """Have a sandbox made. Two descriptors of changes: packed ones, and one that says when they are whole."""
        self._last += 1
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            raise SandboxFailure("start", f"no socket for a sandbox: {error.strerror}") from error
        with theirs:
            sandbox = LocalSandbox(self, self._last, ours, recipe, env)
            self._sandboxes[sandbox.number] = sandbox
            held = self._held[sandbox.number] = []
            try:
                for layer in recipe.layers:
                    held.append(self.store.hold(layer))
                message = {"do": "start", "id": sandbox.number, **recipe.message()}
                self._channel.tell(message, (theirs.fileno(), *changes))
            except BaseException:
                sandbox.give_up(SandboxFailure("start", "the sandbox was not started"))
                self.forget(sandbox)
                raise
        return sandbox

    async def begun(self, sandbox: LocalSandbox) -> LocalSandbox:
        """Wait until it takes requests."""
        try:
            await self.within(_START_SECONDS, sandbox.ready, "a sandbox to start")
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    def forget(self, sandbox: LocalSandbox) -> None:
        self._sandboxes.pop(sandbox.number, None)
        for descriptor in self._held.pop(sandbox.number, ()):
            os.close(descriptor)

    def kill(self, number: int) -> None:
        if self._channel.failure is None:
            self._channel.tell({"do": "kill", "id": number})

    def _on_event(self, message: wire.Message) -> None:
        if "ready" in message and not self._greeting.done():
            self._greeting.set_result(message["memory"])
        elif "ended" in message and message["ended"] in self._sandboxes:
            self._sandboxes[message["ended"]].ended()

    async def within(self, seconds: float, future: asyncio.Future[Any], what: str) -> Any:
        """Wait for something that only a live launcher can bring."""
        deadline = asyncio.get_running_loop().time() + seconds
        while not future.done():
            left = deadline - asyncio.get_running_loop().time()
            if self._channel.failure is not None:
                raise SandboxFailure("launcher", f"the sandbox launcher ended: {self._last_words()}")
            if left <= 0:
                raise SandboxFailure("deadline", f"waited {seconds:g} s for {what}")
            await asyncio.wait({future}, timeout=min(left, 0.5))
        return future.result()

    def _last_words(self) -> str:
        text = os.pread(self._log, 1 << 16, 0).decode(errors="replace").strip() if self._log >= 0 else ""
        return text.splitlines()[-1] if text else "it left no message"


def _advice() -> str:
    """Why a machine may refuse, from what it says about itself."""
    reasons = {
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": ("1", "AppArmor keeps ordinary users from them"),
        "/proc/sys/kernel/unprivileged_userns_clone": ("0", "this kernel keeps ordinary users from them"),
        "/proc/sys/user/max_user_namespaces": ("0", "user namespaces are turned off"),
    }
    for name, (value, meaning) in reasons.items():
        path = Path(name)
        if path.exists() and path.read_text().strip() == value:
            return f"{meaning} ({name} is {value}): change that, or ask for the weaker backend by its name, plain"
    return "Inside a container it must be allowed to make namespaces; or ask for the weaker backend by its name, plain"
