"""Engine replicas as supervised processes: an address that stays, and the others' version for one that comes back.

A replica that is started again listens at an address of its own until it has the right weights; only then is it
published at the address that clients have. So nobody samples from the weights of an old checkpoint. Further ones may be
started, joined (`lent`: processes of somebody else) and taken out while the run goes on; which, says `elastic`. Knows
engines; nothing of training.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from etude.cluster.local import LOOK, Restarts, Supervisor
from etude.cluster.placement import ENGINE, Placement, Program, Role, Running
from etude.cluster.vllm import vllm_program
from etude.core.errors import EtudeError
from etude.core.frame_calls import ConnectionLost
from etude.core.policy import Version
from etude.core.settings import EngineSettings
from etude.core.transport import to_json
from etude.policies.engine_client import EngineClient
from etude.policies.replicas import EngineReplicas
from etude.policies.vllm_client import VLLMClient
from etude.serve.messages import READY, EngineSpec


@dataclass(frozen=True)
class EnginePlan:
    """How the replicas of a run are started."""

    settings: EngineSettings
    count: int
    device: str
    threads: int
    board: Path
    logs: Callable[[int], Path]
    start_seconds: float
    verb_seconds: float
    # The weights that one starts from, and their version: the newest commit, or what an evaluation has pinned.
    weights: Callable[[Version | None], tuple[Path, Version]]
    chain: str = ""  # where versions are read from; empty reads the board
    vllm: str = ""  # interpreter of vLLM's environment, where vLLM is the engine


class Engines:
    """The replicas and their supervisors, by number. `replicas` is the policy that they are together."""

    def __init__(
        self, plan: EnginePlan, version: Version, placement: Placement, restarts: Restarts, *, spares: int = 0
    ) -> None:
        self.plan, self.placement, self.restarts = plan, placement, restarts
        self.first = version  # before anything was published
        self._pinned: set[int] = set()  # started with the weights of an evaluation
        names = Role(ENGINE, plan.count + spares).programs()
        clients = [self._client(placement.address(name), patience=plan.start_seconds) for name in names]
        self.replicas = EngineReplicas(clients, version, plan.verb_seconds, self._wait_up)
        self.replicas.may_lose = lambda number: number not in self.supervisors
        for number in range(plan.count, plan.count + spares):
            self.replicas.placement.remove(number)
        self.supervisors = {number: self._supervisor(number) for number in range(len(clients))}
        self.lent: dict[int, str] = {}  # the numbers of engines of somebody else, and their addresses

    @property
    def own(self) -> list[int]:
        """The numbers of the engines of this run that are sampled from, or will be when they are back."""
        return [number for number in self.replicas.present if number in self.supervisors]

    @property
    def pids(self) -> list[int]:
        return [supervisor.child.pid for supervisor in self.supervisors.values() if supervisor.child.pid]

    async def start(self) -> Supervisor:
        """One replica more, on a process of this run. Whoever asked has to watch its supervisor."""
        number = len(self.replicas.engines)
        supervisor = self._supervisor(number)
        client = self._client(self.placement.address(f"{ENGINE}-{number}"), patience=self.plan.start_seconds)
        try:
            await supervisor.open()
            self.supervisors[number] = supervisor
            await self.replicas.add(client, has_pin=number in self._pinned)
        except BaseException:
            self.supervisors.pop(number, None)
            await supervisor.close()
            await self.placement.give_back(f"{ENGINE}-{number}")
            await client.close()
            raise
        return supervisor

    async def join(self, address: str) -> int:
        """An engine of somebody else, which reads the same chain of weights."""
        client = EngineClient(address, deadline=self.plan.verb_seconds)
        try:
            number = await self.replicas.add(client)
        except BaseException:
            await client.close()
            raise
        self.lent[number] = address
        return number

    async def leave(self, number: int, deadline: float) -> int:
        """Takes a replica out, once its rollouts have left it; a process of this run ends. How many had not left."""
        if number not in self.replicas.placement.in_flight:
            return 0  # an update that it did not answer has taken it out meanwhile
        if (watched := self.supervisors.get(number)) is not None:
            watched.end_watch()  # one that dies while rollouts leave it is not started again
        left = await self.replicas.remove(number, deadline)
        supervisor = self.supervisors.pop(number, None)
        self.replicas.spares.discard(number)
        if supervisor is not None:
            await supervisor.close()
            await self.placement.give_back(f"{ENGINE}-{number}")
        self.lent.pop(number, None)
        await self.replicas.engines[number].close()
        return left

    async def close(self) -> None:
        await self.replicas.close()
        await asyncio.gather(*(supervisor.close() for supervisor in self.supervisors.values()))

    def _supervisor(self, number: int) -> Supervisor:
        async def on_death() -> None:
            if await self.replicas.replace(number):
                self.restarts.log(f"engine {number} died; a spare has taken its place")

        return Supervisor(f"engine {number}", self._starter(number), self.restarts, on_death)

    async def _wait_up(self, number: int) -> None:
        """Until an engine is back, or its place was taken; one of somebody else is taken out instead."""
        supervisor = self.supervisors.get(number)
        if supervisor is None:
            if number in self.replicas.placement.in_flight:
                self.restarts.log(f"engine {number} at {self.lent.get(number)} is gone; rollouts go on without it")
                await self.leave(number, 0.0)
            return
        seconds = self.plan.start_seconds + self.plan.verb_seconds
        back = asyncio.ensure_future(supervisor.wait_back(supervisor.deaths, seconds))
        try:
            while not back.done() and number in self.replicas.placement.in_flight:
                await asyncio.wait({back}, timeout=LOOK)
            if back.done():
                back.result()
        finally:
            back.cancel()

    def _client(self, address: str, *, patience: float = 0.0) -> EngineClient:
        if not self.plan.vllm:
            return EngineClient(address, deadline=self.plan.verb_seconds, patience=patience)
        client = VLLMClient(address, deadline=self.plan.verb_seconds, patience=patience)
        client.chain = self.plan.chain
        return client

    def _program(self, number: int, model: Path, version: Version) -> Program:
        plan, name, log = self.plan, f"{ENGINE}-{number}", self.plan.logs(number)
        if plan.vllm:
            return vllm_program(
                name,
                log,
                model,
                plan.settings,
                plan.vllm,
                device=plan.device,
                threads=plan.threads,
                seconds=plan.start_seconds,
            )
        seconds = 0.9 * plan.verb_seconds  # so that the engine says what is missing before its client gives up
        spec = EngineSpec(model, plan.settings, plan.device, plan.threads, plan.board, version, plan.chain, seconds)
        return Program(name, "etude.serve.server", (json.dumps(to_json(spec)),), READY, log)

    def _starter(self, number: int) -> Callable[[], Awaitable[Running]]:
        plan, name = self.plan, f"{ENGINE}-{number}"

        async def start() -> Running:
            model, version = plan.weights(self.replicas.pinned)
            # Steps that move nothing are not published, so a later commit has the weights of the present version. The
            # board need not hold that one: nothing may have been published yet.
            version = min(version, self.replicas.version)
            server = await self.placement.start(self._program(number, model, version), plan.start_seconds)
            client = self._client(server.said)
            try:
                if isinstance(client, VLLMClient):
                    await client.attach(plan.chain, version)
                has_pin = self.replicas.pinned == version
                await self.replicas.restore(client, version)
                self.placement.publish(name)
                if number in self.supervisors:  # one that is new joins when it is there; one may have been taken out
                    self.replicas.back(number, has_pin=has_pin)
                (self._pinned.add if has_pin else self._pinned.discard)(number)
            except BaseException as failed:
                said = await server.last_words() if isinstance(failed, ConnectionLost) else None
                await server.close(0)
                if said:
                    raise EtudeError(said) from None
                raise
            finally:
                await client.close()
            return server

        return start
