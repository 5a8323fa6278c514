"""The stage of reinforcement learning. The loop itself is `etude.rl`, which loads no torch in this process."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from etude.cluster.start import check_published, check_vllm
from etude.core.errors import EtudeError
from etude.core.progress import clock_time
from etude.core.recipe import Recipe
from etude.core.run import Run
from etude.model.config import ModelConfig
from etude.pipeline.estimate import cost, free_bytes, gib, rl_needs
from etude.pipeline.stages.base import (
    Stage,
    check_agent,
    check_model,
    check_tasks,
    planned_model,
    starting_model,
    trained_weights,
)
from etude.sandbox.hosts import backend_of

ROLLOUTS_READ = ("harness", "grader", "engine.max_length")  # recipe keys that any rollout of a model depends on


def reinforce(run: Run, recipe: Recipe) -> None:
    from etude.rl.orchestrator import train

    start = starting_model(run, recipe.rl.model, "sft", "rl")
    announce(run, recipe, start)
    asyncio.run(train(run, recipe, start, backend=backend_of(recipe.run.sandbox, recipe.cluster.sandbox_hosts)))


def check_rl(recipe: Recipe) -> None:
    from etude.behaviours.table import build_behaviours
    from etude.rl.algorithms.table import build_algorithm, check_algorithm
    from etude.rl.feedback import check_feedback

    if not recipe.rl.steps:
        raise EtudeError("rl.steps is 0, so there is nothing to train; give it a number of steps")
    build_behaviours(recipe.rl.feedback.behaviours, "rl.feedback.behaviours")
    build_behaviours(recipe.rl.monitor, "rl.monitor")
    algorithm = build_algorithm(recipe.rl.algorithm)
    check_algorithm(algorithm, recipe.rl)
    check_feedback(algorithm.feedback(recipe.rl.feedback), recipe.rl.optim.ema)
    check_tasks(recipe.rl.tasks, "rl.tasks", recipe.rl.first_task)
    check_agent(recipe)
    check_model(recipe.rl.model)
    check_vllm(recipe.cluster, recipe.rl.eval_every)
    check_published(recipe.cluster, recipe.rl.probe_mean)
    if recipe.rl.eval_every and not recipe.bench.count:
        raise EtudeError(
            "evaluations during training take tasks that the benchmark leaves over, and bench.count = 0 leaves none; "
            "give bench.count a number, or set rl.eval_every=0"
        )


def outline_rl(recipe: Recipe) -> dict[str, Any]:
    rl, needs = recipe.rl, rl_needs(recipe, model_config(recipe))
    return {
        "from": rl.model or "this run's fine-tuning",
        "steps": rl.steps,
        "rollouts": rl.steps * rl.groups * rl.group,
        "algorithm": rl.algorithm["use"],
        "trains": trained_weights(rl.lora),
        "staleness": rl.staleness,
        "limit": f"{rl.seconds:.0f} s" if rl.seconds else "none",
        "device": recipe.run.device,
        "memory": f"about {gib(needs['memory'])} (learner {gib(needs['learner'])}, engine {gib(needs['engine'])})",
        "disk": f"about {gib(needs['disk'])}",
    } | ({"cost": f"at most {price}"} if (price := cost(recipe, rl.seconds)) else {})


def model_config(recipe: Recipe) -> ModelConfig:
    """The shape of the model that is trained: of the one that the recipe names, or of its own."""
    given = recipe.rl.model or recipe.sft.model
    if not given:
        return ModelConfig.from_settings(recipe.model, recipe.tokens.vocab_size)
    return config_in(planned_model(given))


def announce(run: Run, recipe: Recipe, start: Path) -> None:
    """What is about to be spent, before it is: an hour later nobody wants to learn that the disk is too small."""
    needs = rl_needs(recipe, config_in(start))
    free = free_bytes(run.path)
    room = f" of {gib(free)} free" if free is not None else ""
    limit = f"at most {clock_time(recipe.rl.seconds)}" if recipe.rl.seconds else "no limit of time (rl.seconds)"
    if price := cost(recipe, recipe.rl.seconds):
        limit = f"{limit}, which costs {price}"
    elif recipe.run.gpu_hour:
        limit = f"{limit}, so no limit of cost"
    print(
        f"reinforcement learning: {recipe.rl.steps} steps, {needs['rollouts']} rollouts of up to "
        f"{recipe.harness.limits.sampled_tokens} tokens; {limit}; about {gib(needs['memory'])} of memory on "
        f"{recipe.run.device}, about {gib(needs['disk'])} of disk{room}",
        file=sys.stderr,
    )
    if free is not None and needs["disk"] > free:
        raise EtudeError(
            f"checkpoints will need about {gib(needs['disk'])} in {run.path}, which has {gib(free)} left; make room, "
            "choose another --run, or keep fewer (run.keep_checkpoints=1)"
        )


def config_in(folder: Path) -> ModelConfig:
    """The shape in a model's config.json, read without torch."""
    file = folder / "config.json"
    try:
        return ModelConfig.from_hf(json.loads(file.read_bytes()), str(file))
    except (OSError, ValueError) as error:
        raise EtudeError(f"{file} cannot be read: {error}") from None


RL = Stage(
    "rl",
    reads=("run.seed", "run.sandbox", "rl", "reward", "audit", "bench.tasks", *ROLLOUTS_READ),
    needs=lambda recipe: () if recipe.rl.model else ("sft",),
    work=reinforce,
    outline=outline_rl,
    check=check_rl,
    may_change=("reward.parts", "rl.optim.lr"),  # as in rl/editions.py, which makes an edition of it
)
