"""How the loop tries a task: engine, sandboxes and setup; what a failure means for the others; tasks that seem broken.

Knows nothing of groups, steps or training.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from etude.core.errors import EtudeError
from etude.core.policy import Policy
from etude.core.recipe import Recipe
from etude.core.terms import Terms
from etude.harness.loop import Event
from etude.policies.engine_client import EngineClient
from etude.rl.broken_tasks import BrokenTasks
from etude.rollout.rollout import Outcome, RolloutSetup, Scored, Void, run_rollout
from etude.rollout.scheduler import JobRunner, RolloutJob
from etude.sandbox.base import SandboxFailure
from etude.sandbox.hosts import StoringHost
from etude.tasks.format.task import Task
from etude.tasks.grading.grader import GraderFailure
from etude.tasks.kinds.table import kind_of


@dataclass(frozen=True)
class RolloutEnvironment:
    """What rollouts for training and for evaluation run in."""

    host: StoringHost
    engine: EngineClient
    setup: RolloutSetup
    recipe: Recipe
    broken_tasks: BrokenTasks
    log: Callable[[str], None]
    setups: Callable[[int], RolloutSetup]  # by edition of the settings that may change

    async def run_rollout(self, task: Task, seed: int, terms: Terms, on_grading: Callable[[], None]) -> Outcome:
        def on_event(event: Event) -> None:
            if event.kind == "stop":
                on_grading()

        setup = self.setups(terms.edition)
        return await run_rollout(
            task, self.engine, self.host, setup, policy_name="rl", seed=seed, terms=terms, on_event=on_event
        )

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

    async def check_broken(self, number: int, scored: Scored) -> None:
        """The audit of a rollout of the source's task `number` calls the task broken."""
        await self.broken_tasks.check(number, scored, self.solvable)

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
        """Share of the rollouts so far whose grade was that of an equal one."""
        cache = self.setup.grade_cache
        return cache.reused / max(1, cache.asked) if cache is not None else 0.0
