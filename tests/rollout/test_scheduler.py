"""Many rollouts at once: order, places, retries, and nothing left when somebody leaves early."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from itertools import count
from typing import Any

import pytest

from etude.core.errors import EtudeError
from etude.rollout import scheduler as rollout_batch
from etude.rollout.rollout import Outcome, Void, build_setup
from etude.rollout.scheduler import JobRunner, RolloutJob, sample_seed
from etude.tasks.format.task import Task

SETUP = build_setup()
NOBODY: Any = object()
RUNNER = JobRunner(NOBODY, NOBODY, SETUP)


class Rollouts:
    """Stands for `run_rollout`: waits a few turns of the loop, and fails as it is told."""

    def __init__(self, voids: dict[str, list[bool]] | None = None) -> None:
        self.voids = voids or {}  # task -> whether each next rollout that fails may be retried
        self.seen: list[tuple[str, int, object]] = []
        self.running = self.most = self.cancelled = 0
        self.raises: Exception | None = None
        self.forever = False

    async def __call__(self, task: Task, policy: object, host: object, setup: object, **options: Any) -> Outcome:
        seed: int = options["seed"]
        self.seen.append((task.name, seed, policy))
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            for _ in range(seed % 7):
                await asyncio.sleep(0)
            if self.forever and task.name != "0":
                await asyncio.Event().wait()
            if self.raises is not None:
                raise self.raises
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        left = self.voids.get(task.name, [])
        return Void(task, "sandbox", left.pop(0), "failed") if left else _scored(task, seed)


class Scored:
    def __init__(self, task: Task, seed: int) -> None:
        self.task, self.seed = task, seed


def _scored(task: Task, seed: int) -> Any:
    return Scored(task, seed)


@pytest.fixture
def rollouts(monkeypatch: pytest.MonkeyPatch) -> Rollouts:
    made = Rollouts()
    monkeypatch.setattr(rollout_batch, "run_rollout", made)
    return made


def jobs(number: int) -> list[RolloutJob]:
    return [RolloutJob(Task(str(i), ""), seed=i * 31) for i in range(number)]


def test_outcomes_come_in_the_order_of_their_jobs_with_their_seeds(rollouts: Rollouts) -> None:
    heard: list[str] = []
    outcomes: Any = asyncio.run(
        RUNNER.run_all(jobs(20), concurrency=6, on_outcome=lambda job, outcome: heard.append(job.task.name))
    )
    assert [(one.task.name, one.seed) for one in outcomes] == [(str(i), i * 31) for i in range(20)]
    assert sorted(heard, key=int) == [str(i) for i in range(20)]
    assert heard != [str(i) for i in range(20)]  # they came as they were done
    assert rollouts.most == 6
    assert {policy for _, _, policy in rollouts.seen} == {NOBODY}


def test_void_rollouts_are_repeated_where_that_can_help(rollouts: Rollouts) -> None:
    rollouts.voids = {"0": [True], "1": [True, True], "2": [True] * 3, "3": [False]}
    again: list[str] = []
    runner = JobRunner(NOBODY, NOBODY, SETUP, on_retry=lambda job, void: again.append(job.task.name))
    outcomes = asyncio.run(runner.run_all(jobs(5), concurrency=9))
    assert [isinstance(one, Void) for one in outcomes] == [False, False, True, True, False]
    assert sorted(again) == ["0", "1", "1", "2", "2"]
    tries = [name for name, _, _ in rollouts.seen]
    assert [tries.count(str(i)) for i in range(5)] == [2, 3, 3, 1, 1]
    assert len({(name, seed) for name, seed, _ in rollouts.seen}) == 5  # the same seed again


def test_a_job_may_have_its_own_policy_and_no_retries(rollouts: Rollouts) -> None:
    own: Any = object()
    rollouts.voids = {"a": [True]}
    outcome = asyncio.run(JobRunner(NOBODY, NOBODY, SETUP, retries=0).run(RolloutJob(Task("a", ""), policy=own)))
    assert isinstance(outcome, Void)
    assert rollouts.seen == [("a", 0, own)]


def test_an_endless_stream_of_jobs_is_taken_as_places_come_free(rollouts: Rollouts) -> None:
    taken: list[int] = []

    def stream() -> Any:
        for i in count():
            taken.append(i)
            yield RolloutJob(Task(str(i), ""), seed=i)

    async def play() -> int:
        each = RUNNER.run_each(stream(), concurrency=4)
        seen = 0
        async with aclosing(each):
            async for _ in each:
                seen += 1
                if seen == 10:
                    break
        return len(asyncio.all_tasks())

    assert asyncio.run(play()) == 1
    assert len(taken) <= 14
    assert rollouts.running == 0


def test_an_error_ends_the_batch_and_leaves_nothing_running(rollouts: Rollouts) -> None:
    rollouts.raises, rollouts.forever = EtudeError("no ids"), True

    async def play() -> int:
        with pytest.raises(EtudeError, match="no ids"):
            await RUNNER.run_all(jobs(8), concurrency=8)
        return len(asyncio.all_tasks())

    assert asyncio.run(play()) == 1
    assert rollouts.cancelled == 7


def test_seeds_follow_from_the_task_and_the_sample_alone() -> None:
    seeds = {sample_seed(seed, task, sample) for seed in (0, 1) for task in ("a", "b") for sample in range(50)}
    assert len(seeds) == 200
    assert sample_seed(1, "a", 0) == sample_seed(1, "a", 0)
    assert max(seeds) < 2**31
