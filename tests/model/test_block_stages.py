"""A block in stages, compiled or recomputed, gives what the block as a whole gives."""

from __future__ import annotations

import copy
import gc
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from etude.core.settings import ComputeSettings
from etude.model.attention import PackedAttend
from etude.model.compile_regions import Stages
from etude.model.config import ModelConfig
from etude.model.decoder import Block, Decoder
from etude.model.experts import Router
from etude.model.packed_forward import Packed
from etude.model.training import peak_bytes, ready

DENSE: dict[str, Any] = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3}
DENSE |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
EXPERTS = DENSE | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "model_type": "qwen3_moe"}
LATENT = EXPERTS | {"model_type": "deepseek_v3", "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8}
LATENT |= {"v_head_dim": 16, "n_shared_experts": 1, "first_k_dense_replace": 1, "scoring": "sigmoid", "qk_norm": False}
LATENT |= {"rope_interleave": True, "num_key_value_heads": 4, "head_dim": 8}
SHAPES = {"dense": DENSE, "experts": EXPERTS, "latent": LATENT}
LENGTHS = (20, 33, 20)


class Padded(PackedAttend):
    """Attends as on a GPU, by torch's own kernel, whose saved tensors are what recomputation must replace."""

    def __call__(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        return self.padded(q_THD, k_TKD, v_TKD)


class Whole(PackedAttend):
    """Sequences of one length as one dense batch, without a copy: its saved tensors are views of its inputs."""

    def __call__(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        from etude.model.attention import _causal

        return _causal(q_THD, k_TKD, v_TKD, len(self.lengths)).flatten(0, 1)


def gradients(decoder: Decoder, stages: Stages | None, attend: type[PackedAttend], lengths: tuple[int, ...]) -> Any:
    return gradients_of(copy.deepcopy(decoder), stages, attend, lengths)


def gradients_of(decoder: Decoder, stages: Stages | None, attend: type[PackedAttend], lengths: tuple[int, ...]) -> Any:
    decoder.zero_grad()
    for block in decoder.modules():
        if isinstance(block, Block):
            block.stages = stages
    rng = np.random.default_rng(0)
    flat = Packed(decoder, [rng.integers(0, 64, n) for n in lengths])
    flat.attend = attend(lengths)
    hidden = flat.hidden()[0]
    probe = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(1))
    (hidden.float() * probe).sum().backward()
    loads = [module.load_E for module in decoder.modules() if isinstance(module, Router)]
    return [hidden.detach(), *(p.grad for p in decoder.parameters()), *loads]


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("attend", [PackedAttend, Padded], ids=["own", "padded"])
def test_recomputed_blocks_give_the_same_bits(name: str, attend: type[PackedAttend]) -> None:
    decoder = Decoder(ModelConfig(**SHAPES[name]), seed=1)
    wanted = gradients(decoder, None, attend, LENGTHS)
    for stages in (Stages(compiled=False), Stages(compiled=False, recompute=True)):
        for found, expected in zip(gradients(decoder, stages, attend, LENGTHS), wanted, strict=True):
            assert (found is None and expected is None) or torch.equal(found, expected)


def test_attention_keeps_neither_queries_nor_keys_nor_values_that_can_be_computed_again() -> None:
    decoder = Decoder(ModelConfig(**DENSE), seed=1)
    kept: dict[bool, int] = {}
    for recompute in (False, True):
        sizes: dict[int, int] = {}

        def pack(x: Tensor, sizes: dict[int, int] = sizes) -> Tensor:
            sizes[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            return x

        block = copy.deepcopy(decoder.model.layers[0])
        block.stages = Stages(compiled=False, recompute=recompute)
        x = torch.randn(64, 32, requires_grad=True)
        angles = decoder.rope(torch.arange(64), 64)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            block(x, angles, Whole([32, 32]))
        weights = {p.untyped_storage().data_ptr() for p in block.parameters()}
        kept[recompute] = sum(size for place, size in sizes.items() if place not in weights)
    inputs, attended, softmax = 64 * 32 * 4, 64 * 4 * 16 * 4, 64 * 4 * 4
    angles_bytes = 64 * 2 * 8 * 4 * 2
    assert kept[True] <= inputs + attended + softmax + angles_bytes + 64
    assert kept[False] > 3 * kept[True]


@pytest.mark.parametrize("name", SHAPES)
def test_views_of_recomputed_tensors_are_those_that_attention_kept(name: str) -> None:
    decoder = Decoder(ModelConfig(**SHAPES[name]), seed=1)
    wanted = gradients(decoder, None, Whole, (24, 24))
    for found, expected in zip(gradients(decoder, Stages(False, True), Whole, (24, 24)), wanted, strict=True):
        assert (found is None and expected is None) or torch.equal(found, expected)


@pytest.mark.parametrize("name", ["dense", "experts"])
def test_compiled_blocks_share_one_program_and_give_the_same_numbers(name: str) -> None:
    decoder = ready(Decoder(ModelConfig(**SHAPES[name]), seed=1), ComputeSettings(precision="bfloat16"), "cpu", 64)
    wanted = gradients(decoder, None, PackedAttend, LENGTHS)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    try:
        found = gradients(decoder, Stages(compiled=True, recompute=True, backend="aot_eager"), PackedAttend, LENGTHS)
        programs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    finally:
        torch._dynamo.reset()  # it keeps tensors of what it compiled
        gc.collect()
    assert programs == {"dense": 2, "experts": 3}[name]
    for ours, expected in zip(found, wanted, strict=True):
        assert float((ours.float() - expected.float()).norm() / expected.float().norm()) < 0.03


def test_compiled_blocks_multiply_in_eight_bits_by_the_weights_of_now() -> None:
    decoder = ready(Decoder(ModelConfig(**DENSE), seed=1), ComputeSettings(precision="fp8"), "cpu", 64)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    try:
        for _ in range(2):
            wanted = gradients(decoder, None, PackedAttend, LENGTHS)
            found = gradients_of(decoder, Stages(compiled=True, backend="aot_eager"), PackedAttend, LENGTHS)
            for ours, expected in zip(found, wanted, strict=True):
                assert (
                    float((ours.float() - expected.float()).norm() / expected.float().norm()) < 0.15
                )  # 8 bits; old weights would be 2 apart
            with torch.no_grad():
                torch._foreach_mul_(list(decoder.model.layers.parameters()), -1.25)
        programs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    finally:
        torch._dynamo.reset()
        gc.collect()
    assert programs == 2


def test_padded_attention_is_attention_inside_each_sequence() -> None:
    lengths = (5, 33, 1, 12, 33)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(sum(lengths), heads, 8, generator=generator, dtype=torch.float64) for heads in (4, 2, 2))
    found, start = PackedAttend(lengths).padded(q, k, v), 0
    for length in lengths:
        part = slice(start, start + length)
        keys, values = (x[part].repeat_interleave(2, dim=1) for x in (k, v))
        scores = torch.einsum("thd,shd->hts", q[part], keys) / math.sqrt(8)
        scores = scores + torch.full_like(scores[0], -torch.inf).triu(1)
        torch.testing.assert_close(found[part], torch.einsum("hts,shd->thd", scores.softmax(-1), values))
        start += length


def test_recomputation_is_weighed_before_it_is_done() -> None:
    decoder = Decoder(ModelConfig(**DENSE | {"num_hidden_layers": 24}))
    compute = {r: ComputeSettings(precision="bfloat16", recompute=r) for r in (False, True)}
    less, more = (peak_bytes(decoder, compute[r], "cpu", 100_000) for r in (True, False))
    assert less < 0.5 * more
    assert peak_bytes(decoder, ComputeSettings(), "cpu", 100_000) > 1.5 * more  # float32 activations
