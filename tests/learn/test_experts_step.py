"""A step of a model with experts: averaged routing biases, skipped steps, reinforcement learning, mixed batches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from etude.core import recipe as recipes
from etude.core.rl_settings import RLSettings
from etude.core.settings import OptimSettings
from etude.learn.learner import Learner
from etude.learn.streams import Batch, Item, Label, Stream
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder

VOCAB = 37
BIAS = "model.layers.1.mlp.gate.e_score_correction_bias"


def mixture(seed: int = 1) -> Decoder:
    """The shape of DeepSeek-V3: sigmoid scores and a bias that only the choice of experts sees."""
    overrides = ["model.shape=deepseek_v3", "model.layers=2", "model.width=16", "model.heads=2", "model.head_dim=8"]
    overrides += ["model.kv_rank=8", "model.rope_dim=4", "model.mlp=24", "model.expert_mlp=12", "model.experts=6"]
    decoder = Decoder(ModelConfig.from_settings(recipes.load(None, overrides).model, VOCAB), seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in decoder.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, 0.3, generator=generator)
    return decoder


def labels(seed: int, weight: float = 0.1) -> Batch:
    rng = np.random.default_rng(seed)
    items = []
    for length in (9, 17):
        tokens = rng.integers(0, VOCAB, length)
        items.append(Item(tokens, [Stream("main", np.full(length, weight, np.float32), Label(tokens))]))
    return Batch(items)


def bias(learner: Learner, weights: str = "live") -> torch.Tensor:
    return learner.weights[weights].state_dict()[BIAS].clone()


def test_averaged_weights_route_with_averaged_biases_and_a_resume_keeps_them(tmp_path: Path) -> None:
    settings = OptimSettings(ema=0.75, balance=0.1)
    learner = Learner(mixture(), settings, 10, 64)
    expected = bias(learner, "ema")
    for seed in range(3):
        learner.forward_backward(labels(seed))
        learner.step()
        expected = 0.75 * expected + 0.25 * bias(learner)
    assert bias(learner).abs().max() > 0.05
    torch.testing.assert_close(bias(learner, "ema"), expected)
    learner.save(tmp_path)
    resumed = Learner(mixture(9), settings, 10, 64)
    resumed.restore(tmp_path)
    assert torch.equal(bias(resumed, "ema"), bias(learner, "ema"))


def test_a_checkpoint_from_before_biases_were_averaged_begins_with_the_live_ones(tmp_path: Path) -> None:
    settings = OptimSettings(ema=0.75, balance=0.1)
    learner = Learner(mixture(), settings, 10, 64)
    learner.forward_backward(labels(0))
    learner.step()
    learner.save(tmp_path)
    path = tmp_path / "optimiser.safetensors"
    save_file({name: x for name, x in load_file(path).items() if not name.endswith("e_score_correction_bias")}, path)
    resumed = Learner(mixture(9), settings, 10, 64)
    resumed.restore(tmp_path)
    assert torch.equal(bias(resumed, "ema"), bias(learner))


def test_a_step_that_is_not_finite_leaves_the_routing_biases_too() -> None:
    learner = Learner(mixture(), OptimSettings(ema=0.9, balance=0.1), 10, 64)
    learner.forward_backward(labels(0, np.nan))
    assert learner.step()["skipped"] == 1
    assert not bias(learner).any() and not bias(learner, "ema").any()
    assert not learner.decoder.get_submodule("model.layers.1.mlp.gate").load_E.any()  # forgotten with the gradient


def test_in_reinforcement_learning_a_learning_rate_of_zero_changes_nothing() -> None:
    """Also where a recipe sets other keys of rl.optim: the biases are outside of the objective."""
    for recipe in (
        recipes.load(None, ["rl.optim.lr=0.0", "rl.optim.muon_lr=0.0"]),
        recipes.load("nano", ["rl.optim.lr=0.0"]),
    ):
        assert recipe.rl.optim.balance == 0
        learner = Learner(mixture(), recipe.rl.optim, 10, 64)
        before = {name: x.clone() for name, x in learner.decoder.state_dict().items()}
        for seed in range(2):
            learner.forward_backward(labels(seed))
            learner.step()
        after = learner.decoder.state_dict()
        assert [name for name in before if not torch.equal(before[name], after[name])] == []
    assert RLSettings().optim.balance == 0 and recipes.load("nano").sft.optim.balance > 0


def test_an_item_without_experts_does_not_switch_its_neighbours_filter_off() -> None:
    rng = np.random.default_rng(3)
    tokens = rng.integers(0, VOCAB, 12)
    experts_TBK = np.tile(np.array([4, 5], np.int16), (12, 1, 1))  # whatever the routers think of these two
    strict = Item(tokens, [], experts_TBK=experts_TBK, plausible=1.0)
    lax = Item(tokens, [], experts_TBK=experts_TBK, plausible=0.0)
    plain = Item(rng.integers(0, VOCAB, 7), [])
    learner = Learner(mixture(), OptimSettings(), 10, 64)
    alone = [learner.score([item])[0] for item in (plain, strict, lax)]
    assert np.abs(alone[1] - alone[2]).max() > 1e-3
    for together, wanted in zip(learner.score([plain, strict, lax]), alone, strict=True):
        np.testing.assert_allclose(together, wanted, atol=1e-5)
