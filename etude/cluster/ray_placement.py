"""Programs on the nodes of a Ray cluster: Ray finds room, starts supervisors again, and finds them; nothing else.

Each program has a supervisor, a detached actor under a name of its own (`ray_supervisor`), in the placement group of
its role. This process asks it to start the program and waits for its end; the program itself is reached over TCP at the
address that it writes into a folder which all nodes share. A program whose end nobody saw is replaced only after its
lease has run out, so two of one name never run side by side.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from etude.cluster.placement import WORKER, Program, Role
from etude.cluster.ray_supervisor import RENEW, ProgramSupervisor, machine, read_claim
from etude.core import process
from etude.core.child_process import LACK_OF_MEMORY, log_end
from etude.core.cluster_settings import ClusterSettings
from etude.core.errors import EtudeError
from etude.core.tcp_address import FILE

POLL = 5.0  # seconds that a supervisor waits for its child's end before it says that it lives
AGAIN = 0.5  # seconds between two tries to reach a supervisor that Ray starts again
KILLED = -9
LOST = " lost"  # behind the claim of an incarnation whose end nobody saw: no supervisor renews it
LOOPBACK = "127.0.0.1"
STORE = 80 << 20  # bytes of Ray's object store on a cluster that is started here: nothing of ours goes through it


class RayPlacement:
    """The placement of one run on one cluster."""

    def __init__(
        self, settings: ClusterSettings, home: Path, lineage: Callable[[], int], say: Callable[[str], None]
    ) -> None:
        self.settings, self.home, self.lineage, self.say = settings, home.absolute(), lineage, say
        self.namespace = f"etude-{hashlib.sha256(str(self.home).encode()).hexdigest()[:16]}"
        self._roles: dict[str, Role] = {}
        self._groups: dict[str, PlacementGroup] = {}  # of roles, and of programs that came later
        self._supervisors: dict[str, Any] = {}
        self._facts: dict[str, dict[str, Any]] = {}
        self._incarnations: dict[str, str] = {}  # of the process of each name that was started last
        self._revoked: dict[str, float] = {}  # names whose process was lost, and since when it has no right to run
        self._starts = 0

    # Opening

    async def open(self, roles: Sequence[Role]) -> None:
        """Joins the cluster, or starts one, and finds room for all programs."""
        self._roles = {role.name: role for role in roles}
        self.home.mkdir(parents=True, exist_ok=True)
        seconds = self.settings.place_seconds
        where = self.settings.address or "a cluster started here"
        try:
            # In a thread: it blocks, for good where nothing listens at the address.
            context = await asyncio.wait_for(asyncio.to_thread(self._join), seconds)
        except TimeoutError:
            raise EtudeError(f"Ray at {where} did not answer within {seconds:g} s") from None
        except (ConnectionError, RuntimeError, ValueError, RayError) as failed:
            raise EtudeError(f"Ray at {where} cannot be used: {str(failed).partition(chr(10))[0]}") from None
        await self._find_room()
        names = [name for role in roles for name in role.programs()]
        await asyncio.gather(*map(self._supervisor, names))
        self._check_weights([name for name in names if not name.startswith(WORKER)])
        dashboard = getattr(context, "dashboard_url", None)
        nodes = sorted({self._facts[name]["node"][:8] for name in names})
        self.say(
            f"Ray at {context.address_info['gcs_address']}, programs on {len(nodes)} node{'s' * (len(nodes) > 1)}"
            + (f", dashboard http://{dashboard}" if dashboard else ", no dashboard (it is part of ray[default])")
        )

    def _check_weights(self, names: Sequence[str]) -> None:
        """Without a chain of versions the learner's weights go through memory, which only one machine shares."""
        places = {self._facts[name]["machine"]: self._facts[name]["host"] for name in names}
        if len(places) > 1 and not self.settings.weights:
            raise EtudeError(
                f"learner and engines are on different machines ({', '.join(sorted(places.values()))}), and weights "
                "go through the memory of one: set cluster.weights to a directory or bucket that all of them reach"
            )

    def _join(self) -> Any:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # Its agent is slow on a busy machine: at load 17 it took longer than the 30 s that it has.
        os.environ.setdefault("RAY_agent_register_timeout_ms", "180000")
        # Only read by a cluster that is started here. Its own default is 15, which programs would inherit.
        os.environ.setdefault("RAY_worker_niceness", "0")
        options: dict[str, Any] = {"namespace": self.namespace, "log_to_driver": False, "logging_level": logging.ERROR}
        if self.settings.address:
            return ray.init(address=self.settings.address, **options)
        # Twice what is there at first: engines may be added, and these are numbers that Ray counts, not real cores.
        wanted = 2 * sum(role.count * self.settings.cpus for role in self._roles.values())
        cores = max(process.available_cores(), int(wanted + 0.999))
        return ray.init(address="local", num_cpus=cores, include_dashboard=False, object_store_memory=STORE, **options)

    async def _find_room(self) -> None:
        seconds = self.settings.place_seconds
        end = time.monotonic() + seconds
        for role in self._roles.values():
            self._groups[role.name] = await asyncio.to_thread(self._group, role)
        for role in self._roles.values():
            left = max(1.0, end - time.monotonic())
            if not await asyncio.to_thread(self._groups[role.name].wait, left):
                raise EtudeError(await asyncio.to_thread(self._missing, role))

    def _group(self, role: Role) -> PlacementGroup:
        """The room of a role: what an earlier command of this run left, if it is the same, or a new one."""
        bundles = [self._bundle(role)] * role.count
        try:
            found = ray.util.get_placement_group(role.name)
            if found.bundle_specs == bundles:
                return found
            ray.util.remove_placement_group(found)
        except ValueError:
            pass  # there is none
        strategy = "PACK" if role.spread == "together" else "SPREAD"
        return ray.util.placement_group(bundles, strategy=strategy, name=role.name, lifetime="detached")

    def _bundle(self, role: Role) -> dict[str, float]:
        return {"CPU": self.settings.cpus} | ({"GPU": float(role.gpus)} if role.gpus else {})

    def _missing(self, role: Role) -> str:
        wanted = " and ".join(f"{count:g} {name}" for name, count in self._bundle(role).items())
        total = ray.available_resources()
        free = ", ".join(f"{total.get(name, 0.0):g} {name}" for name in self._bundle(role))
        return (
            f"Ray found no room for {role.count} {role.name} programs of {wanted} each within "
            f"{self.settings.place_seconds:g} s; free are {free} on {len(ray.nodes())} nodes: add nodes, ask for fewer "
            "programs, or lower cluster.cpus"
        )

    async def _supervisor(self, name: str) -> Any:
        """The actor of a program, wherever Ray has it now; raises when it does not come up."""
        end = time.monotonic() + self.settings.place_seconds
        while True:
            if name not in self._supervisors:
                self._supervisors[name] = await asyncio.to_thread(self._actor, name)
            try:
                asked = self._supervisors[name].facts.remote()
                self._facts[name] = json.loads(await _answer(asked, end - time.monotonic()))
                return self._supervisors[name]
            except ray.exceptions.ActorUnavailableError:
                pass  # Ray is starting it again
            except ray.exceptions.ActorDiedError:
                del self._supervisors[name]  # for good: another one is made
            except (RayError, TimeoutError):
                pass
            if time.monotonic() > end:
                role = self._roles[name.rpartition("-")[0]]
                raise EtudeError(await asyncio.to_thread(self._missing, role))
            await asyncio.sleep(AGAIN)

    def _actor(self, name: str) -> Any:
        role_name, _, number = name.rpartition("-")
        role, place = self._roles[role_name], int(number)
        group = role.name
        if place >= role.count:  # it came while the run went on, and has room of its own
            group, place = name, 0
            if name not in self._groups:
                self._groups[name] = self._group(Role(name, 1, role.gpus))
        strategy = PlacementGroupSchedulingStrategy(self._groups[group], placement_group_bundle_index=place)
        bundle = self._bundle(role)
        return (
            ray.remote(ProgramSupervisor)
            .options(
                name=name,
                get_if_exists=True,
                lifetime="detached",
                max_restarts=-1,
                # A start that is asked for twice would be two starts.
                max_task_retries=0,
                num_cpus=bundle["CPU"],
                num_gpus=bundle.get("GPU", 0),
                scheduling_strategy=strategy,
            )
            .remote(self.settings.orphan_seconds, group)
        )

    # Programs

    def address(self, name: str) -> str:
        return f"{FILE}{self.home / name}"

    async def start(self, program: Program, seconds: float) -> RayProgram:
        name = program.name
        self._starts += 1
        incarnation = f"{self.lineage()}.{self._starts}"
        claim = self.home / f"{name}.claim"
        before = read_claim(claim)
        # First: from here on whoever has an older one ends its child, wherever it is.
        self.claim(name, incarnation)
        supervisor = await self._supervisor(name)
        since = self._revoked.pop(name, time.monotonic())
        if before and not await self._seen_to_end(supervisor, before.removesuffix(LOST)):
            left = since + self.settings.lease_seconds + 2 * RENEW - time.monotonic()
            await asyncio.sleep(max(0.0, left))
        self._incarnations[name] = incarnation
        asked = {
            "incarnation": incarnation,
            "title": program.title,
            "module": program.module,
            "arguments": list(program.arguments),
            "ready": program.ready,
            "log": str(program.log.absolute()) if program.log is not None else "",
            "leaves": [str(path.absolute()) for path in program.leaves],
            "environment": dict(program.environment),
            "folder": str(Path.cwd()),
            "announce": str(self._own(name)),
            "host": self._host(name),
            "claim": str(claim),
            "seconds": seconds,
            "lease": self.settings.lease_seconds,
        }
        try:
            text = await _answer(supervisor.start.remote(json.dumps(asked)), seconds + 2 * self.settings.lease_seconds)
        except (RayError, TimeoutError) as lost:
            raise EtudeError(f"the supervisor of {name} was lost while it started it: {_line(lost)}") from None
        answer = json.loads(text)
        if "error" in answer:
            self.release(name, incarnation)
            raise EtudeError(answer["error"])
        facts = self._facts[name]
        self.say(
            f"{name} is process {answer['pid']} on node {facts['node'][:8]} ({facts['host']}), "
            f"incarnation {incarnation}, log {program.log}"
        )
        pid = answer["pid"] if facts["machine"] == machine() else 0
        return RayProgram(self, program, incarnation, supervisor, facts, pid, answer["said"])

    async def _seen_to_end(self, supervisor: Any, incarnation: str) -> bool:
        """Ends a child of before, if the supervisor still has it."""
        try:
            text = await _answer(supervisor.stop.remote(incarnation, 5.0), 5.0 + self.settings.lease_seconds)
            return bool(json.loads(text)["state"] == "ended")
        except (RayError, TimeoutError):
            return False

    def publish(self, name: str) -> None:
        self._own(name).replace(self.home / name)

    def claim(self, name: str, incarnation: str) -> None:
        """Nobody else has the right to this name from now on."""
        working = self.home / f".{name}.claim"
        working.write_text(incarnation)
        working.replace(self.home / f"{name}.claim")

    def revoke(self, name: str, incarnation: str) -> None:
        """That incarnation was lost. Its lease runs out from now on, and not only when the next one is started."""
        with contextlib.suppress(OSError):  # a folder out of reach: then nobody can renew it either
            if read_claim(self.home / f"{name}.claim") == incarnation:
                self.claim(name, f"{incarnation}{LOST}")
                self._revoked[name] = time.monotonic()

    def release(self, name: str, incarnation: str) -> None:
        """The end of that incarnation was seen: the next one need not wait for its lease."""
        path = self.home / f"{name}.claim"
        if read_claim(path) == incarnation:
            path.unlink(missing_ok=True)

    async def ranks(self, names: Sequence[str]) -> list[Mapping[str, str]]:
        host = self._host(names[0])
        supervisor = await self._supervisor(names[0])
        try:
            port = json.loads(await _answer(supervisor.free_port.remote(host), POLL))["port"]
        except (RayError, TimeoutError) as lost:
            raise EtudeError(f"the supervisor of {names[0]} has no port for its ranks: {_line(lost)}") from None
        size = len(names)
        common = {"WORLD_SIZE": str(size), "MASTER_ADDR": host, "MASTER_PORT": str(port)}
        if host == LOOPBACK:  # a host name that does not resolve must not matter here
            common["GLOO_SOCKET_IFNAME"] = "lo"
        # Ray shows each program its own GPUs only, so each is the first of its own.
        return [common | {"RANK": str(rank), "LOCAL_RANK": "0"} for rank in range(size)]

    async def give_back(self, name: str) -> None:
        """The room of a program that came later is free; that of one of the first is kept for the run."""
        (self.home / f"{name}.claim").unlink(missing_ok=True)  # one that cannot be reached ends its child
        (self.home / name).unlink(missing_ok=True)
        supervisor, group = self._supervisors.pop(name, None), self._groups.pop(name, None)

        def end() -> None:
            if supervisor is not None:
                ray.kill(supervisor, no_restart=True)
            if group is not None:
                ray.util.remove_placement_group(group)

        try:
            await asyncio.wait_for(asyncio.to_thread(end), self.settings.place_seconds)
        except (RayError, TimeoutError) as failed:
            self.say(f"Ray did not take {name} back: {_line(failed)}")

    async def close(self) -> None:
        """Ends every program and its supervisor, and gives the room back."""
        if not ray.is_initialized():
            return
        try:
            await asyncio.wait_for(asyncio.to_thread(self._give_back), 60.0)
        except (RayError, TimeoutError) as failed:
            self.say(f"Ray did not take everything back: {_line(failed)}")
        await asyncio.to_thread(ray.shutdown)

    def _give_back(self) -> None:
        shutil.rmtree(self.home, ignore_errors=True)  # with all claims: one that cannot be reached ends its child
        for supervisor in self._supervisors.values():
            ray.kill(supervisor, no_restart=True)
        for group in self._groups.values():
            ray.util.remove_placement_group(group)

    def _own(self, name: str) -> Path:
        """Where the newest process of a name says how it is reached, until it is published."""
        return self.home / f"{name}.{self._incarnations[name]}"

    def _host(self, name: str) -> str:
        return str(self._facts[name]["host"]) if self.settings.address else LOOPBACK


class RayProgram:
    """A program under a supervisor on some node."""

    def __init__(
        self,
        placement: RayPlacement,
        program: Program,
        incarnation: str,
        supervisor: Any,
        facts: Mapping[str, Any],
        pid: int,
        said: str,
    ) -> None:
        self.placement, self.program, self.incarnation = placement, program, incarnation
        self.pid, self.said = pid, said
        self._supervisor, self._facts = supervisor, facts
        self._how = ""  # it ended
        self._heard = time.monotonic()
        self._unheard = False  # the last time that it was asked

    @property
    def ended(self) -> bool:
        return bool(self._how)

    async def wait(self) -> None:
        while not self._how:
            await self._look(POLL)

    async def last_words(self) -> str | None:
        end = time.monotonic() + POLL
        # One that cannot be asked is not known to live: it is lost after its lease at the latest.
        while not self._how and (time.monotonic() < end or self._unheard):
            await self._look(AGAIN)
        return f"the {self.program.title} process {self._how}; {self.log_end()}" if self._how else None

    def log_end(self) -> str:
        return log_end(self.program.log) if self.program.log is not None else "it has no log"

    async def close(self, seconds: float) -> None:
        if self._how:
            return
        try:
            asked = self._supervisor.stop.remote(self.incarnation, seconds)
            self._hear(await _answer(asked, seconds + self.placement.settings.lease_seconds))
        except (RayError, TimeoutError):
            self._lose("its supervisor could not be reached to end it")

    async def _look(self, seconds: float) -> None:
        try:
            self._hear(await _answer(self._supervisor.wait.remote(self.incarnation, seconds), seconds + POLL))
        except (RayError, TimeoutError) as lost:
            self._unheard = True
            if time.monotonic() - self._heard > self.placement.settings.lease_seconds:
                self._lose(_line(lost))
            else:
                await asyncio.sleep(AGAIN)

    def _hear(self, text: str) -> None:
        self._heard, self._unheard, answer = time.monotonic(), False, json.loads(text)
        if answer["state"] == "unknown":
            self._lose("its supervisor was started again")
        if answer["state"] != "ended" or self._how:
            return
        code = answer["code"]
        self._how = f"ended with code {code}{LACK_OF_MEMORY if code == KILLED else ''}"
        self.placement.release(self.program.name, self.incarnation)

    def _lose(self, why: str) -> None:
        """Nobody saw its end. It ends with its lease; once the next is published, no answer of it is taken."""
        self.placement.revoke(self.program.name, self.incarnation)
        self._how = self._how or f"on node {self._facts['node'][:8]} ({self._facts['host']}) was lost: {why}"


async def _answer(reference: Any, seconds: float) -> str:
    # Not `wait_for`: in Python 3.11 that loses a cancellation which comes together with the answer, and a watch that
    # was to end then goes on for ever.
    async with asyncio.timeout(max(0.1, seconds)):
        return str(await asyncio.wrap_future(reference.future()))


def _line(failed: BaseException) -> str:
    if isinstance(failed, RayTaskError) and failed.cause is not None:  # its own text begins with a traceback
        failed = failed.cause
    return str(failed).strip().partition("\n")[0] or type(failed).__name__
