"""A rollout worker: `python -m etude.rl.workers.process SPEC ...` runs rollouts, many at once, until its parent ends.

It has sandboxes of its own and asks the engines itself. Turns are recorded as they come, so a worker that takes the
place of one that died goes on with its rollouts. What is learnt from goes back as a file's path and digest, or as bytes
where those are few; what people may read stays here until they ask for it (`readable`). Never imports torch, and knows
neither groups nor steps.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import zlib
from collections import OrderedDict, deque
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from etude.core import child_process as child
from etude.core import process
from etude.core import recipe as recipes
from etude.core.errors import EtudeError
from etude.core.frame_calls import Answering, Send
from etude.core.policy import Context, Sample, Sampling
from etude.core.recipe import Recipe
from etude.core.terms import Terms
from etude.core.transport import Frame, from_json, pack
from etude.policies.engine_client import EngineClient
from etude.policies.vllm_client import VLLMClient
from etude.rl.broken_tasks import broken_because
from etude.rl.checkpoint import keep_readable
from etude.rl.editions import Edition, build_edition
from etude.rl.groups import compact, packed, slot_of
from etude.rl.groups import pack as pack_rollout
from etude.rl.rollout_environment import recorded_rollout, solvable
from etude.rl.rollout_files import RolloutFile, RolloutFiles
from etude.rl.workers.messages import (
    READY,
    EnginesRequest,
    ReadableRequest,
    RolloutAnswer,
    RolloutRequest,
    SolvableRequest,
    TaskPlace,
    WorkerSpec,
)
from etude.rl.workers.setup import open_sandboxes, training_setup
from etude.rollout.rollout import RolloutSetup, Scored, Void, run_rollout
from etude.rollout.store import TaskRef, load_task
from etude.rollout.turn_records import TurnRecords
from etude.sandbox.hosts import StoringHost
from etude.tasks.format.task import Task

REMEMBERED = 64  # tasks: those of the groups in flight, and some more
GRADING = "grading"  # news that a rollout's agent has stopped


class Worker:
    """The verbs of a worker."""

    def __init__(self, spec: WorkerSpec, recipe: Recipe, host: StoringHost, setup: RolloutSetup) -> None:
        self.spec, self.recipe, self.host, self.setup = spec, recipe, host, setup
        self.files, self.records = RolloutFiles(spec.home / "rollouts"), TurnRecords(spec.home / "turns")
        self.newest: deque[tuple[str, Scored]] = deque(maxlen=recipe.rl.keep_trajectories)
        self._engines: dict[str, EngineClient] = {}
        self._present: EnginesRequest | None = None  # as it was told last; None: all that rollouts name
        self._tasks: OrderedDict[str, Task] = OrderedDict()
        self._setups: dict[int, RolloutSetup] = {}  # by edition

    async def handle(self, frame: Frame, send: Send) -> Frame:
        verb, body = frame.header.get("verb"), frame.header.get("message")
        if verb == "rollout":
            return await self.rollout(from_json(RolloutRequest, body), send)
        if verb == "solvable":
            task = self._task(from_json(SolvableRequest, body).task)
            return Frame({"message": await solvable(task, self.host, self.setup)})
        if verb == "engines":
            self._present = from_json(EnginesRequest, body)
            return Frame({"message": len(self._present.present)})
        if verb == "readable":
            wanted = from_json(ReadableRequest, body)
            newest = list(self.newest)
            self.newest.clear()
            await asyncio.to_thread(keep_readable, newest, wanted.root, wanted.keep)
            return Frame({"message": len(newest)})
        raise EtudeError(f"a worker has no verb {verb!r}")

    async def rollout(self, asked: RolloutRequest, send: Send) -> Frame:
        task, terms = self._task(asked.task), Terms(asked.effort, asked.edition.number)
        self._know(asked)
        resumed = 0
        if asked.version is not None:  # an evaluation: its rollouts are short-lived, and of one version
            setup = self.setup if asked.temperature is None else self.setup.at_temperature(asked.temperature)
            pinned = _Following(self, asked)
            outcome = await run_rollout(task, pinned, self.host, setup, policy_name="eval", seed=asked.seed)
        else:
            setup = self._edition(asked.edition)
            outcome, resumed = await recorded_rollout(
                task,
                self.host,
                setup,
                self.recipe,
                asked.seed,
                terms,
                lambda: send(Frame({"message": GRADING})),
                _Following(self, asked),
                self.records,
                asked.name,
            )
            if isinstance(outcome, Scored) and not (trainable := outcome.trajectory.trainable):
                outcome = Void(task, "harness", False, f"it cannot be trained on: {trainable.why_not}")
        cache = self.setup.grade_cache
        grades = (cache.asked, cache.reused) if cache is not None else (0, 0)
        if isinstance(outcome, Void):
            void = (outcome.cause, outcome.retry, outcome.message)
            return pack(RolloutAnswer("", "", "", *void, resumed_tokens=resumed, grades=grades))
        data: bytes | RolloutFile
        if asked.version is not None:  # of an evaluation nothing is kept
            data = pack_rollout(compact(outcome))
        else:
            place = (*slot_of(asked.name), self.spec.lineage)
            _, data = await packed(outcome, asked.source, terms, self.files, place)
            self.newest.append((f"{asked.name}-{self.spec.lineage}", outcome))
        broken = broken_because(outcome)
        if isinstance(data, RolloutFile):
            return pack(RolloutAnswer(data.path, data.digest, broken, resumed_tokens=resumed, grades=grades))
        answer = pack(RolloutAnswer(broken=broken, resumed_tokens=resumed, grades=grades))
        return Frame(answer.header, {"rollout": np.frombuffer(data, np.uint8)})

    def _task(self, place: TaskPlace) -> Task:
        """One object for each task: rollouts of a group share its layers and its grades."""
        if place.digest not in self._tasks:
            task = load_task(TaskRef.model_validate(vars(place)), self.spec.tasks, "a request")
            if place.directory is None:  # in memory, as it was made: that folder is only for the way here
                task = replace(task, files=task.files.replaced({}))
            self._tasks[place.digest] = task
            while len(self._tasks) > REMEMBERED:
                self._tasks.popitem(last=False)
        return self._tasks[place.digest]

    def _know(self, asked: RolloutRequest) -> None:
        """Whoever asks names an engine that is there: this one may have joined after the last word of them."""
        told = self._present
        if told is not None and asked.engine not in told.present:
            pinned = (*told.pinned, asked.engine) if asked.version is not None else told.pinned
            self._present = EnginesRequest((*told.present, asked.engine), pinned)

    def engine_of(self, asked: RolloutRequest) -> EngineClient:
        """The engine that a rollout's next turn asks: the one that it was given, or another if that left."""
        there = self._present
        if there is None or asked.engine in there.present:
            return self._engine(asked.engine)
        addresses = there.present if asked.version is None else there.pinned
        return self._engine(addresses[zlib.crc32(asked.task.digest.encode()) % len(addresses)])

    def _engine(self, address: str) -> EngineClient:
        if address not in self._engines:
            rl = self.recipe.rl
            kind = VLLMClient if self.recipe.cluster.engine == "vllm" else EngineClient
            self._engines[address] = kind(address, deadline=rl.engine_seconds, patience=rl.start_seconds)
        return self._engines[address]

    def _edition(self, edition: Edition) -> RolloutSetup:
        if edition.number not in self._setups:
            # The first is the recipe that the run began with, which a later command may have changed.
            same = edition.number == 0 and edition.parts == self.recipe.reward.parts
            copies = self.spec.home / "editions"
            built = self.setup if same else build_edition(edition, copies, self.recipe, self.setup)
            self._setups[edition.number] = built
        return self._setups[edition.number]


@dataclass(frozen=True)
class _Following:
    """A `Policy` for the turns of one rollout, which go to another engine when its own has left."""

    worker: Worker
    asked: RolloutRequest

    async def sample(self, context: Context, sampling: Sampling, **options: Any) -> Sample:
        if self.asked.version is not None:
            options["version"] = self.asked.version
        return await self.worker.engine_of(self.asked).sample(context, sampling, **options)


async def work(spec: WorkerSpec, recipe: Recipe, options: argparse.Namespace) -> None:
    async with AsyncExitStack() as stack:
        setup = training_setup(recipe, spec.model)
        host, setup = await open_sandboxes(spec.store, spec.backend, setup, stack)
        worker = Worker(spec, recipe, host, setup)
        answering = Answering(worker.handle)
        listening = child.Listening(options)
        address = listening.address
        await answering.listen(listening.socket, None if address is None else address.secret)
        stack.push_async_callback(answering.close)
        launcher = getattr(host, "launcher_pid", 0)
        print(READY, launcher, flush=True)
        await asyncio.get_running_loop().create_future()  # until the parent ends, or ends this


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m etude.rl.workers.process")
    parser.add_argument("spec", help="JSON object, see messages.WorkerSpec")
    child.add_arguments(parser)
    options: Any = parser.parse_args()
    try:
        spec = from_json(WorkerSpec, json.loads(options.spec))
        child.end_with(options, (options.socket, options.announce, options.folder, spec.store))
        process.stay_small()
        recipe = recipes.load(str(spec.recipe))
        asyncio.run(_until_told(work(spec, recipe, options)))
    except EtudeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


async def _until_told(working: Any) -> None:
    """Ends in order at SIGTERM: sandboxes are closed and their folders removed."""
    task = asyncio.ensure_future(working)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        return


if __name__ == "__main__":
    sys.exit(main())
