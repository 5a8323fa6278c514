"""In which numbers a decoder computes: the one seam through which its linear and grouped products go.

    float32     weights and activations as they are (any dtype: an engine's bfloat16 model computes in bfloat16)
    bfloat16    weights stay as they are (float32 masters); each is rounded where it is used, activations are bfloat16
    fp8         like bfloat16, but the products of the blocks' projections and of the experts take 8-bit operands

FP8 is row-wise: every row of both operands of a product has a scale of its own, along the dimension that is summed, so
no token's numbers depend on another token's. Both products of the backward pass are made the same way, from operands
quantised anew along their own summed dimension; of the experts only the one that gives the input's gradient, since the
tokens of an expert are no multiple of 16. Router, head, embeddings and norms are never quantised. Weights are rounded
to the dtype of the activations first, which is what an engine with bfloat16 weights has of them.

A GPU multiplies the 8-bit numbers themselves; elsewhere they are multiplied as float32, which gives the same sums but
for the order of their terms. Knows shapes of operands, not layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from etude.errors import EtudeError

EIGHT = torch.float8_e4m3fn
LARGEST = 448.0  # of its numbers
MULTIPLE = 16  # a GPU's 8-bit product wants dimensions that are multiples of this


class Precision:
    """Products with weights rounded to the dtype of what they act on: float32, or bfloat16 from float32 masters."""

    dtype: torch.dtype | None = None  # of activations; None: that of the embedding

    def __deepcopy__(self, memo: dict[int, Any]) -> Precision:
        return self

    def linear(self, x_TD: Tensor, weight_MD: Tensor, bias_M: Tensor | None = None) -> Tensor:
        bias_M = None if bias_M is None else bias_M.to(x_TD.dtype)
        return F.linear(x_TD, weight_MD.to(x_TD.dtype), bias_M)

    def grouped(self, x_ND: Tensor, weight_EMD: Tensor, sizes_E: Tensor) -> Tensor:
        """Rows sorted by expert, `sizes_E` of each, times the transposed weight of their expert."""
        return grouped_mm(x_ND, weight_EMD.to(x_ND.dtype), sizes_E)


class BFloat16(Precision):
    dtype = torch.bfloat16


class RowwiseFP8(BFloat16):
    def linear(self, x_TD: Tensor, weight_MD: Tensor, bias_M: Tensor | None = None) -> Tensor:
        if any(size % MULTIPLE for size in weight_MD.shape):
            return super().linear(x_TD, weight_MD, bias_M)
        out_TM: Tensor = _Linear.apply(x_TD, weight_MD.to(x_TD.dtype))  # type: ignore[no-untyped-call]
        return out_TM if bias_M is None else out_TM + bias_M.to(x_TD.dtype)

    def grouped(self, x_ND: Tensor, weight_EMD: Tensor, sizes_E: Tensor) -> Tensor:
        if any(size % MULTIPLE for size in weight_EMD.shape[1:]):
            return super().grouped(x_ND, weight_EMD, sizes_E)
        out_NM: Tensor = _Grouped.apply(x_ND, weight_EMD.to(x_ND.dtype), sizes_E)  # type: ignore[no-untyped-call]
        return out_NM


PLAIN = Precision()
PRECISIONS = {"float32": PLAIN, "bfloat16": BFloat16(), "fp8": RowwiseFP8()}


def choose(name: str, device: str) -> Precision:
    """The precision of a setting; `auto` is what a device is made for."""
    if name == "auto":
        name = "bfloat16" if torch.device(device).type == "cuda" else "float32"
    if name not in PRECISIONS:
        raise EtudeError(f"precision is {name!r}; it is one of auto, {', '.join(PRECISIONS)}")
    if name == "fp8" and torch.device(device).type == "cuda" and torch.cuda.get_device_capability(device) < (8, 9):
        raise EtudeError("precision is 'fp8', which this GPU cannot multiply; take 'bfloat16'")
    return PRECISIONS[name]


class Linear(nn.Linear):
    """A projection inside a block."""

    precision: Precision = PLAIN

    def forward(self, x: Tensor) -> Tensor:
        return self.precision.linear(x, self.weight, self.bias)


def side_by_side(x_TD: Tensor, projections: Sequence[nn.Module]) -> list[Tensor]:
    """What several projections of the same input give.

    Where activations are smaller than the weights, which are rounded anyway, as one product: it is larger, and so is
    the one that gives the input's gradient.
    """
    linears = [p for p in projections if isinstance(p, Linear)]  # not those with adapters
    biased = any(getattr(p, "bias", None) is not None for p in projections)
    if biased or len(linears) < len(projections) or linears[0].precision is PLAIN:
        return [p(x_TD) for p in projections]
    weights = [linear.weight.to(x_TD.dtype) for linear in linears]
    joined_TM = linears[0].precision.linear(x_TD, torch.cat(weights))
    return list(torch.split(joined_TM, [len(weight_MD) for weight_MD in weights], -1))


def set_precision(model: nn.Module, precision: Precision) -> None:
    """Everything inside `model` that multiplies by a weight does so in this precision from now on."""
    for module in model.modules():
        if hasattr(module, "precision"):
            setattr(module, "precision", precision)  # noqa: B010  (a module's attributes have no types)


def quantised(x: Tensor) -> tuple[Tensor, Tensor]:
    """8-bit numbers and the scale of each row: x is about their product."""
    scale = x.abs().amax(-1, keepdim=True).float().clamp(min=1e-12) / LARGEST
    return (x.float() / scale).clamp(-LARGEST, LARGEST).to(EIGHT), scale


def rowwise_product(a_MK: Tensor, b_NK: Tensor) -> Tensor:
    """a times b transposed, both quantised by rows."""
    if a_MK.is_cuda:
        spare = -a_MK.shape[1] % MULTIPLE
        if spare:  # zeros add nothing to a sum
            a_MK, b_NK = F.pad(a_MK, (0, spare)), F.pad(b_NK, (0, spare))
        (a, a_scale), (b, b_scale) = quantised(a_MK), quantised(b_NK)
        a, b = a.contiguous(), b.contiguous()
        return torch._scaled_mm(a, b.t(), a_scale, b_scale.t(), out_dtype=a_MK.dtype, use_fast_accum=True)
    (a, a_scale), (b, b_scale) = quantised(a_MK), quantised(b_NK)
    return (a.float() @ b.float().t() * a_scale * b_scale.t()).to(a_MK.dtype)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, weight_MD: Tensor) -> Tensor:
        ctx.save_for_backward(x_TD, weight_MD)
        return rowwise_product(x_TD, weight_MD)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        (g_TM,) = gradients
        x_TD, weight_MD = ctx.saved_tensors
        return rowwise_product(g_TM, weight_MD.t()), rowwise_product(g_TM.t(), x_TD.t())


class _Grouped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, weight_EMD: Tensor, sizes_E: Tensor) -> Tensor:
        ctx.save_for_backward(x_ND, weight_EMD, sizes_E)
        return _grouped_rowwise(x_ND, weight_EMD, sizes_E)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        g_NM = gradients[0].contiguous()
        x_ND, weight_EMD, sizes_E = ctx.saved_tensors
        return _grouped_rowwise(g_NM, weight_EMD.mT, sizes_E), _outer(g_NM, x_ND, sizes_E), None


def _grouped_rowwise(x_ND: Tensor, weight_EMD: Tensor, sizes_E: Tensor) -> Tensor:
    x, x_scale = quantised(x_ND)
    weight, weight_scale = quantised(weight_EMD)
    if x_ND.is_cuda:
        scales = x_scale[:, 0], weight_scale[:, :, 0]
        weight_EDM = weight.contiguous().mT
        return torch._scaled_grouped_mm(
            x, weight_EDM, *scales, offs=_ends(sizes_E), out_dtype=x_ND.dtype, use_fast_accum=True
        )
    scale_NM = x_scale * weight_scale[:, :, 0].repeat_interleave(sizes_E, 0, output_size=len(x_ND))
    return (grouped_mm(x.float(), weight.float(), sizes_E) * scale_NM).to(x_ND.dtype)


def _outer(g_NM: Tensor, x_ND: Tensor, sizes_E: Tensor) -> Tensor:
    """The gradient of the weights: for each expert, its rows of g transposed times its rows of x."""
    if _grouped_at_once(x_ND):
        return F.grouped_mm(g_NM.t(), x_ND, offs=_ends(sizes_E))
    parts = zip(*(torch.split(rows, sizes_E.tolist()) for rows in (g_NM, x_ND)), strict=True)
    return torch.stack([g.t() @ x for g, x in parts])


def grouped_mm(x_ND: Tensor, weight_EMD: Tensor, sizes_E: Tensor) -> Tensor:
    if _grouped_at_once(x_ND):
        return F.grouped_mm(x_ND, weight_EMD.mT, offs=_ends(sizes_E))
    # a product for each expert that has rows: on a CPU no slower than torch's grouped product
    parts = zip(torch.split(x_ND, sizes_E.tolist()), weight_EMD.unbind(), strict=True)
    return torch.cat([F.linear(rows_D, weight_MD) for rows_D, weight_MD in parts if len(rows_D)])


def _grouped_at_once(x_ND: Tensor) -> bool:
    return x_ND.dtype == torch.bfloat16 and (x_ND.is_cuda or torch.compiler.is_compiling())


def _ends(sizes_E: Tensor) -> Tensor:
    return sizes_E.cumsum(0, dtype=torch.int32)
