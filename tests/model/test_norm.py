"""The hand-written gradient of RMSNorm against the formula in float64."""

from __future__ import annotations

import pytest
import torch

from etude.model.norm import RMSNorm


@pytest.mark.parametrize("shape", [(7, 16), (5, 3, 8), (1, 4)])
def test_output_and_gradients_equal_the_float64_formula(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    norm = RMSNorm(shape[-1], 1e-6)
    with torch.no_grad():
        norm.weight.normal_()
    x, g = torch.randn(shape, requires_grad=True), torch.randn(shape)
    norm(x).backward(g)
    x64 = x.detach().double().requires_grad_()
    w64 = norm.weight.detach().double().requires_grad_()
    out = x64 / (x64.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * w64
    out.backward(g.double())
    assert torch.allclose(norm(x).double(), out, atol=1e-6)
    assert torch.allclose(x.grad.double(), x64.grad, atol=1e-5)
    assert torch.allclose(norm.weight.grad.double(), w64.grad, atol=1e-5)


def test_training_and_sampling_give_the_same_bits() -> None:
    norm, x = RMSNorm(32, 1e-6), torch.randn(9, 32, requires_grad=True)
    with torch.no_grad():
        sampled = norm(x)
    assert torch.equal(norm(x), sampled)


def test_a_transposed_gradient_is_no_trouble() -> None:
    norm, x = RMSNorm(8, 1e-6), torch.randn(6, 8, requires_grad=True)
    (norm(x).T @ torch.randn(6, 2)).sum().backward()
    assert torch.isfinite(x.grad).all()
