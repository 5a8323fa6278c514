"""Memory that a plan says, against what autograd saves, what the optimiser groups, and what one H200 took."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from etude.core.settings import ModelSettings, OptimSettings
from etude.learn import state
from etude.learn.learner import Learner
from etude.learn.optim import Optimiser
from etude.learn.parallel.layout import Layout
from etude.model import cpu_causal_attention, packed_forward, size
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder
from etude.model.matrices import NEWTON_SCHULZ, is_matrix
from etude.model.matrices import slices as real_slices
from etude.model.packed_forward import Packed
from etude.plan import activations, memory, step_time
from etude.plan.shapes import SHAPES, named
from etude.plan.workload import Workload

SMALL = {"width": 64, "layers": 3, "heads": 4, "kv_heads": 2, "head_dim": 16, "mlp": 160, "kv_rank": 24}
FAMILIES: list[dict[str, Any]] = [
    {"shape": "qwen2"},
    {"shape": "qwen3"},
    {"shape": "qwen3_moe", "experts": 6, "expert_mlp": 48},
    {"shape": "deepseek_v3", "q_rank": 20, "expert_mlp": 48, "shared_experts": 2, "dense_layers": 1},
    {"shape": "kimi_k2", "expert_mlp": 48, "mtp_layers": 1},
]
TOKENS, LENGTH = 128, 64


def config_of(family: dict[str, Any], **changes: Any) -> ModelConfig:
    return replace(ModelConfig.from_settings(ModelSettings(**SMALL | family), 300), **changes)


def saved_numbers(config: ModelConfig) -> float:
    """Numbers of a token that autograd keeps for the backward pass, weights not counted."""
    decoder = Decoder(config)
    weights = {p.untyped_storage().data_ptr() for p in decoder.parameters()}
    kept: dict[int, tuple[int, torch.Tensor]] = {}

    def pack(x: torch.Tensor) -> torch.Tensor:
        place = x.untyped_storage().data_ptr()
        if place not in weights:
            kept[place] = x.untyped_storage().nbytes(), x  # held, so that no address comes twice
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        Packed(decoder, [np.arange(LENGTH) for _ in range(TOKENS // LENGTH)]).hidden()
    return sum(number for number, _ in kept.values()) / 4 / TOKENS


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: str(family["shape"]))
def test_what_a_block_keeps_is_what_autograd_saves(family: dict[str, Any]) -> None:
    plain = {"num_nextn_predict_layers": 0}
    more, less = (saved_numbers(config_of(family, num_hidden_layers=n, **plain)) for n in (4, 3))
    config = config_of(family, **plain)
    said = activations.kept(config, 3, compiled=False)
    # Attention on a CPU holds queries, keys and values itself, where autograd does not see them; its output it does.
    inside = said.attention - config.num_attention_heads * config.value_dim
    assert more - less == pytest.approx(said.whole - inside, rel=0.02)


def test_probabilities_are_counted_as_attention_cuts_them() -> None:
    config = config_of({"shape": "qwen3"})
    tokens, length = 600, 200
    blocks = [range(low, min(low + cpu_causal_attention.BLOCK, length)) for low in range(0, length, 64)]
    one = sum(len(block) * block.stop for block in blocks) * config.num_attention_heads
    assert activations.probabilities(config, tokens, length) == tokens // length * one
    assert activations.probabilities(config, 1 << 16, 1 << 14) == 0  # computed again


def test_numbers_that_stand_twice_are_equal() -> None:
    assert activations.QUERIES == cpu_causal_attention.BLOCK
    assert activations.MOST_PROBABILITIES == cpu_causal_attention.KEEP
    assert {False: "cpu", True: "cuda"}.keys() == memory.CHUNK_LOGITS.keys()
    assert memory.CHUNK_LOGITS[False] == packed_forward.CHUNK_LOGITS["cpu"]
    assert memory.CHUNK_LOGITS[True] == packed_forward.CHUNK_LOGITS["cuda"]
    assert memory.CHUNK_ROWS == packed_forward.CHUNK_ROWS
    assert step_time.NEWTON_SCHULZ == 5 and len(NEWTON_SCHULZ) == 3


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: str(family["shape"]))
def test_matrices_are_sliced_as_the_optimiser_slices_them(family: dict[str, Any]) -> None:
    config = config_of(family)
    decoder = Decoder(config)
    real = Counter[tuple[int, int]]()
    for name, parameter in decoder.named_parameters():
        if is_matrix(name, parameter):
            part = real_slices(name, parameter.detach(), config.head_dims)
            real[part.shape[1], part.shape[2]] += part.numel()
    assert memory.slices(config) == real
    # So the moments are those that the optimiser really has.
    state = Optimiser(dict(decoder.named_parameters()), OptimSettings(), config.head_dims).state()
    held = sum(t.nbytes for name, t in state.items() if not name.startswith("step."))
    work = Workload(config, "pretrain", 256, 128, 64, "float32", False, "muon", gpu=False)
    assert memory.memory(work, Layout()).moments == held


def test_ranks_that_share_a_copy_hold_all_of_it_once() -> None:
    work = Workload(named("kimi-k2.5"), "pretrain", 1 << 26, 32_768, 32_768, "bfloat16", True, "muon")
    one = memory.memory(work, Layout())
    for layout in (Layout(64, 1, 32, 8, 2), Layout(256, 4, 64, 16, 1)):
        part = memory.memory(work, layout)
        for name in ("weights", "gradients", "moments"):
            whole, each = getattr(one, name), getattr(part, name)
            assert 0 <= whole - each * layout.sharing < layout.sharing
        assert part.peak < one.peak
    # Twice the ranks for a sequence: half the tokens on each, but keys and values of all of them in one block.
    cut = [memory.memory(work, Layout(64, 1, 64 // c, 8, c)).activations for c in (1, 2, 4)]
    assert cut[0] > 1.9 * cut[1] > 3.6 * cut[2]


@pytest.mark.parametrize("averaged", [0.0, 0.9])
def test_the_copy_of_a_background_save_is_what_the_learner_copies(
    averaged: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ModelSettings(width=64, layers=2, heads=4, kv_heads=2, head_dim=16, mlp=128)
    config = ModelConfig.from_settings(settings, 512)
    copied: list[int] = []
    copy = state.copied
    monkeypatch.setattr(state, "copied", lambda x: copied.append(x.numel() * x.element_size()) or copy(x))
    learner = Learner(Decoder(config), OptimSettings(ema=averaged), 10, 64)
    learner.begin_save(tmp_path)
    learner.finish_save()
    work = Workload(config, "pretrain", 256, 128, 64, "float32", False, "muon", average=bool(averaged), gpu=False)
    before, now = (memory.memory(replace(work, background=background), Layout()) for background in (False, True))
    assert now.copy == pytest.approx(sum(copied), rel=0.01)
    assert now.peak - before.peak == now.copy > 0 == before.copy
    beside = memory.memory(replace(work, background=True, gpu=True), Layout())
    assert (beside.host, beside.copy) == (now.copy, 0), "of a GPU's learner it is in the host's memory"


LOG = [
    # shape, tokens of a step, at once, in a sequence, precision, recomputed,
    # GiB that one H200 took (docs/log, 2026-11-15)
    ("qwen3-0.6b", 65_536, 16_384, 16_384, "bfloat16", False, 33.2),
    ("qwen3-0.6b", 262_144, 262_144, 262_144, "bfloat16", True, 62.1),
    ("qwen3-4b", 32_768, 8192, 4096, "bfloat16", False, 102.8),
    ("qwen3-4b", 32_768, 8192, 4096, "fp8", False, 99.8),
]


@pytest.mark.parametrize("line", LOG, ids=lambda line: f"{line[0]} {line[3]} {line[4]}")
def test_memory_of_one_h200_is_within_a_tenth_of_the_log(line: tuple[Any, ...]) -> None:
    name, batch, micro, sequence, precision, recompute, gib = line
    config = replace(named(name), max_position_embeddings=1 << 20)
    work = Workload(config, "sft", batch, micro, sequence, precision, recompute, "adamw")
    assert memory.memory(work, Layout()).peak / 2**30 == pytest.approx(gib, rel=0.10)


def test_named_shapes_have_the_sizes_that_their_makers_state() -> None:
    stated = {"qwen3-0.6b": 0.6e9, "qwen3-4b": 4.0e9, "qwen3-8b": 8.2e9, "qwen3-30b-a3b": 30.5e9}
    stated |= {"deepseek-v3": 685e9, "kimi-k2.5": 1.03e12}
    assert stated.keys() == SHAPES.keys()
    for name, parameters in stated.items():
        assert size.parameters(named(name)) == pytest.approx(parameters, rel=0.02), name
