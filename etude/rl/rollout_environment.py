"""What attempts need: sandboxes, an engine, and how a task is tried; and when a failure is everybody's.

Knows nothing of groups, steps or training.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from etude.core.errors import EtudeError
from etude.core.recipe import Recipe
from etude.harness.loop import Event
from etude.policies.engine_client import EngineClient
from etude.rollout.rollout import Outcome, RolloutSetup, Void, run_rollout
from etude.rollout.scheduler import RolloutJob, run_job
from etude.sandbox.base import SandboxFailure
from etude.sandbox.hosts import StoringHost
from etude.tasks.format.task import Task
from etude.tasks.grading.grader import GraderFailure
from etude.tasks.kinds.table import kind_of


@dataclass
class RolloutEnvironment:
    """The machinery of attempts."""

    host: StoringHost
    engine: EngineClient
    setup: RolloutSetup
    recipe: Recipe

    def play(self, task: Task, seed: int, on_grading: Callable[[], None]) -> Awaitable[Outcome]:
        def on_event(event: Event) -> None:
            if event.kind == "stop":
                on_grading()

        sampling = replace(self.setup.sampling, seed=seed)
        return run_rollout(
            task, self.engine, self.host, self.setup, policy_name="rl", sampling=sampling, on_event=on_event
        )

    def evaluate(self, job: RolloutJob) -> Awaitable[Outcome]:
        sampling = replace(self.setup.sampling, temperature=self.recipe.bench.temperature)
        setup = replace(self.setup, sampling=sampling)
        return run_job(job, self.engine, self.host, setup, retries=self.recipe.rl.retries, policy_name="eval")

    async def solvable(self, task: Task) -> bool | None:
        """Whether the grader accepts the reference, which a task without one has not; None: the machinery failed."""
        reference, cache = kind_of(task).reference(task), self.setup.grade_cache
        if reference is None or cache is None:
            return False
        try:
            grader, answer = self.setup.grader, reference.answer
            return (await cache.grade(task, self.host, reference.submission, grader, answer=answer)).passed
        except (GraderFailure, SandboxFailure):
            return None

    @property
    def grades_reused(self) -> float:
        """Share of the attempts so far whose grade was that of an equal one."""
        cache = self.setup.grade_cache
        return cache.reused / max(1, cache.asked) if cache is not None else 0.0

    async def blame(self, void: Void) -> None:
        """Raises when a void rollout means that the sandboxes or the engine are gone: then none would do better."""
        if void.cause == "sandbox" and not void.retry:
            raise EtudeError(f"sandboxes cannot go on: {void.message}; put that right and run the same command again")
        if void.cause == "policy":
            await self.engine.health()
