"""Engine replicas as supervised processes: an address that stays, and the others' version for one that comes back.

A replica that is started again listens at an address of its own until it has the right weights; only then is it
published at the address that clients have. So nobody samples from the weights of an old checkpoint. Knows engines;
nothing of training.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from etude.cluster.local import Restarts, Supervisor
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
    """The replicas and their supervisors. `replicas` is the policy that they are together."""

    def __init__(self, plan: EnginePlan, version: Version, placement: Placement, restarts: Restarts) -> None:
        self.plan, self.placement = plan, placement
        clients = [
            self._client(placement.address(name), patience=plan.start_seconds)
            for name in Role(ENGINE, plan.count).programs()
        ]
        self.replicas = EngineReplicas(clients, version, plan.verb_seconds, self._wait_up)
        self.supervisors = [
            Supervisor(f"engine {number}", self._starter(number), restarts) for number in range(plan.count)
        ]

    @property
    def pids(self) -> list[int]:
        return [supervisor.child.pid for supervisor in self.supervisors if supervisor.child.pid]

    async def close(self) -> None:
        await self.replicas.close()
        for supervisor in self.supervisors:
            await supervisor.close()

    async def _wait_up(self, number: int) -> None:
        supervisor = self.supervisors[number]
        await supervisor.wait_back(supervisor.deaths, self.plan.start_seconds + self.plan.verb_seconds)

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
                await self.replicas.restore(client, version)
                self.placement.publish(name)
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
