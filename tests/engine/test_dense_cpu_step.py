"""The step of a dense decoder in few operations against the decoder itself, in float64."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path

import pytest
import torch

from etude.core.settings import LoraSettings
from etude.engine.dense_cpu_step import FEW, DenseCpuForward, forward_of
from etude.learn.lora import adapt
from etude.model.attention import PackedAttend
from etude.model.checkpoint.directory import load_model, save_model
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder

QWEN3 = ModelConfig(97, 32, 48, 2, 4, 2, 8, max_position_embeddings=256)
SHAPES = {
    "norms of queries and keys": QWEN3,
    "no sharing of keys, a head of its own": dataclasses.replace(
        QWEN3, num_key_value_heads=4, tie_word_embeddings=False
    ),
    "biases, no norms": dataclasses.replace(QWEN3, model_type="qwen2", qk_norm=False, attention_bias=True),
    "biases everywhere": dataclasses.replace(QWEN3, attention_bias=True),
}


def lively(config: ModelConfig, seed: int = 0) -> Decoder:
    """With weights that all matter, norms and biases included."""
    decoder = Decoder(config, seed)
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.mul_(4) if parameter.ndim > 1 else parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return decoder


def run(forward: Decoder | DenseCpuForward, lengths: list[int], seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden states and logits of sequences of these lengths."""
    torch.manual_seed(seed)
    tokens, positions = torch.randint(0, 97, (sum(lengths),)), torch.cat([torch.arange(n) for n in lengths])
    with torch.inference_mode():
        hidden = forward(tokens, positions, PackedAttend(lengths), max(lengths))
        return hidden, forward.logits(hidden)


@pytest.mark.parametrize("lengths", [[1], [7, 3, 12], [FEW, 20]], ids=["one token", "few", "many"])
@pytest.mark.parametrize("shape", SHAPES)
def test_columns_give_what_the_decoder_gives(shape: str, lengths: list[int]) -> None:
    decoder = lively(SHAPES[shape])
    expected = run(copy.deepcopy(decoder).double(), lengths)
    for found, wanted in zip(run(DenseCpuForward(decoder), lengths), expected, strict=True):
        torch.testing.assert_close(found.double(), wanted, atol=2e-5, rtol=2e-5)


def test_weights_that_are_written_into_the_decoder_are_in_place_at_once() -> None:
    decoder, other = lively(SHAPES["biases everywhere"]), lively(SHAPES["biases everywhere"], seed=1)
    first = DenseCpuForward(decoder)
    second = DenseCpuForward(decoder)  # of two engines with one decoder neither may be left behind
    decoder.load_state_dict(other.state_dict())
    for columns in (first, second):
        torch.testing.assert_close(run(columns, [9, 4])[1], run(other, [9, 4])[1], atol=2e-5, rtol=2e-5)


def test_a_decoder_whose_projections_lie_together_is_saved_copied_and_trained_as_any_other(tmp_path: Path) -> None:
    decoder = lively(QWEN3)
    before = copy.deepcopy(decoder.state_dict())
    DenseCpuForward(decoder)
    save_model(tmp_path, decoder)
    for found in (load_model(tmp_path), copy.deepcopy(decoder)):
        assert all(torch.equal(weight, before[name]) for name, weight in found.state_dict().items())
    tokens = torch.arange(12)
    loss = decoder.logits(decoder(tokens, tokens, PackedAttend([12]))).square().mean()
    assert all(gradient.abs().sum() > 0 for gradient in torch.autograd.grad(loss, list(decoder.parameters())))


def test_models_that_do_not_fit_are_computed_by_the_decoder_itself() -> None:
    experts = dataclasses.replace(
        QWEN3, model_type="qwen3_moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16
    )
    adapted = adapt(lively(QWEN3), LoraSettings(rank=2), 0)
    for decoder in (lively(experts), adapted, lively(QWEN3).bfloat16()):
        assert forward_of(decoder) is decoder
    assert isinstance(forward_of(lively(QWEN3)), DenseCpuForward)
