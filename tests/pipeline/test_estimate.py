"""Times, memory and disk that are said beforehand."""

from __future__ import annotations

from pathlib import Path

import pytest

from etude.core import recipe as recipes
from etude.core.errors import EtudeError
from etude.core.run import Run
from etude.model import packed_forward, size
from etude.model.config import ModelConfig
from etude.pipeline import estimate
from etude.pipeline.estimate import cost, pace, rl_needs, seconds_left, stage_seconds
from etude.pipeline.stages import reinforcement

GIB = 2**30
# The shapes of the two Qwen3 models that the recipes name, as their config.json has them.
SMALL = {
    "model_type": "qwen3",
    **{"vocab_size": 151_936, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28},
    **{"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 40_960},
    **{"rope_theta": 1e6, "tie_word_embeddings": True, "rms_norm_eps": 1e-6, "hidden_act": "silu"},
}
LARGE = {**SMALL, "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32}


def test_the_quickstart_is_guessed_and_follows_its_settings_and_the_machine():
    nano = recipes.load("nano")
    stages = ["corpus", "pretrain", "demos", "sft", "bench-sft", "rl", "bench-rl", "report"]
    whole = seconds_left(nano, stages, {})
    assert whole is not None and 10 * 60 < whole < 14 * 60
    assert stage_seconds(recipes.load("nano", ["pretrain.steps=1700"]), "pretrain") == pytest.approx(300)
    assert pace(nano, {"corpus": 20.0, "pretrain": 300.0}) == pytest.approx(2.0)
    slower = seconds_left(nano, ["demos", "rl"], {"corpus": 20.0, "pretrain": 300.0})
    assert slower == pytest.approx(2 * 35 + 390)  # its own limit of time is no slower on a slow machine


def test_nothing_is_guessed_where_nothing_was_measured():
    assert stage_seconds(recipes.load("nano", ["run.device=cuda"]), "pretrain") is None
    assert seconds_left(recipes.load("nano", ["rl.seconds=0"]), ["rl", "report"], {}) is None
    assert stage_seconds(recipes.load("nano", ["rl.model=somewhere"]), "bench-rl") is None


@pytest.mark.parametrize(("recipe", "shape", "billions"), [("repo-0.6b", SMALL, 0.6), ("repo-4b", LARGE, 4.0)])
def test_the_recipes_for_real_models_fit_one_gpu_of_80_gb(recipe: str, shape: dict[str, object], billions: float):
    config = ModelConfig.from_hf(shape)
    assert size.parameters(config) == pytest.approx(billions * 1e9, rel=0.02)
    needs = rl_needs(recipes.load(recipe), config)
    assert needs["memory"] == needs["learner"] + needs["engine"] and 20 * GIB < needs["memory"] < 74 * GIB
    weights = 4 * size.parameters(config)
    assert needs["disk"] >= 3 * weights and needs["learner"] > weights
    assert packed_forward.CHUNK_LOGITS["cuda"] == estimate.CHUNK_LOGITS


def test_too_small_a_disk_is_found_before_the_first_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from etude.model.checkpoint.directory import save_model
    from etude.model.decoder import Decoder

    recipe = recipes.load("nano")
    save_model(tmp_path / "model", Decoder(ModelConfig.from_settings(recipe.model, 300)))
    monkeypatch.setattr(reinforcement, "free_bytes", lambda _: 1000)
    with (
        Run.open(tmp_path / "run", recipes.to_dict(recipe)) as run,
        pytest.raises(EtudeError, match="make room, choose another --run, or keep fewer"),
    ):
        reinforcement.announce(run, recipe, tmp_path / "model")


def test_a_price_gives_a_cost_and_without_one_none_is_shown():
    plain, priced = recipes.load("nano"), recipes.load("nano", ["run.gpu_hour=2.5", "rl.seconds=7200"])
    assert cost(priced, 7200) == "5.00 at 2.5 an hour" and cost(priced, None) == cost(plain, 7200) == ""
    outlines = [reinforcement.outline_rl(each) for each in (plain, priced)]
    assert "cost" not in outlines[0] and outlines[1]["cost"] == "at most 5.00 at 2.5 an hour"
