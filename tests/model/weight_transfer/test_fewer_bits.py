"""Published weights in FP8 and INT4: what an engine has is what the formats say, and deltas of it lose nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
import torch

from etude.core import recipe as recipes
from etude.core.errors import EtudeError
from etude.core.policy import Version
from etude.model.checkpoint.directory import BIAS, named_weights
from etude.model.checkpoint.quantise import fp8_scale, int4_scale, quantise_fp8, quantise_int4
from etude.model.checkpoint.quantised_formats import dequantise_fp8, dequantise_int4
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder
from etude.model.weight_transfer.delta_chain import ChainReader
from etude.model.weight_transfer.deltas import digest
from etude.model.weight_transfer.fewer_bits import GROUP, in_fewer_bits, restored
from etude.model.weight_transfer.object_store import open_store
from etude.model.weight_transfer.publish import ChainPublisher
from etude.model.weight_transfer.receive import ChainSource

SMALL = ["model.width=32", "model.layers=2", "model.heads=2", "model.head_dim=16", "model.mlp=64"]
MIXTURE = [*SMALL, "model.shape=deepseek_v3", "model.kv_rank=24", "model.rope_dim=8", "model.expert_mlp=40"]
CONFIGS = {
    name: ModelConfig.from_settings(recipes.load(None, settings).model, 64)
    for name, settings in (("dense", SMALL), ("mixture", [*MIXTURE, "model.experts=4"]))
}
Bits = Literal["fp8", "int4"]


def rounded(weight: torch.Tensor, bits: Bits) -> torch.Tensor:
    if bits == "fp8":
        scale = fp8_scale(weight)
        return dequantise_fp8(quantise_fp8(weight, scale), scale)
    scale = int4_scale(weight, GROUP)
    return dequantise_int4(quantise_int4(weight, scale, GROUP), scale, weight.shape[1], GROUP)


@pytest.mark.parametrize("bits", ["fp8", "int4"])
@pytest.mark.parametrize("shape", CONFIGS)
def test_an_engine_has_the_rounded_matrices_and_all_else_in_bfloat16(tmp_path: Path, shape: str, bits: Bits) -> None:
    learner, engine = (Decoder(CONFIGS[shape], seed=seed) for seed in (1, 2))
    publisher = ChainPublisher(str(tmp_path), "test", base_every=10, served=bits)
    source = ChainSource(str(tmp_path), 5.0)
    sizes, densities = [], []
    for step in range(3):
        publisher.publish(learner, Version(0, step))
        publisher.wait()
        load, facts = source.ready(Version(0, step))
        load(engine)
        sizes.append(facts["publish_bytes"])
        densities.append(facts["publish_density"])
        few = 0
        for name, weight in named_weights(learner).items():
            matrix = name.endswith((".weight",)) and "proj" in name and weight.ndim == 2
            few += matrix
            wanted = rounded(weight, bits) if matrix else weight if name.endswith(BIAS) else weight.bfloat16().float()
            assert torch.equal(named_weights(engine)[name], wanted), name
        assert few >= 7
        with torch.no_grad():
            for weight in learner.parameters():
                weight.add_(1e-6 * weight.abs().mean() * torch.randn_like(weight))
    publisher.close()
    assert max(sizes[1:]) < sizes[0] / 4 and max(densities[1:]) < 0.05
    late = ChainReader(open_store(str(tmp_path)))  # from the base through both deltas
    follows = source._reader
    assert follows is not None and digest(late.update()) == digest(follows.update())


def test_what_a_bucket_holds_is_checked() -> None:
    name, weight = "model.layers.0.mlp.up_proj.weight", torch.randn(40, 70)
    base = name.removesuffix("weight")
    whole: dict[Bits, dict[str, torch.Tensor]] = {b: in_fewer_bits(name, weight, b) for b in ("fp8", "int4")}
    assert all(restored(parts)[name].shape == (40, 70) for parts in whole.values())
    damaged = [
        {name: whole["fp8"][name]},
        whole["fp8"] | {f"{name}_scale_inv": torch.ones(2, 1)},
        {key: part for key, part in whole["int4"].items() if not key.endswith("shape")},
        whole["int4"] | {f"{base}weight_shape": torch.tensor([40, 700])},
        whole["int4"] | {f"{base}weight_scale": torch.ones(40, 1)},
    ]
    for parts in damaged:
        with pytest.raises(EtudeError, match="published weights in fewer bits lack"):
            restored(parts)


def test_other_weights_are_taken_as_they_are() -> None:
    weights = named_weights(Decoder(CONFIGS["mixture"], seed=1))
    assert restored(weights).keys() == weights.keys()
