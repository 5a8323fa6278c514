"""The rollout workers as the loop sees them: an environment for rollouts, in which a worker that dies costs no rollout.

A group stays with one worker, which has its task's layers and grades, unless another has much less to do. When a worker
dies, its supervisor starts another, and its rollouts are asked for again there: they go on from their recorded turns. A
rollout that takes worker after worker with it is void. Knows the environment's protocol; neither steps nor training.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from etude.cluster.local import Restarts, Supervisor
from etude.cluster.placement import WORKER, Placement, Program, Running
from etude.core.errors import EtudeError
from etude.core.frame_calls import Caller, ConnectionLost
from etude.core.policy import Policy, Version
from etude.core.terms import Terms
from etude.core.transport import Frame, to_json, unpack
from etude.rl.editions import Edition
from etude.rl.groups import Finished, slot_of
from etude.rl.groups import unpack as unpack_rollout
from etude.rl.rollout_environment import RolloutEnvironment
from etude.rl.rollout_files import RolloutFile, RolloutFiles
from etude.rl.workers.messages import (
    READY,
    EnginesRequest,
    ReadableRequest,
    RolloutAnswer,
    RolloutRequest,
    SolvableRequest,
    WorkerSpec,
)
from etude.rl.workers.placed_tasks import PlacedTasks
from etude.rollout.rollout import Cause, Outcome, Scored, Void
from etude.rollout.scheduler import RolloutJob, retry_void
from etude.tasks.format.task import Task

DEATHS = 2  # workers that a rollout may see die; then it is void
LOST = 30  # connections that may be lost to workers that live, or whose end is noticed late
UNEVEN = 2  # times the mean of rollouts in flight, from which on a group's rollout goes to another worker
KEPT = 1024  # groups whose worker is remembered, far more than are in flight
TELL_SECONDS = 10.0  # that a worker has to take note of engines that left
NO_SLOT = "000000-00"  # name of an evaluation's rollouts, which are not recorded
CAUSES: dict[str, Cause] = {"sandbox": "sandbox", "policy": "policy", "grader": "grader", "harness": "harness"}


@dataclass(eq=False)
class _Worker:
    supervisor: Supervisor
    caller: Caller
    in_flight: int = 0
    launcher: int = 0  # pid of its sandboxes' launcher
    grades: tuple[int, ...] = (0, 0)


@dataclass(eq=False)
class WorkerPool:
    """Runs rollouts in workers; all else is asked of the orchestrator's own environment."""

    inside: RolloutEnvironment
    spec: WorkerSpec
    count: int
    editions: Callable[[int], Edition]
    source_of: Callable[[int], str]  # of a group by its number
    placement: Placement
    restarts: Restarts
    start_seconds: float
    rollout_seconds: float  # longest that a rollout and its grade may take
    logs: Callable[[int], Path]
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.workers = [self._worker(number) for number in range(self.count)]
        self._of_group: dict[str, _Worker] = {}
        self._tasks = PlacedTasks(self.spec.tasks)
        self.files = RolloutFiles(self.spec.home / "rollouts")

    @property
    def engine(self) -> Any:
        return self.inside.engine

    @property
    def host(self) -> Any:
        return self.inside.host

    @property
    def pids(self) -> list[int]:
        return [worker.supervisor.child.pid for worker in self.workers if worker.supervisor.child.pid]

    @property
    def launchers(self) -> list[int]:
        """Those on this machine."""
        return [worker.launcher for worker in self.workers if worker.launcher and worker.supervisor.child.pid]

    async def open(self) -> None:
        await asyncio.gather(*(worker.supervisor.open() for worker in self.workers))

    async def close(self) -> None:
        for worker in self.workers:
            worker.caller.close()
        await asyncio.gather(*(worker.supervisor.close() for worker in self.workers))

    # The environment

    async def run_rollout(
        self, task: Task, seed: int, terms: Terms, on_grading: Callable[[], None], name: str
    ) -> Outcome | Finished:
        number, _ = slot_of(name)
        with self.engine.rollout(str(number)) as engine, self._tasks.use(task) as place:
            request = RolloutRequest(
                name,
                place,
                seed,
                engine.address,
                self.editions(terms.edition),
                terms.effort,
                self.source_of(number),
            )
            found, answer = await self._ask(request, task, on_grading, lambda: engine.address)
        if isinstance(found, Void):
            return found
        self.counts["resumed_tokens"] += answer.resumed_tokens
        return found

    async def evaluate(self, policy: Policy, job: RolloutJob) -> Outcome | Finished:
        version: Version = policy.version  # type: ignore[attr-defined]  # a pinned one: nothing else is evaluated
        address: Callable[[], str] = lambda: self.engine.of_pinned(f"{job.task.name}/{job.sample}").address  # noqa: E731
        with self._tasks.use(job.task) as place:
            request = RolloutRequest(
                NO_SLOT,
                place,
                job.seed,
                address(),
                self.editions(0),
                version=version,
                temperature=self.inside.recipe.bench.temperature,
            )

            async def run() -> Outcome | Finished:
                found, _ = await self._ask(request, job.task, lambda: None, address)
                return found

            return await retry_void(run, self.inside.recipe.rl.retries)

    async def check_void(self, void: Void) -> None:
        await self.inside.check_void(void)

    async def check_broken(self, number: int, scored: Scored | Finished) -> None:
        if isinstance(scored, Finished) and scored.broken:
            await self.inside.broken_tasks.settle(number, scored.task, scored.broken, self._solvable)

    async def write_readable(self, root: Path) -> None:
        """Every worker writes its newest rollouts; one that is gone has none."""
        wanted = ReadableRequest(root, self.inside.recipe.rl.keep_trajectories)
        request = Frame({"verb": "readable", "message": to_json(wanted)})
        for worker in self.workers:
            try:
                await worker.caller.call(request)
            except (ConnectionLost, TimeoutError):  # nothing depends on them
                continue

    async def tell_engines(self) -> None:
        """Engines joined or left: rollouts of one that left ask another at their next turn."""
        engines = self.engine.engines
        told = EnginesRequest(
            tuple(engines[number].address for number in self.engine.present),
            tuple(engines[number].address for number in self.engine.with_pin),
        )
        request = Frame({"verb": "engines", "message": to_json(told)})

        async def tell(worker: _Worker) -> None:
            # One that is started again, or does not answer, hears of them with its next rollout.
            with contextlib.suppress(ConnectionLost, TimeoutError):
                await worker.caller.call(request, deadline=TELL_SECONDS)

        await asyncio.gather(*map(tell, self.workers))

    @property
    def grades_reused(self) -> float:
        asked, reused = (sum(worker.grades[i] for worker in self.workers) for i in (0, 1))
        return reused / max(1, asked)

    # Inside

    async def _ask(
        self, request: RolloutRequest, task: Task, on_grading: Callable[[], None], engine: Callable[[], str]
    ) -> tuple[Finished | Void, RolloutAnswer]:
        deaths = 0
        for _ in range(LOST):
            worker = self._choose(request)
            request = replace(request, engine=engine())  # which may be another by now
            died = worker.supervisor.deaths
            worker.in_flight += 1
            try:
                return await self._answered(worker, request, task, on_grading)
            except ConnectionLost:
                self._forget(worker)
            except TimeoutError:
                late = f"the worker did not finish the rollout within {self.rollout_seconds:g} s"
                return Void(task, "harness", True, late), RolloutAnswer()
            finally:
                worker.in_flight -= 1
            await worker.supervisor.wait_back(died, 2 * self.start_seconds)
            deaths += worker.supervisor.deaths > died
            if deaths > DEATHS:
                why = f"{deaths} workers died while they ran this rollout"
                return Void(task, "harness", False, why), RolloutAnswer()
        return Void(task, "harness", True, f"the connection to a worker was lost {LOST} times"), RolloutAnswer()

    async def _answered(
        self, worker: _Worker, request: RolloutRequest, task: Task, on_grading: Callable[[], None]
    ) -> tuple[Finished | Void, RolloutAnswer]:
        frame = Frame({"verb": "rollout", "message": to_json(request)})
        found = await worker.caller.call(frame, deadline=self.rollout_seconds, on_news=lambda news: on_grading())
        data = found.arrays.get("rollout")
        answer = unpack(RolloutAnswer, Frame(found.header))
        worker.grades = answer.grades
        if answer.void:
            return Void(task, CAUSES.get(answer.void, "harness"), answer.retry, answer.message), answer
        kept: bytes | RolloutFile
        if data is not None:
            kept = packed_bytes = data.tobytes()
        else:
            kept = RolloutFile(answer.path, answer.digest)
            packed_bytes = await asyncio.to_thread(self.files.read, kept)
        return Finished(task, unpack_rollout(packed_bytes), kept, answer.broken), answer

    def _choose(self, request: RolloutRequest) -> _Worker:
        """The worker of a rollout's group; the one with least to do for a new one, or where that has far too much."""
        group = request.task.digest
        # One that is being started again has nothing to do, and is not the one to ask.
        there = [worker for worker in self.workers if worker.supervisor.up.is_set()] or self.workers
        least = min(there, key=lambda worker: worker.in_flight)
        known = self._of_group.get(group)
        mean = sum(worker.in_flight for worker in self.workers) / len(self.workers)
        if known is None or known.in_flight > UNEVEN * mean + 1:
            known = self._of_group[group] = least
            while len(self._of_group) > KEPT:
                self._of_group.pop(next(iter(self._of_group)))
        return known

    def _forget(self, worker: _Worker) -> None:
        """Rollouts of a worker that died go to whoever has least to do."""
        for group in [group for group, its in self._of_group.items() if its is worker]:
            del self._of_group[group]

    async def _solvable(self, task: Task) -> bool | None:
        with self._tasks.use(task) as place:
            request = Frame({"verb": "solvable", "message": to_json(SolvableRequest(place))})
            try:
                found = (await self.workers[0].caller.call(request, deadline=self.rollout_seconds)).header["message"]
            except (EtudeError, TimeoutError):
                return None
        return found if isinstance(found, bool) else None

    def _worker(self, number: int) -> _Worker:
        name = f"{WORKER}-{number}"
        store = self.spec.store / name
        spec = replace(self.spec, store=store)

        async def begin() -> Running:
            shutil.rmtree(store, ignore_errors=True)  # what one that died left
            arguments = (json.dumps(to_json(spec)),)
            program = Program(name, "etude.rl.workers.process", arguments, READY, self.logs(number), (store,))
            child = await self.placement.start(program, self.start_seconds)
            worker.launcher = int(child.said or 0)
            self.placement.publish(name)
            return child

        address = self.placement.address(name).removeprefix("unix:")
        worker = _Worker(Supervisor(f"worker {number}", begin, self.restarts), Caller(address))
        return worker
