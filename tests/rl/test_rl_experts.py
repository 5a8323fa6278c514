"""The loop with a small mixture of experts with latent attention: routes travel from the engine to the learner."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from etude.core import recipe as recipes
from etude.core.recipe import Recipe
from etude.core.run import Run
from etude.core.run_files import read_metrics
from etude.model.checkpoint.directory import save_model
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder
from etude.rl.orchestrator import train
from etude.rollout.store import load_rollout, saved_rollouts
from etude.tokens.tokenizer import Tokenizer

BIAS = "model.layers.1.mlp.gate.e_score_correction_bias"
IN_BACKGROUND = "run.save_in_background=true"  # checkpoints, which a resume here goes on from

TrainRun = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def mixture(toy_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, tokenizer = tmp_path_factory.mktemp("mixture"), Tokenizer.load(toy_model)
    overrides = ["model.shape=deepseek_v3", "model.layers=2", "model.width=32", "model.heads=2", "model.head_dim=16"]
    overrides += ["model.kv_rank=24", "model.rope_dim=8", "model.mlp=64", "model.expert_mlp=32", "model.experts=6"]
    config = ModelConfig.from_settings(recipes.load(None, overrides).model, tokenizer.vocab_size)
    save_model(path, Decoder(config, seed=1))
    tokenizer.save(path)
    return path


def test_the_loop_replays_the_engines_experts_balances_them_and_goes_on_after_a_stop(
    mixture: Path, toy_recipe: Callable[..., Recipe], tmp_path: Path, train_run: TrainRun
) -> None:
    path, recipe = (
        tmp_path / "run",
        toy_recipe("rl.eval_every=0", "rl.steps=3", "rl.save_every=1", "rl.optim.balance=1e-3", IN_BACKGROUND),
    )
    assert train_run(path, recipe, mixture, stop_at=2)["stopped"]
    facts = train_run(path, recipe, mixture)
    assert facts["steps"] == 3 and facts["probe_max"] <= 1e-3 and 0 < facts["probe_mean"] <= 1e-5
    rows = [row for row in read_metrics(path) if row["stage"] == "rl"]
    assert [row["step"] for row in rows] == [1, 2, 3]
    for row in rows:
        assert row["load_max"] >= 1 and 0 <= row["replay_refused"] <= row["replay_moved"] < 0.5
    assert rows[0]["replay_moved"] == 0 and rows[0]["drift_max"] < 1e-3  # the weights that sampled are those trained
    saved = [load_file(path / "checkpoints" / f"rl-000000{step}" / "model.safetensors")[BIAS] for step in (2, 3)]
    assert set(np.abs(np.round(saved[1] / 1e-3)).tolist()) <= {0, 1, 2, 3} and np.abs(saved[1]).max() > 1.5e-3
    assert np.abs(saved[1] - saved[0]).max() == pytest.approx(1e-3, rel=1e-3)  # one step further, not from zero again
    for folder in saved_rollouts(path / "rl" / "trajectories"):
        trajectory = load_rollout(folder).trajectory
        assert trajectory is not None
        for segment in trajectory.segments:
            assert len(segment.ids) - segment.routed == 1 or segment.origins[-1] == "environment"
            experts = segment.arrays()["experts"]
            assert experts.shape == (len(segment.ids), 1, 2)
            assert (experts[: segment.routed] >= 0).all() and (experts[segment.routed :] == -1).all()


@pytest.fixture(scope="module")
def edited_rows(
    mixture: Path, toy_recipe: Callable[..., Recipe], tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    """Steps of a run without replay, whose reward and rate are edited after the first."""
    recipe = toy_recipe("rl.eval_every=0", "rl.steps=3", "rl.staleness=0", "rl.replay=false")
    path, (luck,) = tmp_path_factory.mktemp("edited") / "run", recipe.reward.parts
    with Run.open(path, recipes.to_dict(recipe)) as run:
        log = run.log

        def logged(stage: str, step: int, **values: Any) -> None:
            log(stage, step, **values)
            if step == 1:
                parts = f"parts = [{{ use = '{luck['use']}' }}, {{ use = 'ending' }}]"
                (path / "live.toml").write_text(f"[reward]\n{parts}\n[rl.optim]\nlr = 0.0\n")

        run.log = logged  # type: ignore[method-assign]
        asyncio.run(train(run, recipe, mixture))
    return [row for row in read_metrics(path) if row["stage"] == "rl"]


def test_without_replay_the_learner_chooses_for_itself(edited_rows: list[dict[str, Any]]) -> None:
    for row in edited_rows:
        assert "replay_moved" not in row and row["probe_max"] < 1e-3 and row["load_max"] >= 1


def test_a_running_run_takes_up_an_edit(edited_rows: list[dict[str, Any]]) -> None:
    assert [row["edition"] for row in edited_rows] == [0, 1, 1]
    assert [row["lr"] for row in edited_rows][1:] == [0, 0]
    assert "reward_ending" not in edited_rows[0] and "reward_ending" in edited_rows[-1]
