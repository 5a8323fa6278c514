"""Steps that a kill lost are repeated as they were: the same groups, the same weights; rollouts wait for those."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from etude.core import recipe as recipes
from etude.core.recipe import Recipe
from etude.core.rl_settings import RLSettings
from etude.core.run import Run
from etude.core.terms import Terms
from etude.rl.admission import Admission
from etude.rl.dispatcher import Dispatcher
from etude.rl.groups import RolloutGroup, Slot
from etude.rl.journal import Journal
from etude.rl.orchestrator import train
from etude.rollout.rollout import Outcome, Void
from etude.tasks.format.task import Task


class Endless:
    """Tasks without end, and rollouts that never finish; `asked` are the groups that some rollout runs of."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def tasks(self, start: int = 0) -> Iterator[Task]:
        return (Task(str(number), "") for number in range(start, 1000))

    async def run_rollout(
        self, task: Task, seed: int, terms: Terms, on_grading: Callable[[], None], name: str
    ) -> Outcome:
        self.asked.append(int(task.name))
        return await asyncio.get_running_loop().create_future()

    async def check_void(self, void: Void) -> None: ...

    async def check_broken(self, number: int, scored: Any) -> None: ...


def test_lost_steps_come_first_and_rollouts_wait_for_the_weights_that_they_began_with(tmp_path: Path) -> None:
    """Back at step 0 from step 2, with group 4 under way since step 1 and group 5 since step 2."""
    settings = RLSettings(groups=2, group=1, concurrency=9, staleness=1, steps=20)
    world = Endless()
    finished = [RolloutGroup(number, 0, [Slot("ready", reward=float(number))]) for number in range(4)]
    under_way = [RolloutGroup(5, 2, [Slot()]), RolloutGroup(4, 1, [Slot()])]

    async def work() -> None:
        async with asyncio.TaskGroup() as tasks:
            dispatcher = Dispatcher(
                settings,
                Admission(settings.staleness, settings.groups, settings.steps),
                Journal(tmp_path / "journal.db", 1),
                world,
                world,
                tasks,
                seed=0,
                step=0,
                groups=[*finished, *under_way],
                next_group=6,
                replays=[[2, 0], [1, 3]],
            )

            async def after(published: int) -> tuple[list[int], list[int]]:
                """The groups of the next step, and those that run behind the publication of its weights."""
                taken = dispatcher.take()
                assert taken is not None
                dispatcher.publish(published)
                await asyncio.sleep(0)
                return [group.number for group in taken], world.asked

            dispatcher.fill()
            await asyncio.sleep(0)
            assert world.asked == []
            assert await after(1) == ([2, 0], [4])
            assert await after(2) == ([1, 3], [4, 5, 6, 7])  # and new groups, as many as are trained in time
            assert dispatcher.take() is None
            dispatcher.close()

    asyncio.run(work())


def kill_learner() -> None:
    for child in Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split():
        with contextlib.suppress(OSError):
            if b"etude.rl.learner.process" in Path(f"/proc/{child}/cmdline").read_bytes():
                os.kill(int(child), signal.SIGKILL)
                return
    raise AssertionError("there is no learner")


@pytest.mark.parametrize("other", ["", "rate", "clock"], ids=["as it was", "another rate", "a rate by the clock"])
def test_a_run_that_lost_its_learner_comes_to_the_same_weights_again(
    toy_model: Path, toy_recipe: Callable[..., Recipe], tmp_path: Path, other: str
) -> None:
    killed_at, steps = 3, 5
    by_clock = ("rl.seconds=1e6", "rl.optim.schedule=linear") if other == "clock" else ()
    recipe = toy_recipe(f"rl.steps={steps}", "rl.save_every=20", "rl.eval_every=0", "run.threads=1", *by_clock)
    path, killed = tmp_path / "run", False
    with Run.open(path, recipes.to_dict(recipe)) as run:
        log = run.log

        def logged(stage: str, step: int, **values: Any) -> None:
            nonlocal killed
            log(stage, step, **values)
            if stage == "rl" and step == killed_at and not killed:
                killed = True
                if other == "rate":
                    (path / "live.toml").write_text(f"rl.optim.lr = {2 * recipe.rl.optim.lr}\n")
                kill_learner()

        run.log = logged  # type: ignore[method-assign]
        facts = asyncio.run(train(run, recipe, toy_model))
    assert facts["steps"] == steps and facts["void"] == 0
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    first, second = ([row for row in rows if row["stage"] == "rl" and row["lineage"] == lineage] for lineage in (0, 1))
    assert [row["step"] for row in first] == [1, 2, 3] and [row["step"] for row in second] == [1, 2, 3, 4, 5]
    same = [[row[name] for name in ("loss", "grad_norm", "update_rms", "k3", "reward")] for row in (*first, *second)]
    assert ("are behind the checkpoint and are repeated" in (path / "log").read_text()) is not bool(other)
    if other != "clock":  # then the steps have another place in the time
        assert (same[:killed_at] == same[killed_at : 2 * killed_at]) is not bool(other)
    if not other:  # nothing is older than if nobody had been killed
        assert all(row["staleness_max"] <= recipe.rl.staleness for row in second)
