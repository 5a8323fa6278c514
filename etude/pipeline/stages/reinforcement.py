"""The stage of reinforcement learning. The loop itself is `etude.rl`, which loads no torch in this process."""

from __future__ import annotations

import asyncio
from typing import Any

from etude.core.recipe import Recipe
from etude.core.run import Run
from etude.pipeline.stages.base import Stage, check_agent, check_model, check_tasks, starting_model, trained_weights

ROLLOUTS_READ = ("harness", "grader", "engine.max_length")  # recipe keys that any rollout of a model depends on


def reinforce(run: Run, recipe: Recipe) -> None:
    from etude.rl.orchestrator import train

    start = starting_model(run, recipe.rl.model, "sft", "rl")
    asyncio.run(train(run, recipe, start, backend=recipe.run.sandbox))


def check_rl(recipe: Recipe) -> None:
    from etude.behaviours.table import build_behaviours
    from etude.rl.algorithms.table import build_algorithm
    from etude.rl.feedback.schedule import check_feedback

    build_behaviours(recipe.rl.feedback.behaviours, "rl.feedback.behaviours")
    build_behaviours(recipe.rl.monitor, "rl.monitor")
    check_feedback(build_algorithm(recipe.rl.algorithm).feedback(recipe.rl.feedback), recipe.rl.optim.ema)
    check_tasks(recipe.rl.tasks, "rl.tasks")
    check_agent(recipe)
    build_algorithm(recipe.rl.algorithm)
    check_model(recipe.rl.model)


def outline_rl(recipe: Recipe) -> dict[str, Any]:
    rl = recipe.rl
    return {
        "from": rl.model or "this run's fine-tuning",
        "steps": rl.steps,
        "rollouts": rl.steps * rl.groups * rl.group,
        "algorithm": rl.algorithm["use"],
        "trains": trained_weights(rl.lora),
        "staleness": rl.staleness,
        "limit": f"{rl.seconds:.0f} s" if rl.seconds else "none",
    }


RL = Stage(
    "rl",
    reads=("run.seed", "run.sandbox", "rl", "reward", "audit", "bench.tasks", *ROLLOUTS_READ),
    needs=lambda recipe: () if recipe.rl.model else ("sft",),
    work=reinforce,
    outline=outline_rl,
    check=check_rl,
)
