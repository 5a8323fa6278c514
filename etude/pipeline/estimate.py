"""Roughly how long the stages of a recipe take on this machine, and what reinforcement learning needs of it.

Times start from those of the recipe `nano` on two quiet cores and follow the amount of work; what the finished stages
of the run really took corrects them. So they are guesses, and how good they are for another recipe is not known. They
leave out what a stage takes however little there is to do: stages of the toy of tests/e2e are guessed at 0.2 s or less
and took 0.5 to 6.5 s, over three runs of it (2026-11-16). So nothing under ten seconds is announced. There is no guess
where nothing comparable was measured: on a GPU, or with somebody else's model.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from etude.core.recipe import Recipe, load
from etude.model import size
from etude.model.config import ModelConfig

# Seconds of each stage of `nano` on two quiet cores, 2026-11-16 (docs/start/quickstart.md).
NANO = {"corpus": 10.0, "pretrain": 150.0, "demos": 35.0, "sft": 60.0, "bench-sft": 20.0, "bench-rl": 20.0}
QUICK = {"report": 1.0}
LEAST = 5.0  # seconds: a process that loads torch and opens a model takes so long however little there is to do
WEIGHT, BF16 = 4, 2  # bytes of a number
CHUNK_LOGITS = 1 << 29  # as in model/packed_forward.py, which needs torch; a test holds them equal


def stage_seconds(recipe: Recipe, stage: str) -> float | None:
    """A guess for one stage; None where nothing comparable was measured."""
    if stage in QUICK:
        return QUICK[stage]
    if stage == "rl":
        return recipe.rl.seconds or None
    if recipe.run.device != "cpu" or stage not in NANO:
        return None
    ours, theirs = _work(recipe, stage), _work(load("nano"), stage)
    return max(LEAST, NANO[stage] * ours / theirs) if ours and theirs else None


def _work(recipe: Recipe, stage: str) -> float:
    """How much there is to do, in a unit of the stage's own; 0 where the recipe does not say."""
    parameters = size.parameters(ModelConfig.from_settings(recipe.model, recipe.tokens.vocab_size))
    match stage:
        case "corpus":
            return recipe.corpus.max_bytes
        case "pretrain":
            return recipe.pretrain.steps * recipe.pretrain.batch_tokens * parameters
        case "demos":
            return recipe.demos.count
        case "sft":
            return 0 if recipe.sft.data or recipe.sft.model else recipe.sft.epochs * recipe.demos.count * parameters
        case _:
            rollouts = (recipe.bench.count + recipe.bench.unseen_count) * recipe.bench.samples
            return 0 if recipe.rl.model else rollouts * recipe.harness.limits.sampled_tokens * parameters


def pace(recipe: Recipe, took: Mapping[str, float]) -> float:
    """How much slower this machine was than the guesses, over the stages that are finished; 1 before the first."""
    known = {name: guess for name in took if name != "rl" and (guess := stage_seconds(recipe, name))}
    # Start and end of a process take a second or two: of stages that short they say nothing about the machine.
    known = {name: guess for name, guess in known.items() if guess > LEAST}
    return sum(took[name] for name in known) / sum(known.values()) if known else 1.0


def seconds_left(recipe: Recipe, stages: list[str], took: Mapping[str, float]) -> float | None:
    """A guess for all of these stages; None where one of them cannot be guessed."""
    guesses = [stage_seconds(recipe, name) for name in stages]
    factor = pace(recipe, took)
    known = [guess * (1.0 if name == "rl" else factor) for name, guess in zip(stages, guesses, strict=True) if guess]
    return sum(known) if len(known) == len(stages) else None


def rl_needs(recipe: Recipe, config: ModelConfig) -> dict[str, int]:
    """Memory and disk of reinforcement learning in bytes, and how much is sampled; `config` is the model's.

    The learner holds float32 weights, gradients, two moments and the activations of a micro-batch; the engine its own
    copy of the weights and the cache. On a GPU both share the device, in bfloat16 where the learner computes.
    """
    number = WEIGHT if recipe.run.device == "cpu" else BF16
    rl, every = recipe.rl, size.parameters(config)
    trained = size.adapter_parameters(config, rl.lora.rank) if rl.lora.rank else every
    learner = size.training_bytes(
        config,
        rl.micro_tokens,
        WEIGHT,
        rl.lora.rank,
        activation=number,
        recompute=recipe.run.compute.recompute,
        chunk=None if recipe.run.device == "cpu" else CHUNK_LOGITS,
    )
    engine = number * every + number * recipe.engine.cache_tokens * size.cache_entries(config)
    checkpoint = WEIGHT * every + 2 * WEIGHT * trained  # with the optimiser's two moments
    # Kept checkpoints and one being written; the best model and the candidate of an evaluation.
    disk = (recipe.run.keep_checkpoints + 1) * checkpoint + (2 * WEIGHT * every if rl.eval_every else 0)
    rollouts = rl.steps * rl.groups * rl.group
    return {
        "memory": learner + engine,
        "learner": learner,
        "engine": engine,
        "disk": disk,
        "rollouts": rollouts,
        "most_tokens": rollouts * recipe.harness.limits.sampled_tokens,
    }


def cost(recipe: Recipe, seconds: float | None) -> str:
    """What so long costs at the price of an hour of the device; nothing where either is not known."""
    if not recipe.run.gpu_hour or not seconds:
        return ""
    return f"{recipe.run.gpu_hour * seconds / 3600:.2f} at {recipe.run.gpu_hour:g} an hour"


def gib(amount: float) -> str:
    return f"{amount / 2**30:.1f} GiB" if amount >= 2**30 else f"{amount / 2**20:.0f} MiB"


def free_bytes(path: Path) -> int | None:
    """Room on the disk that `path` will lie on."""
    here = path.resolve()
    while not here.exists():
        here = here.parent
    try:
        return shutil.disk_usage(here).free
    except OSError:
        return None
