"""How the loop tries a task: engine, sandboxes and setup; what a failure means for the others; tasks that seem broken.

Knows nothing of groups, steps or training.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

from etude.core.errors import EtudeError
from etude.core.policy import Context, Policy, Sample, Sampling
from etude.core.recipe import Recipe
from etude.core.terms import Terms
from etude.harness.loop import Event
from etude.policies.replicas import EngineReplicas
from etude.rl.broken_tasks import BrokenTasks
from etude.rl.groups import Finished, slot_of
from etude.rollout.rollout import Outcome, RolloutSetup, Scored, Void, run_rollout
from etude.rollout.scheduler import JobRunner, RolloutJob
from etude.rollout.turn_records import RecordedPolicy, TurnRecords
from etude.sandbox.base import SandboxFailure
from etude.sandbox.hosts import StoringHost
from etude.tasks.format.task import Task
from etude.tasks.grading.grader import GraderFailure
from etude.tasks.kinds.table import kind_of


@dataclass(frozen=True)
class RolloutEnvironment:
    """What rollouts for training and for evaluation run in."""

    host: StoringHost
    engine: EngineReplicas
    setup: RolloutSetup
    recipe: Recipe
    broken_tasks: BrokenTasks
    log: Callable[[str], None]
    setups: Callable[[int], RolloutSetup]  # by edition of the settings that may change
    records: TurnRecords  # of rollouts under way, from which they go on
    counts: Counter[str] = field(default_factory=Counter)  # "resumed_tokens": that a rollout did not sample again

    async def run_rollout(
        self, task: Task, seed: int, terms: Terms, on_grading: Callable[[], None], name: str
    ) -> Outcome:
        run = partial(
            recorded_rollout, task, self.host, self.setups(terms.edition), self.recipe, seed, terms, on_grading
        )
        group, _ = slot_of(name)
        with self.engine.rollout(str(group)) as engine:
            outcome, resumed = await run(engine, self.records, name)
        self.counts["resumed_tokens"] += resumed
        return outcome

    async def write_readable(self, root: Path) -> None:
        """What is written for people comes from the dispatcher here."""

    async def evaluate(self, policy: Policy, job: RolloutJob) -> Outcome:
        setup = self.setup.at_temperature(self.recipe.bench.temperature)
        return await JobRunner(policy, self.host, setup, self.recipe.rl.retries, "eval").run(job)

    async def check_void(self, void: Void) -> None:
        """Raises when a void rollout means that the sandboxes or the engine are gone: then none would do better."""
        self.log(f"rl: void ({void.cause}), {void.task.name}: {void.message}")
        if void.cause == "sandbox" and not void.retry:
            raise EtudeError(f"sandboxes cannot go on: {void.message}; put that right and run the same command again")
        if void.cause == "policy":
            # A failed sample may be the engine's death; then this raises.
            await self.engine.health()

    async def check_broken(self, number: int, scored: Scored | Finished) -> None:
        """The audit of a rollout of the source's task `number` calls the task broken."""
        assert isinstance(scored, Scored), "only workers pack what they ran"
        await self.broken_tasks.check(number, scored, self.solvable)

    async def solvable(self, task: Task) -> bool | None:
        return await solvable(task, self.host, self.setup)

    @property
    def grades_reused(self) -> float:
        """Share of the rollouts so far whose grade was that of an equal one."""
        cache = self.setup.grade_cache
        return cache.reused / max(1, cache.asked) if cache is not None else 0.0


class RolloutEngine(Protocol):
    """A policy that tells of an answer's tokens while it is under way."""

    async def sample(
        self,
        context: Context,
        sampling: Sampling,
        *,
        name: str | None = None,
        on_part: Callable[[Sample], None] | None = None,
        every: int = 0,
    ) -> Sample: ...


_TURNS = itertools.count()  # sampled by this process
RESUMED = ("sandbox", "grader")  # after these failures the turns that were sampled are as good as before


async def recorded_rollout(
    task: Task,
    host: StoringHost,
    setup: RolloutSetup,
    recipe: Recipe,
    seed: int,
    terms: Terms,
    on_grading: Callable[[], None],
    engine: RolloutEngine,
    records: TurnRecords,
    name: str,
) -> tuple[Outcome, int]:
    """One rollout whose turns are recorded, and that goes on from those of an earlier try; also how many tokens of that
    it kept."""

    def on_event(event: Event) -> None:
        if event.kind == "stop":
            on_grading()

    every = recipe.cluster.save_tokens

    async def ask(context: Context, sampling: Sampling, on_part: Callable[[Sample], None]) -> Sample:
        # Named after the rollout, so that whoever looks at an engine sees whose turn it samples (kill_loop.py does).
        turn = f"{name}.{os.getpid()}.{next(_TURNS)}"
        return await engine.sample(context, sampling, name=turn, on_part=on_part if every else None, every=every)

    record = records.open(name)
    before = record.tokens
    # Without parts there is no rest to ask for, and the engine's client waits itself: twice would be for hours.
    policy = RecordedPolicy(ask, record, recipe.rl.start_seconds if every else 0.0)
    try:
        outcome = await run_rollout(
            task, policy, host, setup, policy_name="rl", seed=seed, terms=terms, on_event=on_event
        )
        if isinstance(outcome, Void) and outcome.cause not in RESUMED:
            record.remove()
        return outcome, min(before, record.kept_tokens)
    finally:
        record.close()


async def solvable(task: Task, host: StoringHost, setup: RolloutSetup) -> bool | None:
    """Whether the grader accepts the reference, which a task without one has not; None: the machinery failed."""
    reference, cache = kind_of(task).reference(task), setup.grade_cache
    if reference is None or cache is None:
        return False
    try:
        return (await cache.grade(task, host, reference.submission, setup.grader, answer=reference.answer)).passed
    except (GraderFailure, SandboxFailure):
        return None
