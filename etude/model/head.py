"""From hidden states to log-probabilities, with as few passes over [rows, vocabulary] as it takes.

Logits are float32 whatever the states are: rounded to bfloat16, a logit of 20 would be off by 0.06 and so would every
log-probability made from it. Of given tokens, log-probabilities and entropies need one pass over the logits, and their
gradient one more, which writes it in the dtype of the product that follows. Whole distributions and how far two of them
are apart are here too. Which rows and tokens, and what is asked of them, is the caller's business.

Shapes: R rows of hidden states, E entries (tokens asked for; several may ask of one row), D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


def head_logits(hidden_RD: Tensor, weight_VD: Tensor) -> Tensor:
    if hidden_RD.dtype != torch.bfloat16:
        return F.linear(hidden_RD, weight_VD.to(hidden_RD.dtype))
    logits_RV: Tensor = _Logits.apply(hidden_RD, weight_VD)  # type: ignore[no-untyped-call]
    return logits_RV


def token_logprobs(
    hidden_RD: Tensor,
    weight_VD: Tensor,
    temperature_R: Tensor | None,
    rows_E: Tensor,
    ids_E: Tensor,
    entropy: bool = False,
) -> tuple[Tensor, Tensor]:
    """Of each id, predicted from the hidden state of its row; and the entropies of the rows' distributions, if asked.

    Only the first has a gradient.
    """
    found: tuple[Tensor, Tensor]
    found = _Tokens.apply(hidden_RD, weight_VD, temperature_R, rows_E, ids_E, entropy)  # type: ignore[no-untyped-call]
    return found


class _Logits(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden_RD: Tensor, weight_VD: Tensor) -> Tensor:
        rounded_VD = weight_VD.to(hidden_RD.dtype)
        ctx.save_for_backward(hidden_RD, rounded_VD)
        return _product(hidden_RD, rounded_VD.t())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None]:
        return _backward(ctx, gradients[0].to(ctx.saved_tensors[0].dtype))


class _Tokens(torch.autograd.Function):
    """With p the distribution of a row and G the sum of its entries' gradients g, the logits' is: sum of g - G p."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_RD: Tensor,
        weight_VD: Tensor,
        temperature_R: Tensor | None,
        rows_E: Tensor,
        ids_E: Tensor,
        entropy: bool,
    ) -> tuple[Tensor, Tensor]:
        rounded_VD = weight_VD.to(hidden_RD.dtype)
        logits_RV = _product(hidden_RD, rounded_VD.t())
        sharpness_R = torch.ones_like(logits_RV[:, 0]) if temperature_R is None else 1 / temperature_R
        normaliser_R = _fused(_normaliser, logits_RV, sharpness_R)
        logp_E = logits_RV[rows_E, ids_E] * sharpness_R[rows_E] - normaliser_R[rows_E]
        entropy_R = _fused(_entropy, logits_RV, sharpness_R, normaliser_R) if entropy else normaliser_R[:0]
        ctx.save_for_backward(hidden_RD, rounded_VD, logits_RV, sharpness_R, normaliser_R, rows_E, ids_E, logp_E)
        ctx.mark_non_differentiable(entropy_R)
        return logp_E, entropy_R

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        g_E = gradients[0]
        hidden_RD, _, logits_RV, sharpness_R, normaliser_R, rows_E, ids_E, logp_E = ctx.saved_tensors
        G_R = torch.zeros_like(normaliser_R).index_add_(0, rows_E, g_E)
        slope_RV = _fused(_slope, logits_RV, sharpness_R, normaliser_R, G_R, hidden_RD.new_empty(len(hidden_RD), 0))
        # several entries may ask for one token of one row; added up before they are rounded
        key_E = rows_E * logits_RV.shape[1] + ids_E
        first_E = torch.searchsorted(key_E.sort().values, key_E)
        all_E = torch.zeros_like(g_E).index_add_(0, first_E, g_E)[first_E]
        exact_E = (all_E - G_R[rows_E] * logp_E.exp()) * sharpness_R[rows_E]
        slope_RV[rows_E, ids_E] = exact_E.to(slope_RV.dtype)
        return *_backward(ctx, slope_RV), None, None, None, None


def _product(a: Tensor, b: Tensor) -> Tensor:
    """A matrix product whose result is float32, or wider if its factors are."""
    if a.dtype != torch.bfloat16:
        return a @ b
    return torch.mm(a, b, out_dtype=torch.float32) if a.is_cuda else a.float() @ b.float()


def _backward(ctx: Any, slope_RV: Tensor) -> tuple[Tensor, Tensor | None]:
    hidden_RD, rounded_VD = ctx.saved_tensors[:2]
    return slope_RV @ rounded_VD, _product(slope_RV.t(), hidden_RD) if ctx.needs_input_grad[1] else None


def _normaliser(logits_RV: Tensor, sharpness_R: Tensor) -> Tensor:
    return torch.logsumexp(logits_RV * sharpness_R[:, None], -1)


def _entropy(logits_RV: Tensor, sharpness_R: Tensor, normaliser_R: Tensor) -> Tensor:
    logp_RV = logits_RV * sharpness_R[:, None] - normaliser_R[:, None]
    return -(logp_RV.exp() * logp_RV).sum(-1)


def _slope(logits_RV: Tensor, sharpness_R: Tensor, normaliser_R: Tensor, G_R: Tensor, like: Tensor) -> Tensor:
    p_RV = (logits_RV * sharpness_R[:, None] - normaliser_R[:, None]).exp()
    return (p_RV * (-G_R * sharpness_R)[:, None]).to(like.dtype)


def _fused(function: Callable[..., Tensor], *arguments: Tensor) -> Tensor:
    """One operation of several, on a GPU: compiled for this vocabulary and any number of rows."""
    if not arguments[0].is_cuda:
        return function(*arguments)
    # Any number of rows, but a known vocabulary: compiled for any, the passes took 49 ms of a step instead of 31.
    for x in arguments:
        torch._dynamo.maybe_mark_dynamic(x, 0)
    return _compiled(function)(*arguments)


@cache
def _compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return torch.compile(function)


def divergence(kind: str, beta: float, support: str | int, student_EV: Tensor, teacher_EV: Tensor) -> Tensor:
    """Of two log-distributions, over the whole vocabulary or over the student's top k and one bucket for the rest."""
    if isinstance(support, int) and support < student_EV.shape[-1]:
        top_EK = student_EV.detach().topk(support, -1).indices
        student_EV, teacher_EV = (
            torch.cat((x.gather(-1, top_EK), x.scatter(-1, top_EK, -torch.inf).logsumexp(-1, keepdim=True)), -1)
            for x in (student_EV, teacher_EV)
        )
    if kind == "forward":
        return _kl(teacher_EV, student_EV)
    if kind == "reverse":
        return _kl(student_EV, teacher_EV)
    shares = np.log((beta, 1 - beta))
    mixture_EV = torch.logaddexp(teacher_EV + shares[0], student_EV + shares[1])
    return beta * _kl(teacher_EV, mixture_EV) + (1 - beta) * _kl(student_EV, mixture_EV)


def _kl(p_EV: Tensor, q_EV: Tensor) -> Tensor:
    return (p_EV.exp() * (p_EV - q_EV)).sum(-1)
