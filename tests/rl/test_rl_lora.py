"""The loop with adapters: engine and learner agree, the run continues, and what it leaves are ordinary models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from etude.core.recipe import Recipe
from etude.core.run_files import read_metrics
from etude.model.checkpoint.directory import save_model
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder
from etude.tokens.tokenizer import Tokenizer

TrainRun = Callable[..., dict[str, Any]]


@pytest.fixture
def latent_model(toy_model: Path, tmp_path: Path) -> Path:
    """The toy with latent attention and experts: weights that a forward uses as tensors, and others left frozen."""
    tokenizer = Tokenizer.load(toy_model)
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        model_type="deepseek_v3",
        qk_norm=False,
        kv_lora_rank=16,
        qk_nope_head_dim=8,
        qk_rope_head_dim=8,
        v_head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        n_shared_experts=1,
        first_k_dense_replace=1,
        scoring="sigmoid",
    )
    path = tmp_path / "latent"
    save_model(path, Decoder(config, seed=1))
    tokenizer.save(path)
    return path


def test_the_loop_learns_with_adapters_and_goes_on_after_a_stop(
    latent_model: Path, toy_recipe: Callable[..., Recipe], tmp_path: Path, train_run: TrainRun
) -> None:
    path = tmp_path / "run"
    recipe = toy_recipe("rl.lora.rank=4", "rl.optim.lr=1e-2", "rl.kl=0.01")
    assert train_run(path, recipe, latent_model, stop_at=1)["stopped"]
    facts = train_run(path, recipe, latent_model)
    assert (facts["steps"], facts["stopped"], facts["void"]) == (3, False, 0)
    assert 0 < facts["probe_mean"] <= 1e-5 and facts["probe_max"] <= 1e-3
    rows = [row for row in read_metrics(path) if row["stage"] == "rl"]
    assert [row["step"] for row in rows] == [1, 2, 3] and all(row["grad_norm"] > 0 for row in rows)
    assert abs(rows[0]["reference_kl"]) < 1e-5  # it starts as the reference
    assert abs(rows[-1]["reference_kl"]) > 1e-5
    last = path / "checkpoints" / "rl-0000003"
    before, after = (load_file(folder / "model.safetensors") for folder in (latent_model, last))
    moved = {name for name in after if not np.array_equal(before[name], after[name])}
    for folder in (last, path / "best"):
        adapters = load_file(folder / "adapter" / "adapter_model.safetensors")
        names = {name.removeprefix("base_model.model.").replace("lora_A.", "") for name in adapters if "lora_A" in name}
        assert moved == names and len(names) == 14
