"""All sandbox hosts of a run as one host: each new sandbox goes to the least loaded machine that has a place.

A machine that does not answer takes none until it does; one that fails its sentinel is cordoned: its sandboxes fail
for the machine's reason, and it is tried again later and later. A start that a machine spoils is tried on another.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

from etude.core.errors import EtudeError
from etude.sandbox.backend import BackendHost, SandboxRecipe
from etude.sandbox.base import Capabilities, Egress, Layer, SandboxFailure, Snapshot
from etude.sandbox.remote import placement
from etude.sandbox.remote.layer_transfer import names_of
from etude.sandbox.remote.machine import UNREACHED, Machine
from etude.sandbox.remote.messages import MachineFacts, Started, StartRequest
from etude.sandbox.remote.sandbox import RemoteSandbox
from etude.sandbox.sentinel import sandbox_works
from etude.sandbox.store.layers import Store

TOKEN: Final = "ETUDE_SANDBOX_TOKEN"  # noqa: S105 - the variable's name
_PLACE_SECONDS: Final = 600.0  # that a start waits for a place
_LOOK_SECONDS: Final = 0.5  # between two looks whether there is one
_FIRST_CHECK: Final = 30.0  # seconds until a cordoned machine is tried again; twice as long after each failure
_LAST_CHECK: Final = 3600.0
_FOLLOW_SECONDS: Final = 10.0  # between two looks at which machines there are

FindMachines = Callable[[], Awaitable[Sequence[str]]]  # addresses of machines that come and go


class RemoteHost(BackendHost[RemoteSandbox]):
    """Makes sandboxes on other machines. `await RemoteHost.open(store, addresses=...)`, then `start`."""

    egress = True  # where the backend there has it, which says so otherwise

    def __init__(self, store: Store, machines: Sequence[Machine], place_seconds: float = _PLACE_SECONDS) -> None:
        super().__init__(store)
        self.machines = tuple(machines)
        self._token = ""
        self._place_seconds = place_seconds
        self._tasks: list[asyncio.Task[None]] = []
        self._keeping: dict[Machine, asyncio.Task[None]] = {}
        self._checks: dict[str, asyncio.Task[bool]] = {}  # sentinels under way, by address
        self._prefetched: set[str] = set()
        self._known: Sequence[MachineFacts] = ()
        self._more = asyncio.Event()  # a place may have become free

    @classmethod
    async def open(
        cls,
        store: Store | Path,
        preload: Sequence[str] = (),
        *,
        addresses: Sequence[str] = (),
        token: str = "",
        isolated: bool = True,
        place_seconds: float = _PLACE_SECONDS,
        find: FindMachines | None = None,
    ) -> RemoteHost:
        """Reaches all machines; at least one must answer, the others are tried again until they do.

        `find` names further ones, and is asked again and again: machines join and leave as it says.
        `preload` is what the servers should have loaded: where one has not, programs are started anew there and
        everywhere. With `isolated`, machines with the plain backend are refused.
        """
        token = token or os.environ.get(TOKEN, "")
        if not token:
            raise EtudeError(f"sandbox hosts ask for a token: set {TOKEN} to the one that they were started with")
        found_now = [] if find is None else await find()
        if not addresses and not found_now:
            raise EtudeError("give at least one sandbox host, as HOST:PORT" if find is None else "no pod is ready yet")
        given, addresses = tuple(addresses), [*addresses, *found_now]
        store = store if isinstance(store, Store) else Store(store)
        host = cls(store, [Machine(address, token, store) for address in dict.fromkeys(addresses)], place_seconds)
        found = await asyncio.gather(*(machine.open() for machine in host.machines), return_exceptions=True)
        for machine, error in zip(host.machines, found, strict=True):
            if isinstance(error, EtudeError):
                machine.down = str(error)
            elif isinstance(error, BaseException):
                raise error
        try:
            host._check_machines(isolated)
        except BaseException:
            await host.close()
            raise
        host._token = token
        host._keeping = {machine: asyncio.ensure_future(machine.keep()) for machine in host.machines}
        if find is not None:
            host._tasks.append(asyncio.ensure_future(host._follow(find, given)))
        return host

    async def _follow(self, find: FindMachines, stay: Sequence[str]) -> None:
        """Machines join and leave as `find` says. One that is not told of but answers stays: its sandboxes do."""
        while True:
            await asyncio.sleep(_FOLLOW_SECONDS)
            try:
                wanted = {*stay, *await find()}
            except EtudeError as error:
                print(f"sandbox hosts are as before: {error}", file=sys.stderr, flush=True)
                continue
            for machine in [each for each in self.machines if each.address not in wanted and each.down]:
                await self._leave(machine)
            for address in sorted(wanted - {each.address for each in self.machines}):
                await self._join(Machine(address, self._token, self.store))

    async def _join(self, machine: Machine) -> None:
        machine.refuse = self._refuse
        with contextlib.suppress(EtudeError):  # it is reached for again as one that was there from the start
            await machine.open()
        self.machines = (*self.machines, machine)
        self._keeping[machine] = asyncio.ensure_future(machine.keep())
        self._more.set()

    async def _leave(self, machine: Machine) -> None:
        self._facts()
        self.machines = tuple(each for each in self.machines if each is not machine)
        self._keeping.pop(machine).cancel()
        failure = SandboxFailure("host", f"the sandbox host {machine.address} is gone for good: {machine.down}")
        for sandbox in [each for each in self._sandboxes if each.machine == machine.address]:
            sandbox.fail(failure)
        await machine.close()

    def _check_machines(self, isolated: bool) -> None:
        up = [machine for machine in self.machines if machine.facts is not None]
        if not up:
            whys = [machine.down for machine in self.machines]
            none_there = all(UNREACHED in why for why in whys)
            start = ["start one there with `etude sandbox serve --listen HOST:PORT`"] if none_there else []
            raise EtudeError("; ".join(whys + start))
        backends = {machine.facts.capabilities.backend: machine.address for machine in up if machine.facts}
        if len(backends) > 1:
            listed = ", ".join(f"{name} at {address}" for name, address in backends.items())
            raise EtudeError(f"the sandbox hosts have different backends ({listed}); give hosts of one kind")
        if isolated and not self.capabilities.isolated:
            raise EtudeError(
                f"the sandbox host {up[0].address} isolates nothing (backend plain); ask for that by name: remote/plain"
            )
        for machine in self.machines:  # also what answers later, or comes back as another
            machine.refuse = self._refuse

    def _refuse(self, facts: MachineFacts) -> str:
        """Why a machine like this cannot be one of these."""
        here, there = self.capabilities, facts.capabilities
        if here.isolated and not there.isolated:
            return f"isolates nothing (backend {there.backend}), and the others do"
        return f"has {there.backend} sandboxes, and the others do not" if there.backend != here.backend else ""

    @property
    def capabilities(self) -> Capabilities:
        """Those of its machines: all have one backend."""
        return self._facts()[0].capabilities

    @property
    def preload(self) -> tuple[str, ...]:
        """What all machines that answered have loaded."""
        found = [facts.preload for facts in self._facts()]
        return tuple(name for name in found[0] if all(name in each for each in found))

    def _facts(self) -> Sequence[MachineFacts]:
        """Of all machines that answered; of those that did before, while there are none."""
        self._known = [machine.facts for machine in self.machines if machine.facts is not None] or self._known
        return self._known

    async def _start(self, recipe: SandboxRecipe, snapshot: Snapshot | None) -> RemoteSandbox:
        deadline = asyncio.get_running_loop().time() + self._place_seconds
        while True:
            chosen = placement.choose(self.machines)
            machine = None if chosen is None else self.machines[chosen]  # machines may leave while it is asked
            if machine is not None:
                found = await self._start_on(machine, recipe, snapshot)
                if found is not None:
                    return found
            # One that has no place in spite of its load (its memory is under pressure) is not asked again at once.
            late = asyncio.get_running_loop().time() >= deadline
            if machine is None or late or machine.usable:
                await self._await_place(deadline)

    async def _start_on(
        self, machine: Machine, recipe: SandboxRecipe, snapshot: Snapshot | None
    ) -> RemoteSandbox | None:
        """None where another machine has to be asked."""
        machine.asked += 1
        try:
            made = await self._make(machine, recipe, snapshot)
        except SandboxFailure as failure:
            if failure.cause == "host":
                machine.down = machine.down or str(failure)
            elif await self.machine_works(machine, recipe.layers):
                raise  # the machine works for others: it is what was asked for
            return None
        finally:
            machine.asked -= 1
        if made is not None:
            self._prefetch(recipe.layers)
        return made

    async def _make(
        self, machine: Machine, recipe: SandboxRecipe, snapshot: Snapshot | None, sentinel: bool = False
    ) -> RemoteSandbox | None:
        """A sandbox on that machine; None where it is full."""
        number, network = machine.number(), recipe.network
        request = StartRequest(
            number,
            names_of(recipe.layers),
            "" if snapshot is None else snapshot.digest,
            recipe.limits,
            network is True,
            network if isinstance(network, Egress) else None,
            dict(recipe.env),
            recipe.workdir,
            sentinel,
        )
        made: RemoteSandbox | None = None
        try:
            started = await machine.start(request, recipe.layers, snapshot)
            if not started.full:
                made = self.made(machine, number, recipe, started, sentinel)
        finally:
            if made is None:
                machine.alive.discard(number)  # one whose answer was lost is closed at the next beat
        return made

    async def _sentinel(self, machine: Machine, layers: Sequence[Layer]) -> RemoteSandbox:
        """The sentinel's sandbox on that machine: places and cordons do not count."""
        made = await self._make(machine, SandboxRecipe(tuple(layers)), None, sentinel=True)
        assert made is not None
        return made

    async def _await_place(self, deadline: float) -> None:
        left = deadline - asyncio.get_running_loop().time()
        if left <= 0:
            states = "; ".join(f"{each.address}: {_state(each)}" for each in self.machines)
            text = f"waited {self._place_seconds:g} s for a place on the sandbox hosts ({states})"
            raise SandboxFailure("host", text)
        self._more.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(left, _LOOK_SECONDS)):
                await self._more.wait()
        for machine in self.machines:
            # Asked again, as other clients' sandboxes end without our being told.
            if machine.usable:
                with contextlib.suppress(EtudeError):
                    await machine.beat()

    def made(
        self, machine: Machine, number: int, recipe: SandboxRecipe, started: Started, sentinel: bool = False
    ) -> RemoteSandbox:
        """A sandbox that came up on a machine."""
        sandbox = RemoteSandbox(self, machine, number, recipe, started, sentinel)
        if not sentinel:
            self._sandboxes.add(sandbox)
        return sandbox

    def forget(self, sandbox: RemoteSandbox) -> None:
        super().forget(sandbox)
        self._more.set()

    def _prefetch(self, layers: tuple[Layer, ...]) -> None:
        """Sends layers that are used for the first time to the other machines as well, before they are asked for."""
        new = [layer for layer in layers if layer.digest not in self._prefetched]
        self._prefetched.update(layer.digest for layer in new)
        if new and len(self.machines) > 1:
            task = asyncio.ensure_future(self.prefetch(new))
            self._tasks.append(task)
            task.add_done_callback(self._tasks.remove)

    async def prefetch(self, layers: Sequence[Layer]) -> None:
        """Has every machine take these layers; one that cannot take them now takes them when it needs them."""

        async def send(machine: Machine) -> None:
            with contextlib.suppress(EtudeError):
                missing = await machine.missing(layers)
                await machine.send_layers(layers, missing)

        await asyncio.gather(*(send(machine) for machine in self.machines if machine.usable))

    async def machine_works(self, machine: Machine, layers: Sequence[Layer]) -> bool:
        """The sentinel on this machine. One that fails is cordoned, and its sandboxes with it."""
        if machine.cordoned:
            return False
        if machine.address not in self._checks:
            task = asyncio.ensure_future(sandbox_works(self._sentinel(machine, layers)))
            self._checks[machine.address] = task
            task.add_done_callback(lambda _: self._checks.pop(machine.address, None))
        works = await asyncio.shield(self._checks[machine.address])
        if not works and not machine.cordoned:
            self._cordon(machine, layers)
        return works

    def _cordon(self, machine: Machine, layers: Sequence[Layer]) -> None:
        machine.cordoned = "it failed its sentinel: a sandbox that does nothing could not be made there"
        print(f"sandbox host {machine.address} is cordoned: {machine.cordoned}", file=sys.stderr, flush=True)
        failure = SandboxFailure("host", f"the sandbox host {machine.address} is cordoned: {machine.cordoned}")
        for sandbox in [each for each in self._sandboxes if each.machine == machine.address]:
            sandbox.fail(failure)
        self._tasks.append(asyncio.ensure_future(self._uncordon(machine, tuple(layers))))

    async def _uncordon(self, machine: Machine, layers: tuple[Layer, ...]) -> None:
        pause = _FIRST_CHECK
        while machine.cordoned:
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LAST_CHECK)
            works = False
            with contextlib.suppress(EtudeError):  # whatever it is, the machine is tried again
                works = not machine.down and await sandbox_works(self._sentinel(machine, layers))
            if works:
                machine.cordoned = ""
                self._more.set()
                print(f"sandbox host {machine.address} works again", file=sys.stderr, flush=True)

    async def close(self) -> None:
        tasks = [*self._tasks, *self._keeping.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(machine.close() for machine in self.machines))


def _state(machine: Machine) -> str:
    if machine.cordoned or machine.down:
        return f"cordoned, {machine.cordoned}" if machine.cordoned else f"gone, {machine.down}"
    load = machine.load
    return (
        "no load told" if load is None else f"{load.live} of {load.places} places taken, {load.available >> 20} MB left"
    )
