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
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from etude.core.errors import EtudeError
from etude.sandbox.backend import BackendHost, SandboxRecipe, isolated_python, open_changes
from etude.sandbox.base import Capabilities, Egress, FrozenSandbox, NotFrozen, SandboxFailure, SandboxLimits
from etude.sandbox.egress.authority import CertificateAuthority
from etude.sandbox.egress.policy import EgressPolicy
from etude.sandbox.egress.proxy import CA_FILE, EgressProxy
from etude.sandbox.local import wire
from etude.sandbox.local.channel import Channel, Signal
from etude.sandbox.local.criu import Criu
from etude.sandbox.local.find_criu import find_criu
from etude.sandbox.local.sandbox import LocalSandbox
from etude.sandbox.store import frozen_sandboxes
from etude.sandbox.store.layers import Store, interpreter_folders, system_folders

_START_SECONDS: Final = 30.0  # a loaded machine starting many at once
_CRIU_SECONDS: Final = 120.0  # for CRIU to write or read a gigabyte
_PAST: Final = {"dump": "saved", "restore": "restored"}


class LocalHost(BackendHost[LocalSandbox]):
    """Makes sandboxes out of Linux namespaces. `await LocalHost.open(store)`, then `start`."""

    egress = True

    def __init__(
        self,
        store: Store | Path,
        process: subprocess.Popen[bytes],
        log: int,
        control: socket.socket,
        preload: tuple[str, ...],
    ) -> None:
        super().__init__(store, preload)
        self._process = process
        self._log = log
        self._greeting: asyncio.Future[wire.Message] = asyncio.get_running_loop().create_future()
        self._channel = Channel(control, "the sandbox launcher", self._on_event)
        self._last = 0
        self._facts: wire.Message = {
            "memory": "",
            "users": "",
            "trusted": "",
            "files": "",
        }  # what the launcher found out
        self.spent: Counter[str] = Counter()  # processor seconds of sandboxes' inits, and until they were ready
        self._criu: Criu | None = None
        self._authority: CertificateAuthority | None = None
        self.egress_options: dict[str, Any] = {}  # of every `EgressProxy`: another resolver, other roots of trust

    @classmethod
    async def open(cls, store: Store | Path, preload: Sequence[str] = ()) -> LocalHost:
        """Start the launcher and try one sandbox, so that a machine that cannot do it says so at once."""
        if not sys.platform.startswith("linux"):
            raise EtudeError("the local sandbox needs Linux; ask for the weaker backend by its name, plain")
        store = store if isinstance(store, Store) else Store(store)
        folder = str(store.root)
        ours, theirs = socket.socketpair()
        # A memfd: the log needs no name on disk, and is gone with the host.
        log = os.memfd_create("launcher", os.MFD_CLOEXEC)
        with theirs:
            process = subprocess.Popen(
                # No site, no environment: a small process with nothing in it that a program could be after.
                isolated_python("etude.sandbox.local.launcher", theirs.fileno(), os.getpid(), tuple(preload), folder),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={},
                cwd="/",
                pass_fds=(theirs.fileno(),),
                # A terminal's Ctrl-C goes to the whole session: the orchestrator decides when the launcher ends.
                start_new_session=True,
            )
        host = cls(store, process, log, ours, tuple(preload))
        try:
            host._facts = await host.within(_START_SECONDS, host._greeting, "the sandbox launcher to start")
            # One trial start costs milliseconds, and turns "every rollout fails" into one sentence at the beginning.
            trial = await host.when_ready(
                host.begin(SandboxRecipe(()), shows=(*system_folders(), *interpreter_folders()))
            )
            host._facts["files"] = "own inodes" if trial.ready.result() else "shared inodes"
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
            memory=self._facts["memory"],
            processes="namespace",
            disk="tmpfs",
            kill="pid namespace",
            users=self._facts["users"],
            trusted=self._facts["trusted"],
            files=self._facts["files"],
        )

    @property
    def launcher_pid(self) -> int:
        return self._process.pid

    async def open_sandbox(self, recipe: SandboxRecipe, changes: Path | None) -> LocalSandbox:
        if changes is None:
            return await self.when_ready(self.begin(recipe))
        # Kept open by init for resets, so the file may be removed from the store meanwhile.
        file = open_changes(changes)
        try:
            with Signal() as packed:
                packed.give()
                return await self.when_ready(self.begin(recipe, (file, packed.reader)))
        finally:
            os.close(file)

    async def thaw(self, frozen: FrozenSandbox) -> LocalSandbox:
        criu = await self.criu()
        folder, facts = await asyncio.to_thread(frozen_sandboxes.verified, self.store, frozen)
        layers = tuple(self.store.layer(digest) for digest in facts["layers"])
        recipe = SandboxRecipe(layers, SandboxLimits(**facts["limits"]), False, facts["env"], facts["workdir"])
        sandbox = await self.open_sandbox(recipe, folder / frozen_sandboxes.CHANGES)
        try:
            for number, program in enumerate(facts["programs"]):
                order = {"pid": program["pid"], "pipes": program["pipes"], "highest": facts["highest"]}
                await sandbox.restore_program(criu, folder / str(number), order)
            await sandbox.continue_programs()
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    async def criu(self) -> Criu:
        """What saves the memory of programs on this machine; an `EtudeError` where nothing does."""
        if self._criu is None:
            self._criu = await asyncio.to_thread(find_criu)
        return self._criu

    async def run_criu(
        self, verb: str, sandbox: int, criu: Criu, order: wire.Message, descriptors: tuple[int, ...]
    ) -> wire.Message:
        """Have the launcher run CRIU in a sandbox; `NotFrozen` says what it could not do there."""
        message = {"do": verb, "sandbox": sandbox, **asdict(criu), **order}
        (future,) = self._channel.request(message, descriptors).answers
        answer: wire.Message
        answer, _ = await self.within(_CRIU_SECONDS, future, f"CRIU to {verb} a program")
        if "error" in answer:
            raise NotFrozen(f"a program's memory could not be {_PAST[verb]}: {answer['error']}")
        return answer

    async def close(self) -> None:
        await super().close()
        self._channel.close(SandboxFailure("closed", "the sandbox host is closed"))
        try:
            await asyncio.to_thread(self._process.wait, 15.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)
        if self._log >= 0:
            os.close(self._log)
            self._log = -1

    def authority(self) -> CertificateAuthority:
        """Who signs what the egress proxies show; made for this host, with the first sandbox that needs it."""
        if self._authority is None:
            self._authority = CertificateAuthority()
        return self._authority

    def egress_proxy(self, egress: Egress, number: int) -> EgressProxy:
        policy = EgressPolicy.of(egress.hosts, egress.private)
        return EgressProxy(policy, self.authority(), self._log_egress, name=str(number), **self.egress_options)

    def _log_egress(self, line: str) -> None:
        with (self.store.root / "egress.jsonl").open("a") as file:
            file.write(f"{line}\n")

    def begin(
        self, recipe: SandboxRecipe, changes: tuple[int, ...] = (), shows: tuple[str, ...] | None = None
    ) -> LocalSandbox:
        """Have a sandbox made. Two descriptors of changes: packed ones, and one that says when they are whole.

        `shows` stands in for what the layers name.
        """
        self._last += 1
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            raise SandboxFailure("start", f"no socket for a sandbox: {error.strerror}") from error
        with theirs:
            sandbox = LocalSandbox(self, self._last, ours, recipe)
            self._sandboxes.add(sandbox)
            try:
                for layer in recipe.layers:
                    # Layers are held before the message goes out: a prune in another process could remove them in
                    # between.
                    sandbox.held.append(self.store.hold(layer))
                message = {
                    "do": "start",
                    "id": sandbox.number,
                    # The store lists layers bottom first, an overlay wants the top one first.
                    "layers": [str(layer.path) for layer in reversed(recipe.layers)],
                    "shows": recipe.shows if shows is None else shows,
                    "network": recipe.network is True,
                    "etc": {CA_FILE: self.authority().pem} if isinstance(recipe.network, Egress) else {},
                    "workdir": recipe.workdir,
                    "limits": asdict(recipe.limits),
                }
                self._channel.send(message, (theirs.fileno(), *changes))
            except BaseException:
                sandbox.give_up(SandboxFailure("start", "the sandbox was not started"))
                self.forget(sandbox)
                raise
        return sandbox

    async def when_ready(self, sandbox: LocalSandbox) -> LocalSandbox:
        """Wait until it takes requests."""
        try:
            await self.within(_START_SECONDS, sandbox.ready, "a sandbox to start")
            await sandbox.open_egress()
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    def forget(self, sandbox: LocalSandbox) -> None:
        super().forget(sandbox)
        wire.close_all(sandbox.held)
        sandbox.held.clear()

    def kill(self, number: int) -> None:
        if self._channel.failure is None:
            self._channel.send({"do": "kill", "id": number})

    def _on_event(self, message: wire.Message) -> None:
        if "ready" in message and not self._greeting.done():
            self._greeting.set_result(message)
        elif "ended" in message:
            if message.get("seconds") is not None:
                self.spent.update({"sandbox_ends": 1, "sandbox_seconds": message["seconds"]})
            for sandbox in [each for each in self._sandboxes if each.number == message["ended"]]:
                sandbox.ended()

    async def within(self, seconds: float, future: asyncio.Future[Any], what: str) -> Any:
        """Wait for something that only a live launcher can bring."""
        deadline = asyncio.get_running_loop().time() + seconds
        while not future.done():
            left = deadline - asyncio.get_running_loop().time()
            if self._channel.failure is not None:
                raise SandboxFailure("launcher", f"the sandbox launcher ended: {self._last_log_line()}")
            if left <= 0:
                raise SandboxFailure("deadline", f"waited {seconds:g} s for {what}")
            # In steps of half a second: a launcher that died is noticed before the deadline.
            await asyncio.wait({future}, timeout=min(left, 0.5))
        return future.result()

    def _last_log_line(self) -> str:
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
