"""The feed-forward half of a block in 8 bits, as one operation with a gradient of its own.

Between its two products lies SwiGLU, whose result is only wanted quantised. As operations of their own it would be
written whole, read twice and written again, and its gradient, twice as wide, too; here a GPU makes both inside the
kernels that quantise (quantise_kernels.py). Elsewhere the same is computed in plain torch. What is quantised, and how,
is products.py's.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from etude.model.low_precision.products import (
    Linear,
    RowwiseFP8,
    Twice,
    by_rows,
    by_rows_and_columns,
    fits,
    held_now,
    joinable,
    product,
)


def in_eight_bits(projections: tuple[nn.Module, nn.Module, nn.Module]) -> tuple[Linear, Linear, Linear] | None:
    """The three projections of a feed-forward part, if this can compute it."""
    linears = joinable(projections)
    if linears is None or not isinstance(linears[0].precision, RowwiseFP8):
        return None
    gate, up, down = linears
    return (gate, up, down) if all(fits(linear.weight) for linear in linears) else None


def feed_forward(x_TD: Tensor, gate: Linear, up: Linear, down: Linear) -> Tensor:
    first = held_now(gate) or by_rows_and_columns((gate.weight.detach(), up.weight.detach()), x_TD.dtype)
    second = held_now(down) or by_rows_and_columns((down.weight.detach(),), x_TD.dtype)
    if not torch.is_grad_enabled():
        inner_T2F = product(*by_rows((x_TD,), x_TD.dtype), *first[:2], x_TD.dtype)
        return product(*gated(inner_T2F)[:2], *second[:2], x_TD.dtype)
    out_TD: Tensor = _FeedForward.apply(x_TD, *first, *second, gate.weight, up.weight, down.weight)  # type: ignore[no-untyped-call]
    return out_TD


def gated(inner_T2F: Tensor) -> Twice:
    """SwiGLU of gates and what they act on, side by side; quantised by rows and by columns."""
    if inner_T2F.is_cuda:
        found: Twice = torch.ops.etude.gated(inner_T2F)
        return found
    gate_TF, up_TF = inner_T2F.chunk(2, -1)
    return by_rows_and_columns((F.silu(gate_TF) * up_TF,), inner_T2F.dtype)


def gated_slopes(inner_T2F: Tensor, g_TF: Tensor) -> Twice:
    """The gradient of what `gated` takes, from that of SwiGLU's result; quantised by rows and by columns."""
    if inner_T2F.is_cuda:
        found: Twice = torch.ops.etude.gated_slopes(inner_T2F, g_TF)
        return found
    gate_TF, up_TF = inner_T2F.float().chunk(2, -1)
    open_TF, g_TF = gate_TF.sigmoid(), g_TF.float()
    slope_TF = g_TF * up_TF * open_TF * (1 + gate_TF * (1 - open_TF))
    rounded_TF = (gate_TF * open_TF).to(inner_T2F.dtype).float()
    return by_rows_and_columns((torch.cat((slope_TF, g_TF * rounded_TF), -1),), inner_T2F.dtype)


class _FeedForward(torch.autograd.Function):
    """Weights come twice: quantised, to be multiplied, and as they are, to get a gradient."""

    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, *arguments: Tensor) -> Tensor:
        first, first_scale, *first_turned = arguments[:4]
        second, second_scale, *second_turned = arguments[4:8]
        x, x_scale, *x_turned = by_rows_and_columns((x_TD,), x_TD.dtype)
        inner_T2F = product(x, x_scale, first, first_scale, x_TD.dtype)
        h, h_scale, *h_turned = gated(inner_T2F)
        ctx.save_for_backward(inner_T2F, *x_turned, *h_turned, *first_turned, *second_turned)
        ctx.dtypes = [weight.dtype for weight in arguments[8:]]
        return product(h, h_scale, second, second_scale, x_TD.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (g_TD,) = gradients
        inner_T2F, x, x_scale, h, h_scale, first, first_scale, second, second_scale = ctx.saved_tensors
        dtype, (gate, up, down) = g_TD.dtype, ctx.dtypes
        g, g_scale, g_turned, g_turned_scale = by_rows_and_columns((g_TD,), dtype)
        slope_TF = product(g, g_scale, second, second_scale, dtype)
        slope_DF = product(g_turned, g_turned_scale, h, h_scale, dtype)
        g, g_scale, g_turned, g_turned_scale = gated_slopes(inner_T2F, slope_TF)
        slope_TD = product(g, g_scale, first, first_scale, dtype)
        gate_FD, up_FD = product(g_turned, g_turned_scale, x, x_scale, dtype).chunk(2)
        return slope_TD, *[None] * 8, gate_FD.to(gate), up_FD.to(up), slope_DF.to(down)
