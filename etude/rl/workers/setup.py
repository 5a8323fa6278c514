"""How rollouts of a training run are set up, from its recipe: the same in the orchestrator and in every worker."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from etude.behaviours.table import build_behaviours
from etude.core.recipe import Recipe
from etude.rl.algorithms.table import build_algorithm
from etude.rollout.rollout import GradeCache, RolloutSetup, build_setup
from etude.sandbox.hosts import StoringHost, open_host
from etude.tasks.grading.grader import RUNNER
from etude.tokens.dialect import open_dialect


def training_setup(recipe: Recipe, model: Path) -> RolloutSetup:
    """What all rollouts share, of a run that trains `model`."""
    rl = recipe.rl
    setup = build_setup(
        recipe.harness,
        recipe.reward,
        recipe.grader,
        recipe.audit,
        dialect=open_dialect(model, recipe.harness.template),
        temperature=rl.temperature,
    )
    return replace(
        setup,
        context=build_algorithm(rl.algorithm).feedback(rl.feedback).context,
        taught=build_behaviours(rl.feedback.behaviours, "rl.feedback.behaviours"),
        watched=build_behaviours(rl.monitor, "rl.monitor"),
    )


async def open_sandboxes(
    store: Path, backend: str, setup: RolloutSetup, stack: AsyncExitStack
) -> tuple[StoringHost, RolloutSetup]:
    """The host of all sandboxes of this process, and the setup with the grades that its rollouts share."""
    host = await stack.enter_async_context(await open_host(backend, store, preload=(RUNNER,)))
    grades = GradeCache()
    stack.push_async_callback(grades.close)
    return host, replace(setup, grade_cache=grades)
