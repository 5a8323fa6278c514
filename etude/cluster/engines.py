"""Engine replicas as supervised processes: an address that stays, and the others' version for one that comes back.

A replica that is started again listens at a private address until it has the right weights; only then does its socket
take the public name. So nobody samples from the weights of an old checkpoint. Knows engines; nothing of training.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from etude.cluster.local import Addresses, Restarts, Supervisor
from etude.cluster.vllm import launch_vllm
from etude.core.child_process import Child
from etude.core.policy import Version
from etude.core.settings import EngineSettings
from etude.policies.engine_client import EngineClient, launch
from etude.policies.replicas import EngineReplicas
from etude.policies.vllm_client import VLLMClient
from etude.serve.messages import frames_path


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

    def __init__(self, plan: EnginePlan, version: Version, addresses: Addresses, restarts: Restarts) -> None:
        self.plan, self.addresses = plan, addresses
        self._starts = 0
        client = VLLMClient if plan.vllm else EngineClient
        clients = [
            client(
                f"unix:{addresses.socket(f'engine-{number}')}", deadline=plan.verb_seconds, patience=plan.start_seconds
            )
            for number in range(plan.count)
        ]
        for each in clients:
            if isinstance(each, VLLMClient):
                each.chain = plan.chain
        self.replicas = EngineReplicas(clients, version, plan.verb_seconds, self._wait_up)
        self.supervisors = [
            Supervisor(f"engine {number}", self._starter(number), restarts) for number in range(plan.count)
        ]

    @property
    def pids(self) -> list[int]:
        return [supervisor.child.process.pid for supervisor in self.supervisors]

    async def close(self) -> None:
        await self.replicas.close()
        for supervisor in self.supervisors:
            await supervisor.close()

    async def _wait_up(self, number: int) -> None:
        supervisor = self.supervisors[number]
        await supervisor.wait_back(supervisor.deaths, self.plan.start_seconds + self.plan.verb_seconds)

    def _starter(self, number: int) -> Callable[[], Awaitable[Child]]:
        plan, public = self.plan, self.addresses.socket(f"engine-{number}")

        async def start() -> Child:
            self._starts += 1
            private = public.with_name(f"{public.name}.{self._starts}")
            model, version = plan.weights(self.replicas.pinned)
            # Steps that move nothing are not published, so a later commit has the weights of the present version. The
            # board need not hold that one: nothing may have been published yet.
            version = min(version, self.replicas.version)
            starts: Callable[..., Awaitable[EngineClient]] = partial(launch, board=plan.board)
            if plan.vllm:
                starts = partial(launch_vllm, python=plan.vllm)
            client = await starts(
                model,
                plan.settings,
                device=plan.device,
                threads=plan.threads,
                chain=plan.chain,
                version=version,
                log=plan.logs(number),
                deadline=plan.start_seconds,
                verb_deadline=plan.verb_seconds,
                socket=private,
            )
            assert client.server is not None
            try:
                await self.replicas.restore(client, version)
                if not plan.vllm:  # which takes no frames
                    Path(frames_path(str(private))).replace(frames_path(str(public)))
                private.replace(public)
            except BaseException:
                await client.close(0)
                raise
            server, client.server = client.server, None
            await client.close()
            return server

        return start
