"""Rounded products against float64, and FP8 against the same quantisation done element by element."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from etude.core.errors import EtudeError
from etude.core.settings import OptimSettings
from etude.learn.optim import Optimiser
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder
from etude.model.low_precision.products import (
    PLAIN,
    PRECISIONS,
    Linear,
    by_rows,
    by_rows_and_columns,
    choose,
    hold,
    product,
    quantised,
    set_precision,
    side_by_side,
)

FP8, BF16 = PRECISIONS["fp8"], PRECISIONS["bfloat16"]
SHAPE: dict[str, Any] = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
SHAPE |= {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def nearest(x: float) -> float:
    """The 8-bit number next to x, by search over all of them."""
    numbers = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).double()
    numbers = numbers[numbers.isfinite()]
    return float(numbers[(numbers - x).abs().argmin()])


def rowwise_product(a: Tensor, b: Tensor) -> Tensor:
    """a times b transposed, both quantised by rows."""
    (qa, sa), (qb, sb) = quantised(a), quantised(b)
    return (qa.float() @ qb.float().t() * sa * sb.t()).to(a.dtype)


def apart(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())


def test_every_row_is_scaled_by_its_own_largest_number_and_rounded_to_the_nearest() -> None:
    x = random(5, 16) * torch.tensor([1e-6, 1.0, 30.0, 1e4, 0.0])[:, None]
    numbers, scale = quantised(x)
    for row, found, unit in zip(x, numbers.double(), scale[:, 0].double(), strict=True):
        assert float(unit) == pytest.approx(max(float(row.abs().max()), 1e-12) / 448, rel=1e-6)
        for value, number in zip(row.double().tolist(), found.tolist(), strict=True):
            ratio = value / float(unit)
            assert abs(number - ratio) <= abs(nearest(ratio) - ratio) * (1 + 1e-5) + 1e-9


def test_a_product_of_eight_bit_numbers_is_the_float64_product_of_those_numbers() -> None:
    a, b = random(24, 64), random(40, 64, seed=1)
    (qa, sa), (qb, sb) = quantised(a), quantised(b)
    wanted = (qa.double() * sa.double()) @ (qb.double() * sb.double()).t()
    found = product(*by_rows((a,), a.dtype), *by_rows((b,), b.dtype), a.dtype)
    assert apart(found, wanted) < 1e-6
    assert 0.01 < apart(found, a.double() @ b.double().t()) < 0.06  # three bits behind the point


def test_both_gradients_are_products_quantised_along_what_they_sum() -> None:
    x, weight, g = random(32, 48).bfloat16(), random(64, 48, seed=1), random(32, 64, seed=2).bfloat16()
    x.requires_grad_()
    weight.requires_grad_()
    FP8.linear(x, weight).backward(g)
    assert x.grad is not None and weight.grad is not None
    assert x.grad.dtype == torch.bfloat16 and weight.grad.dtype == torch.float32
    rounded = weight.detach().bfloat16()
    torch.testing.assert_close(x.grad, rowwise_product(g, rounded.t()))
    torch.testing.assert_close(weight.grad, rowwise_product(g.t(), x.detach().t()).float())
    assert apart(x.grad, g.double() @ weight.detach().double()) < 0.06
    assert apart(weight.grad, g.double().t() @ x.detach().double()) < 0.06


def test_matrices_one_below_the_other_are_quantised_as_one_by_rows_and_by_columns() -> None:
    parts = [random(n, 32, seed=n) * 10.0**i for i, n in enumerate((16, 48, 32))]
    found, whole = by_rows_and_columns(parts, torch.bfloat16), torch.cat(parts).bfloat16()
    for numbers, scale, matrix in ((*found[:2], whole), (*found[2:], whole.t())):
        wanted, wanted_scale = quantised(matrix)
        assert torch.equal(numbers.float(), wanted.float()) and torch.equal(scale, wanted_scale[:, 0])


def test_without_a_gradient_the_product_has_the_same_bits() -> None:
    x, weight = random(8, 32).bfloat16(), random(16, 32, seed=1).requires_grad_()
    with torch.no_grad():
        alone = FP8.linear(x, weight)
    assert torch.equal(FP8.linear(x, weight), alone)


@pytest.mark.parametrize("matrices", ["adamw", "muon"])
def test_copies_of_weights_are_held_until_an_optimiser_writes_to_one(matrices: str) -> None:
    layers = {f"model.layers.0.self_attn.{name}": Linear(32, 32, bias=False) for name in ("q_proj", "k_proj", "v_proj")}
    for layer in layers.values():
        layer.precision = FP8
    weights = {f"{name}.weight": layer.weight for name, layer in layers.items()}
    optimiser = Optimiser(weights, OptimSettings(matrices=matrices), dict.fromkeys(("q_proj", "k_proj", "v_proj"), 16))
    projections = list(layers.values())
    hold(projections)
    before = projections[0].held
    hold(projections)
    assert before is not None and projections[0].held is before
    weights["model.layers.0.self_attn.k_proj.weight"].grad = random(32, 32)
    optimiser.step(1.0)
    hold(projections)
    after, wanted = projections[0].held, by_rows_and_columns([w.detach() for w in weights.values()], torch.bfloat16)
    assert after is not None and after is not before
    assert all(torch.equal(ours.float(), theirs.float()) for ours, theirs in zip(after, wanted, strict=True))
    x = random(8, 32).bfloat16()
    held, anew = (FP8.joined(x, list(weights.values()), given) for given in (after, None))
    assert torch.equal(held, anew)
    set_precision(nn.ModuleList(projections), BF16)
    hold(projections)
    assert projections[0].held is None


def test_no_token_changes_what_another_one_gets() -> None:
    x, weight = random(8, 32), random(16, 32, seed=1)
    before = FP8.linear(x, weight)
    x[3] *= 1000
    after = FP8.linear(x, weight)
    assert torch.equal(before[:3], after[:3]) and torch.equal(before[4:], after[4:])


@pytest.mark.parametrize("name", ["bfloat16", "fp8"])
def test_grouped_products_are_each_expert_by_itself(name: str) -> None:
    sizes, tolerance = torch.tensor([7, 0, 12, 5]), {"bfloat16": 0.005, "fp8": 0.06}[name]
    x, weight, g = random(24, 32).bfloat16(), random(4, 16, 32, seed=1), random(24, 16, seed=2).bfloat16()
    x.requires_grad_()
    weight.requires_grad_()
    out = PRECISIONS[name].grouped(x, weight, sizes)
    out.backward(g)
    assert x.grad is not None and weight.grad is not None
    wanted_x, wanted_weight = x.detach().double(), weight.detach().double()
    start = 0
    for expert, count in enumerate(sizes.tolist()):
        if count:
            rows = slice(start, start + count)
            assert apart(out[rows].detach(), wanted_x[rows] @ wanted_weight[expert].t()) < tolerance
            assert apart(x.grad[rows], g[rows].double() @ wanted_weight[expert]) < tolerance
            assert apart(weight.grad[expert], g[rows].double().t() @ wanted_x[rows]) < 0.01  # never in 8 bits
        else:
            assert not weight.grad[expert].any()
        start += count


def test_projections_of_one_input_are_the_same_side_by_side_and_one_by_one() -> None:
    layers = [Linear(32, n, bias=False) for n in (48, 16, 16)]
    for precision in (PLAIN, BF16, FP8):
        for layer in layers:
            layer.precision = precision
        x = random(16, 32)
        x = x.to(precision.dtype or x.dtype).requires_grad_()
        joined = side_by_side(x, layers)
        torch.cat(joined, -1).sum().backward()
        together = [x.grad, *(layer.weight.grad for layer in layers)]
        x.grad = None
        for layer in layers:
            layer.weight.grad = None
        apart_ = [layer(x) for layer in layers]
        torch.cat(apart_, -1).sum().backward()
        alone = [x.grad, *(layer.weight.grad for layer in layers)]
        for found, wanted in zip([*joined, *together], [*apart_, *alone], strict=True):
            assert found is not None and wanted is not None
            tolerance = 0.05 if precision is FP8 else 0.01 if precision is BF16 else 1e-6  # 8 bits: scales of g differ
            assert apart(found.detach(), wanted.detach()) < tolerance
        for layer in layers:
            layer.weight.grad = None


def test_router_head_embeddings_and_norms_are_never_in_eight_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = SHAPE | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "model_type": "qwen3_moe"}
    decoder = Decoder(ModelConfig(**shape))
    set_precision(decoder, FP8)
    seen: list[tuple[int, ...]] = []

    def watched(x: Tensor) -> tuple[Tensor, Tensor]:
        seen.append(tuple(x.shape))
        return quantised(x)

    monkeypatch.setattr("etude.model.low_precision.products.quantised", watched)
    with torch.no_grad():
        hidden = decoder(torch.arange(16), torch.arange(16), lambda layer, q, k, v: q)
        logits = decoder.logits(hidden)
    assert hidden.dtype == torch.bfloat16 and logits.dtype == torch.float32
    weights = {(64, 32), (32, 32), (4, 32, 32), (4, 32, 16)}  # q, k and v as one; o; the experts' two
    assert weights == {shape for shape in seen if shape[0] not in (16, 32) or shape == (32, 32)} - {(32, 16)}
    assert decoder.model.layers[0].mlp.gate.weight.dtype == torch.float32


def test_a_copy_keeps_its_precision_and_weights_stay_float32() -> None:
    decoder = Decoder(ModelConfig(**SHAPE))
    set_precision(decoder, BF16)
    other = copy.deepcopy(decoder)
    assert other.precision is BF16 and other.model.layers[0].mlp.up_proj.precision is BF16
    assert {p.dtype for p in other.parameters()} == {torch.float32}


def test_a_device_gets_the_precision_that_it_is_made_for() -> None:
    assert choose("auto", "cpu") is PLAIN
    assert choose("auto", "cuda") is BF16
    with pytest.raises(EtudeError, match="one of auto, float32"):
        choose("fp4", "cpu")


def test_a_bias_and_odd_sizes_still_work_in_eight_bits() -> None:
    layer = nn.Linear(32, 16)
    x = random(4, 32)
    assert apart(FP8.linear(x, layer.weight, layer.bias).detach(), layer(x).detach()) < 0.06
    odd = nn.Linear(10, 7)
    assert torch.equal(FP8.linear(x[:, :10], odd.weight, odd.bias), odd(x[:, :10]))
