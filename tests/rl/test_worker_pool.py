"""Rollout workers as real processes, with real sandboxes and an engine that is a script in this process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from etude.cluster.local import LocalPlacement, Restarts
from etude.core import recipe as recipes
from etude.core.child_process import listen
from etude.core.frame_calls import Answering, Send
from etude.core.policy import Sample, Version
from etude.core.recipe import Recipe
from etude.core.terms import Terms
from etude.core.transport import Frame, from_json, to_json
from etude.forge.katas.task_source import katas
from etude.policies.engine_client import EngineClient
from etude.policies.replicas import EngineReplicas
from etude.rl import rollout_environment
from etude.rl.broken_tasks import BrokenTasks
from etude.rl.editions import Edition
from etude.rl.groups import Finished, unpack
from etude.rl.rollout_environment import RolloutEnvironment
from etude.rl.workers.messages import RolloutRequest, TaskPlace, WorkerSpec
from etude.rl.workers.pool import WorkerPool
from etude.rl.workers.process import Worker
from etude.rl.workers.setup import training_setup
from etude.rollout.rollout import Void
from etude.rollout.turn_records import PART, RecordedPolicy, TurnRecords
from etude.serve.messages import frames_path, read_generate, write_sample_frame
from etude.tasks.format.task import Task

SECONDS = 180.0
VERSION = Version(0, 3)


class Script:
    """An engine: its first turn is some tokens, and then it waits for `go_on`."""

    def __init__(self, stop: int) -> None:
        self.stop = stop
        self.asked: list[tuple[int, ...]] = []
        self.second, self.go_on = asyncio.Event(), asyncio.Event()

    async def handle(self, frame: Frame, send: Send) -> Frame:
        request, _ = read_generate(frame)
        self.asked.append(request.ids)
        if len(self.asked) == 2:  # the first turn of the rollout is finished, and recorded
            self.second.set()
            send(write_sample_frame(self._sample(70, 71, 72, 73)))
            await self.go_on.wait()
        return write_sample_frame(self._sample(65, 66, 67, self.stop))

    def _sample(self, *ids: int) -> Sample:
        return Sample("", "stop", ids, (-1.0,) * len(ids), (VERSION,) * len(ids))


@pytest.fixture
def pool(toy_model: Path, toy_recipe: Callable[..., Recipe], tmp_path: Path) -> Iterator[Callable[[], WorkerPool]]:
    recipe = toy_recipe("harness.limits.malformed=9", "harness.limits.sampled_tokens=64", "cluster.save_tokens=4")
    (tmp_path / "recipe.toml").write_text(tomli_w.dumps(recipes.to_dict(recipe)))
    spec = WorkerSpec(
        tmp_path / "recipe.toml", toy_model, tmp_path / "rl", tmp_path / "w", tmp_path / "w", "local", lineage=0
    )
    addresses = LocalPlacement()
    setup = training_setup(recipe, toy_model)
    edition = Edition(0, recipe.reward.parts, 0.0)

    def make() -> WorkerPool:
        engine = EngineClient(f"unix:{addresses.socket('engine')}")
        replicas = EngineReplicas([engine], VERSION)
        nothing: Any = None
        inside = RolloutEnvironment(
            nothing, replicas, setup, recipe, BrokenTasks(nothing, print), print, lambda number: setup, nothing
        )
        return WorkerPool(
            inside,
            spec,
            1,
            lambda number: edition,
            lambda number: "mine",
            addresses,
            Restarts(2, print),
            SECONDS,
            SECONDS,
            lambda number: tmp_path / f"worker-{number}.log",
        )

    yield make
    asyncio.run(addresses.close())


def test_a_worker_that_is_killed_is_replaced_and_its_rollout_goes_on_from_its_last_token(
    pool: Callable[[], WorkerPool], tmp_path: Path
) -> None:
    task: Task = next(iter(katas("train", 1, seed=3)))

    async def scene() -> tuple[Any, WorkerPool, Script]:
        workers = pool()
        (stop,) = training_setup(workers.inside.recipe, workers.spec.model).dialect.stop_ids[:1]  # type: ignore[union-attr]
        script, graded = Script(stop), list[bool]()
        server = Answering(script.handle)
        await server.listen(listen(Path(frames_path(str(workers.placement.socket("engine"))))))
        await workers.open()
        watching = asyncio.ensure_future(workers.workers[0].supervisor.watch())
        try:
            terms = Terms()
            run = workers.run_rollout(task, 7, terms, lambda: graded.append(True), "000004-01")
            rolling = asyncio.ensure_future(run)
            await script.second.wait()
            record = tmp_path / "rl" / "turns" / "000004-01.turns"
            while PART not in record.read_bytes():  # until the part of turn two is there as well
                await asyncio.sleep(0.02)
            os.kill(workers.pids[0], signal.SIGKILL)
            script.go_on.set()
            outcome = await rolling
            assert graded == [True] and workers.workers[0].supervisor.deaths == 1
            await workers.write_readable(tmp_path / "readable")
            return outcome, workers, script
        finally:
            await workers.close()
            await server.close()
            watching.cancel()

    outcome, workers, script = asyncio.run(asyncio.wait_for(scene(), SECONDS))
    assert isinstance(outcome, Finished) and isinstance(outcome.data, bytes)
    assert unpack(outcome.data).reward == outcome.rollout.reward and outcome.rollout.source == "mine"
    # Turn one was asked for once, and the rest of turn two behind the tokens that its engine had told of.
    first, second, rest = script.asked[:3]
    assert second[: len(first)] == first and rest == (*second, 70, 71, 72, 73)
    (trace,) = outcome.rollout.traces
    sampled = [int(token) for token, own in zip(trace.ids_T, trace.sampled_T, strict=True) if own]
    stop = sampled[3]
    assert sampled[:12] == [65, 66, 67, stop, 70, 71, 72, 73, 65, 66, 67, stop]
    assert workers.counts["resumed_tokens"] == 8
    assert len([path for path in (tmp_path / "readable").iterdir() if path.name != "tasks"]) == 1


def test_a_worker_rewards_edition_0_as_the_run_began_and_not_as_a_later_command_says(
    toy_model: Path, toy_recipe: Callable[..., Recipe], tmp_path: Path
) -> None:
    began, now = toy_recipe(), toy_recipe("reward.parts=[{use='tests', weight=3.0}]")
    spec = WorkerSpec(tmp_path / "recipe.toml", toy_model, tmp_path, tmp_path, tmp_path, "local", lineage=1)
    nothing: Any = None
    worker = Worker(spec, now, nothing, training_setup(now, toy_model))
    first = worker._edition(Edition(0, began.reward.parts, 0.0))
    told = worker._edition(Edition(1, now.reward.parts, 0.0))
    weights = [[part.weight for part in setup.reward.parts] for setup in (first, told)]
    assert [each[0] for each in weights] == [1.0, 3.0]
    edited = Edition(2, now.reward.parts, 0.0, tools=[{"use": "read"}, {"use": "finish"}])
    request = RolloutRequest("000001-00", TaskPlace("a", "digest"), 0, "", edited)
    heard = from_json(RolloutRequest, json.loads(json.dumps(to_json(request))))
    assert list(worker._edition(heard.edition).tools) == ["read", "finish"]
    same = Worker(spec, began, nothing, training_setup(began, toy_model))
    assert same._edition(Edition(0, began.reward.parts, 0.0)) is same.setup


def test_a_worker_that_is_away_is_given_no_rollouts_and_a_slow_one_costs_no_run(pool: Callable[[], WorkerPool]) -> None:
    async def scene() -> None:
        workers = pool()
        workers.workers.append(workers._worker(1))
        away, there = workers.workers
        there.supervisor.up.set()
        there.in_flight = 5
        request = RolloutRequest("000001-00", TaskPlace("a", "digest"), 0, "", Edition(0, [], 0.0))
        assert workers._choose(request) is there
        away.supervisor.up.set()
        workers._of_group.clear()
        assert workers._choose(request) is away

        async def late(frame: Frame) -> Frame:
            raise TimeoutError

        for worker in workers.workers:
            worker.caller.call = late  # type: ignore[method-assign,assignment]
        await workers.write_readable(workers.spec.home)

    asyncio.run(scene())


@pytest.mark.parametrize("every", [0, 4])
def test_a_sample_whose_engine_is_gone_is_waited_for_once(
    toy_recipe: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    """The engine's client waits where nobody listens to parts, and the recorded policy where somebody does."""
    recipe = toy_recipe(f"cluster.save_tokens={every}")
    policies: list[RecordedPolicy] = []

    async def run(task: Task, policy: RecordedPolicy, *_: Any, **__: Any) -> Void:
        policies.append(policy)
        return Void(task, "policy", True, "gone")

    monkeypatch.setattr(rollout_environment, "run_rollout", run)
    nothing: Any = None
    records = TurnRecords(tmp_path)
    rolled = rollout_environment.recorded_rollout(
        nothing, nothing, nothing, recipe, 0, Terms(), print, nothing, records, "000000-00"
    )
    asyncio.run(rolled)
    assert [policy.patience for policy in policies] == [recipe.rl.start_seconds if every else 0.0]
