"""Log-probabilities, entropies and their gradients against float64 autograd over whole distributions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from etude.model.head import head_logits, token_logprobs


def case(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Hidden states, a head, and entries: some rows are asked twice, of one token or of two, one not at all."""
    generator = torch.Generator().manual_seed(seed)
    hidden, weight = torch.randn(6, 16, generator=generator), torch.randn(40, 16, generator=generator)
    return hidden, weight, torch.tensor([0, 1, 1, 2, 2, 4, 5, 0]), torch.tensor([3, 7, 7, 1, 39, 0, 12, 3])


@pytest.mark.parametrize("tempered", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_token_logprobs_and_their_gradient_are_those_of_the_whole_distribution(
    tempered: bool, dtype: torch.dtype
) -> None:
    hidden, weight, rows, ids = case()
    hidden = hidden.to(dtype)
    temperature = torch.tensor([0.5, 1.0, 2.0, 1.0, 0.7, 1.3]) if tempered else None
    g = torch.randn(len(rows), generator=torch.Generator().manual_seed(1))
    leaves = [hidden.clone().requires_grad_(), weight.clone().requires_grad_()]
    found, entropy = token_logprobs(*leaves, temperature, rows, ids, entropy=True)
    found.backward(g)
    exact = [hidden.double().requires_grad_(), weight.to(dtype).double().requires_grad_()]
    logits = exact[0] @ exact[1].t()
    logp = (logits if temperature is None else logits / temperature.double()[:, None]).log_softmax(-1)
    wanted = logp[rows, ids]
    wanted.backward(g.double())
    assert found.dtype == torch.float32 and not entropy.requires_grad
    torch.testing.assert_close(found.detach().double(), wanted.detach(), rtol=0, atol=1e-5)
    torch.testing.assert_close(entropy.double(), -(logp.exp() * logp).sum(-1).detach(), rtol=0, atol=1e-5)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    for leaf, reference in zip(leaves, exact, strict=True):
        assert leaf.grad is not None and reference.grad is not None
        assert float((leaf.grad.double() - reference.grad).norm() / reference.grad.norm()) < tolerance


def test_a_sure_token_keeps_its_small_gradient_in_bfloat16() -> None:
    """1 - p of p = 0.9995 is lost when p is rounded to bfloat16 before it is subtracted."""
    hidden, weight = torch.zeros(1, 16), torch.zeros(40, 16)
    hidden[0, 0], weight[3, 0] = 1.0, 11.25
    leaf = hidden.bfloat16().requires_grad_()
    rows, ids = torch.tensor([0]), torch.tensor([3])
    logp, _ = token_logprobs(leaf, weight, None, rows, ids)
    logp.sum().backward()
    p = float(logp.detach().exp())
    assert 0.999 < p < 0.9999
    assert leaf.grad is not None
    assert float(leaf.grad[0, 0]) == pytest.approx((1 - p) * 11.25, rel=0.01)


def test_logits_of_rounded_states_are_not_rounded() -> None:
    hidden, weight, _, _ = case()
    leaf, head = hidden.bfloat16().requires_grad_(), weight.clone().requires_grad_()
    logits = head_logits(leaf, head)
    wanted = leaf.detach().double() @ head.detach().bfloat16().double().t()
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits.detach().double(), wanted, rtol=0, atol=1e-5)
    g = torch.randn(logits.shape, generator=torch.Generator().manual_seed(1))
    logits.backward(g)
    assert leaf.grad is not None and head.grad is not None and head.grad.dtype == torch.float32
    assert float((head.grad - g.t() @ leaf.detach().float()).norm() / head.grad.norm()) < 0.01


def test_a_frozen_head_gets_no_gradient() -> None:
    hidden, weight, rows, ids = case()
    leaf = hidden.requires_grad_()
    token_logprobs(leaf, weight, None, rows, ids)[0].sum().backward()
    assert leaf.grad is not None and weight.grad is None
