"""Many rollouts at once: a bounded number in flight, those that the machinery spoiled tried again, and cancellation.

`Scheduler` fills places with whatever work its owner gives it next. A batch (`JobRunner`) gives it jobs in
order; the dispatcher of reinforcement learning gives it slots of groups. Jobs may be an endless stream: one is taken
when a place is free. Leaving a batch early, an error included, cancels what is in flight and waits until it is gone.
Knows neither where tasks come from nor what outcomes are for.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from etude.core.policy import Policy
from etude.core.terms import NO_TERMS, Terms
from etude.rollout.rollout import Outcome, RolloutSetup, Void, run_rollout
from etude.sandbox.hosts import StoringHost
from etude.tasks.format.task import Task

T = TypeVar("T")  # an outcome: a Void, or something that is none
Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
RETRIES = 2  # times a void rollout is repeated before it stays void


@dataclass(frozen=True)
class Work:
    """What occupies one place."""

    owner: int  # all work of one owner can be cancelled at once
    start: Callable[[], Coroutine[Any, Any, None]]


class Scheduler:
    """At most `places` pieces of work at once.

    `next_work` is asked whenever a place is free, until it has none. Call `fill` when it may have some again. `spawn`
    makes a task: asyncio's own function, or that of a task group, which ends when some work fails.
    """

    def __init__(self, places: int, next_work: Callable[[], Work | None], spawn: Spawn) -> None:
        self.places, self.closed = places, False
        self._next_work, self._spawn = next_work, spawn
        self._running: dict[asyncio.Task[None], int] = {}  # task -> owner
        self._dropped: set[int] = set()

    @property
    def in_flight(self) -> int:
        return len(self._running)

    def fill(self) -> None:
        """Gives every free place something to do, as far as there is anything."""
        while not self.closed and self.in_flight < self.places and (work := self._next_work()) is not None:
            self._running[self._spawn(self._occupy(work))] = work.owner

    def cancel(self, keep: int | None = None) -> list[asyncio.Task[None]]:
        """Cancels the work of everybody but `keep`; the tasks, for who wants to wait until they are gone."""
        cancelled = [task for task, owner in self._running.items() if owner != keep]
        for task in cancelled:
            task.cancel()
        return cancelled

    def drop(self, owner: int) -> None:
        """Cancels the work of one owner, but for what calls this. Its places go to others."""
        self._dropped.add(owner)
        for task, its in self._running.items():
            if its == owner and task is not asyncio.current_task():
                task.cancel()

    async def _occupy(self, work: Work) -> None:
        try:
            await work.start()
        except asyncio.CancelledError:
            # Any other cancellation ends the task group, and that takes no new tasks.
            if work.owner not in self._dropped:
                raise
        except BaseException:
            # Closed first: the error ends the task group, which takes no new tasks.
            self.closed = True
            raise
        finally:
            task = asyncio.current_task()
            assert task is not None
            del self._running[task]
        self.fill()


async def retry_void(
    run: Callable[[], Awaitable[T]], retries: int, on_retry: Callable[[Void], None] | None = None
) -> T:
    """A rollout; while it is void it is run again, at most `retries` times and only where that can help."""
    while True:
        outcome = await run()
        if not isinstance(outcome, Void) or not outcome.retry or not retries:
            return outcome
        retries -= 1
        if on_retry is not None:
            on_retry(outcome)


# Batches


@dataclass(frozen=True)
class RolloutJob:
    """One rollout to make."""

    task: Task
    sample: int = 0  # which of the rollouts of this task
    seed: int = 0  # of its sampling
    policy: Policy | None = None  # its own, where each task needs another one (scripts); None takes the batch's
    terms: Terms = NO_TERMS  # what its prompt states, and its reward knows


def sample_seed(seed: int, task: str, sample: int) -> int:
    """The sampling seed of one rollout: the same for every model, so that two of them can be compared in pairs."""
    # From names and not from the order of jobs: a task that is added changes no other's seed.
    return random.Random(f"{seed}/{task}/{sample}").getrandbits(31)


@dataclass(frozen=True)
class JobRunner:
    """How the jobs of a batch are run. A void rollout is repeated with the same seed."""

    policy: Policy
    host: StoringHost
    setup: RolloutSetup
    retries: int = RETRIES
    policy_name: str = ""
    on_retry: Callable[[RolloutJob, Void], None] | None = None

    async def run(self, job: RolloutJob) -> Outcome:
        policy = job.policy or self.policy
        run = partial(
            run_rollout,
            job.task,
            policy,
            self.host,
            self.setup,
            policy_name=self.policy_name,
            seed=job.seed,
            terms=job.terms,
        )
        return await retry_void(run, self.retries, partial(self.on_retry, job) if self.on_retry is not None else None)

    async def run_each(
        self, jobs: Iterable[RolloutJob], concurrency: int
    ) -> AsyncGenerator[tuple[int, RolloutJob, Outcome], None]:
        """(number of the job, job, outcome) as they come. Use it with `aclosing` where you may leave early."""
        source, places, unread = enumerate(jobs), max(1, concurrency), 0
        finished: asyncio.Queue[tuple[int, RolloutJob, Outcome | Exception]] = asyncio.Queue()

        async def occupy(number: int, job: RolloutJob) -> None:
            try:
                outcome: Outcome | Exception = await self.run(job)
            except Exception as error:
                # Raised where outcomes are read: nobody awaits this task.
                outcome = error
            finished.put_nowait((number, job, outcome))

        def next_work() -> Work | None:
            nonlocal unread
            # a batch does not run ahead of who reads its outcomes
            if unread >= places or (found := next(source, None)) is None:
                return None
            unread += 1
            return Work(found[0], partial(occupy, *found))

        scheduler = Scheduler(places, next_work, asyncio.create_task)
        try:
            scheduler.fill()
            while unread:
                number, job, outcome = await finished.get()
                if isinstance(outcome, Exception):
                    raise outcome
                unread -= 1
                scheduler.fill()
                yield number, job, outcome
        finally:
            await asyncio.gather(*scheduler.cancel(), return_exceptions=True)

    async def run_all(
        self,
        jobs: Sequence[RolloutJob],
        concurrency: int,
        on_outcome: Callable[[RolloutJob, Outcome], None] | None = None,
    ) -> list[Outcome]:
        """All outcomes in the order of their jobs; `on_outcome` hears of each as it comes."""
        outcomes: dict[int, Outcome] = {}
        async with aclosing(self.run_each(jobs, concurrency)) as each:
            async for number, job, outcome in each:
                outcomes[number] = outcome
                if on_outcome is not None:
                    on_outcome(job, outcome)
        return [outcomes[number] for number in range(len(jobs))]
