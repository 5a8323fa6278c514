"""The feed-forward part in 8 bits against its parts one by one, and against float64."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from etude.model.low_precision.mlp_fp8 import gated, gated_slopes
from etude.model.low_precision.products import PRECISIONS, by_rows_and_columns, set_precision
from etude.model.mlp import SwiGLU


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def apart(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())


def outcome(part: SwiGLU, x: Tensor, g: Tensor) -> list[Tensor]:
    x = x.clone().requires_grad_()
    out = part(x)
    out.backward(g)
    found = [out.detach(), x.grad, *(p.grad for p in part.parameters())]
    assert all(tensor is not None for tensor in found)
    return [tensor for tensor in found if tensor is not None]


@pytest.fixture
def part() -> SwiGLU:
    part = SwiGLU(64, 96)
    with torch.no_grad():
        for number, p in enumerate(part.parameters()):
            p.copy_(random(*p.shape, seed=number) / p.shape[1] ** 0.5)
    return part


def test_it_is_near_float64_and_as_near_as_three_projections_one_by_one(
    part: SwiGLU, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, g = random(48, 64, seed=5).bfloat16(), random(48, 64, seed=6).bfloat16()
    exact = outcome(copy.deepcopy(part).double(), x.double(), g.double())
    set_precision(part, PRECISIONS["fp8"])
    found = outcome(copy.deepcopy(part), x, g)
    monkeypatch.setattr("etude.model.mlp.in_eight_bits", lambda projections: None)
    one_by_one = outcome(part, x, g)
    for ours, parts, wanted in zip(found, one_by_one, exact, strict=True):
        assert apart(ours, wanted) < 0.08
        assert apart(ours, wanted) < 1.1 * apart(parts, wanted)


def test_without_a_gradient_it_has_the_same_bits(part: SwiGLU) -> None:
    set_precision(part, PRECISIONS["fp8"])
    x = random(48, 64, seed=5).bfloat16()
    with torch.no_grad():
        alone = part(x)
    assert torch.equal(part(x), alone)


def test_its_gate_and_the_gradient_are_those_of_silu_rounded_once_more() -> None:
    inner, g = random(32, 96).bfloat16(), random(32, 48, seed=1).bfloat16()
    exact = inner.double().requires_grad_()
    gate, up = exact.chunk(2, -1)
    whole = F.silu(gate) * up
    whole.backward(g.double())
    assert exact.grad is not None
    for found, wanted in ((gated(inner), whole.detach()), (gated_slopes(inner, g), exact.grad)):
        quantised = by_rows_and_columns((wanted.bfloat16(),), torch.bfloat16)
        for numbers, scale, other, other_scale in ((*found[:2], *quantised[:2]), (*found[2:], *quantised[2:])):
            torch.testing.assert_close(scale, other_scale, rtol=0.01, atol=0)
            assert apart(numbers.float() * scale[:, None], other.float() * other_scale[:, None]) < 0.03


def test_sizes_that_do_not_fit_and_biases_go_the_other_way() -> None:
    odd = SwiGLU(64, 40)
    set_precision(odd, PRECISIONS["fp8"])
    x = random(8, 64)
    with torch.no_grad():
        wanted = F.silu(x @ odd.gate_proj.weight.t()) * (x @ odd.up_proj.weight.t()) @ odd.down_proj.weight.t()
        assert apart(odd(x), wanted) < 1e-6
