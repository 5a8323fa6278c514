"""Many attempts at once: a bounded number in flight, and what the machinery spoiled tried again.

    jobs -> attempt, retried while it is void and that can help -> outcomes as they come, or all in order

Jobs are taken one by one as places come free, so they may be an endless stream. Leaving early, an error included,
cancels what is in flight and waits until it is gone. Knows neither where tasks come from nor what outcomes are for.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import islice

from etude.core.policy import Policy
from etude.rollout.rollout import Outcome, RolloutSetup, Void, run_rollout
from etude.sandbox.hosts import StoringHost
from etude.tasks.format.task import Task

RETRIES = 2  # times a void attempt is repeated before it stays void


@dataclass(frozen=True)
class RolloutJob:
    """One attempt to make."""

    task: Task
    sample: int = 0  # which of the attempts at this task
    seed: int = 0  # of its sampling
    policy: Policy | None = None  # its own, where each task needs another one (scripts); None takes the batch's


def sample_seed(seed: int, task: str, sample: int) -> int:
    """The sampling seed of one attempt: the same for every model, so that two of them can be compared in pairs."""
    return random.Random(f"{seed}/{task}/{sample}").getrandbits(31)


async def run_job(
    job: RolloutJob,
    policy: Policy,
    host: StoringHost,
    setup: RolloutSetup,
    *,
    retries: int = RETRIES,
    policy_name: str = "",
    on_retry: Callable[[RolloutJob, Void], None] | None = None,
) -> Outcome:
    """One job. A void attempt is repeated with the same seed, at most `retries` times and only where that can help."""
    sampling = replace(setup.sampling, seed=job.seed)
    for left in range(retries, -1, -1):
        outcome = await run_rollout(
            job.task, job.policy or policy, host, setup, policy_name=policy_name, sampling=sampling
        )
        if not isinstance(outcome, Void) or not outcome.retry or not left:
            break
        if on_retry is not None:
            on_retry(job, outcome)
    return outcome


async def run_each(
    jobs: Iterable[RolloutJob],
    policy: Policy,
    host: StoringHost,
    setup: RolloutSetup,
    *,
    concurrency: int,
    retries: int = RETRIES,
    policy_name: str = "",
    on_retry: Callable[[RolloutJob, Void], None] | None = None,
) -> AsyncGenerator[tuple[int, RolloutJob, Outcome], None]:
    """(number of the job, job, outcome) as they come. Use it with `aclosing` where you may leave early."""
    source = enumerate(jobs)
    running: dict[asyncio.Task[Outcome], tuple[int, RolloutJob]] = {}
    try:
        while True:
            for number, job in islice(source, max(1, concurrency) - len(running)):
                work = run_job(job, policy, host, setup, retries=retries, policy_name=policy_name, on_retry=on_retry)
                running[asyncio.create_task(work)] = number, job
            if not running:
                return
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                number, job = running.pop(task)
                yield number, job, task.result()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def run_all(
    jobs: Sequence[RolloutJob],
    policy: Policy,
    host: StoringHost,
    setup: RolloutSetup,
    *,
    concurrency: int,
    retries: int = RETRIES,
    policy_name: str = "",
    on_outcome: Callable[[RolloutJob, Outcome], None] | None = None,
    on_retry: Callable[[RolloutJob, Void], None] | None = None,
) -> list[Outcome]:
    """All outcomes in the order of their jobs; `on_outcome` hears of each as it comes."""
    outcomes: dict[int, Outcome] = {}
    each = run_each(
        jobs, policy, host, setup, concurrency=concurrency, retries=retries, policy_name=policy_name, on_retry=on_retry
    )
    async with aclosing(each):
        async for number, job, outcome in each:
            outcomes[number] = outcome
            if on_outcome is not None:
                on_outcome(job, outcome)
    return [outcomes[number] for number in range(len(jobs))]
