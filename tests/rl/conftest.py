"""Builders of the tests of the loop: a toy model in a folder, a recipe that trains it in seconds, a reward that varies.

The toy knows nothing and solves nothing, so its reward is a function of what it happened to sample: groups differ
within themselves, and there is something to train.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from etude.core import recipe as recipes
from etude.core.recipe import Recipe
from etude.core.run import Run
from etude.forge.katas.task_source import katas
from etude.model.checkpoint.directory import save_model
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder
from etude.rl.orchestrator import train
from etude.tokens.tokenizer import Tokenizer

REWARD = """
import pydantic
from etude.reward.base import Part


class Luck(Part):
    def score(self, rollout):
        return sum(id for segment in rollout.trajectory.segments for id in segment.ids) % 7 / 7
"""


@pytest.fixture(scope="session")
def toy_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers of width 32, random weights."""
    path = tmp_path_factory.mktemp("toy")
    texts = [task.instruction for task in katas("train", 40, seed=3)]
    tokenizer = Tokenizer.train(texts, 400)
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
    )
    save_model(path, Decoder(config, seed=1))
    tokenizer.save(path)
    return path


@pytest.fixture(scope="session")
def train_run() -> Callable[..., dict[str, Any]]:
    """One command on a run; Ctrl-C comes while step `stop_at` is being logged."""

    def work(path: Path, recipe: Recipe, model: Path, stop_at: int | None = None) -> dict[str, Any]:
        with Run.open(path, recipes.to_dict(recipe)) as run:
            log = run.log

            def logged(stage: str, step: int, **values: Any) -> None:
                log(stage, step, **values)
                run.stopping = run.stopping or (stage == "rl" and step == stop_at)

            run.log = logged  # type: ignore[method-assign]
            facts = asyncio.run(train(run, recipe, model))
            assert run.finished("rl") == (stop_at is None)
            return facts

    return work


@pytest.fixture(scope="session")
def toy_recipe(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Recipe]:
    """A recipe of two short turns a rollout; overrides as on the command line."""
    reward = tmp_path_factory.mktemp("reward") / "luck.py"
    reward.write_text(REWARD)
    settings = [
        "run.threads=2",
        "engine.max_length=1024",
        "engine.max_running=16",
        "harness.limits.turns=2",
        "harness.limits.sampled_tokens=24",
        "harness.limits.context_tokens=1000",
        "harness.spec=none",
        f"reward.parts=[{{use='{reward}:Luck'}}]",
        "rl.steps=3",
        "rl.groups=2",
        "rl.group=3",
        "rl.concurrency=6",
        "rl.staleness=1",
        "rl.eval_every=2",
        "rl.eval_tasks=2",
        "rl.save_every=2",
        "rl.probe_tokens=64",
        "rl.keep_trajectories=4",
        "rl.tasks={use='katas', split='train', levels=[1]}",
        "bench.tasks={use='katas', split='held_out', levels=[1]}",
    ]

    def make(*overrides: str) -> Recipe:
        return recipes.load(None, [*settings, *overrides])

    return make


@pytest.fixture(scope="module", autouse=True)
def _warm(warm_children: None) -> None:
    """Nearly every test here starts an engine and a learner."""
