"""In which numbers a decoder computes: the one seam through which its linear and grouped products go.

    float32     weights and activations as they are (any dtype: an engine's bfloat16 model computes in bfloat16)
    bfloat16    weights stay as they are (float32 masters); each is rounded where it is used, activations are bfloat16
    fp8         like bfloat16, but the products of the blocks' projections and of the experts take 8-bit operands
    mxfp8       the same products in blocks of 32 with scales of their own, emulated (mxfp8.py)

FP8 is row-wise: every row of both operands of a product has a scale of its own, along the dimension that is summed, so
no token's numbers depend on another token's. Both products of the backward pass are made the same way, from copies
scaled along their own summed dimension, which are made with the first; of the experts only the product that gives the
input's gradient, since the tokens of an expert are no multiple of 16. Router, head, embeddings and norms are never
quantised. Weights are rounded to the dtype of the activations first, which is what an engine with bfloat16 weights has
of them; their 8-bit copies can be kept until the weights move (`hold`).

A GPU multiplies the 8-bit numbers themselves, which kernels of our own make (quantise_kernels.py); elsewhere they are
multiplied as float32, which gives the same sums but for the order of their terms. Knows shapes of operands, not layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from etude.core.errors import EtudeError
from etude.model.low_precision import mxfp8

EIGHT = torch.float8_e4m3fn
LARGEST = 448.0  # of its numbers
MULTIPLE = 16  # a GPU's 8-bit product wants dimensions that are multiples of this

Quantised = tuple[Tensor, Tensor]  # 8-bit numbers [R, K] and the scale of each row [R]
Twice = tuple[Tensor, Tensor, Tensor, Tensor]  # a matrix quantised by its rows, and its transpose by its own


class Precision:
    """Products with weights rounded to the dtype of what they act on: float32, or bfloat16 from float32 masters."""

    dtype: torch.dtype | None = None  # of activations; None: that of the embedding

    # Each precision is one object, also in a copied model: `is PLAIN` has to stay true there.
    def __deepcopy__(self, memo: dict[int, Any]) -> Precision:
        return self

    def linear(self, x_TD: Tensor, weight_MD: Tensor, bias_M: Tensor | None = None) -> Tensor:
        bias_M = None if bias_M is None else bias_M.to(x_TD.dtype)
        return F.linear(x_TD, weight_MD.to(x_TD.dtype), bias_M)

    def joined(self, x_TD: Tensor, weights: Sequence[Tensor], held: Twice | None = None) -> Tensor:
        """Times several weights, one below the other. `held`: what `hold` made of them."""
        return F.linear(x_TD, torch.cat([weight_MD.to(x_TD.dtype) for weight_MD in weights]))

    def grouped(self, x_ND: Tensor, weight_EMD: Tensor, sizes_E: Tensor) -> Tensor:
        """Rows sorted by expert, `sizes_E` of each, times the transposed weight of their expert."""
        return grouped_mm(x_ND, weight_EMD.to(x_ND.dtype), sizes_E)


class BFloat16(Precision):
    dtype = torch.bfloat16


class RowwiseFP8(BFloat16):
    def linear(self, x_TD: Tensor, weight_MD: Tensor, bias_M: Tensor | None = None) -> Tensor:
        if not fits(weight_MD):
            return super().linear(x_TD, weight_MD, bias_M)
        out_TM = self.joined(x_TD, (weight_MD,))
        return out_TM if bias_M is None else out_TM + bias_M.to(x_TD.dtype)

    def joined(self, x_TD: Tensor, weights: Sequence[Tensor], held: Twice | None = None) -> Tensor:
        if not all(fits(weight_MD) for weight_MD in weights):
            return super().joined(x_TD, weights)
        plain = [weight_MD.detach() for weight_MD in weights]
        if not torch.is_grad_enabled():
            rows = by_rows(plain, x_TD.dtype) if held is None else held[:2]
            return product(*by_rows((x_TD,), x_TD.dtype), *rows, x_TD.dtype)
        twice = by_rows_and_columns(plain, x_TD.dtype) if held is None else held
        out_TM: Tensor = _Linear.apply(x_TD, *twice, *weights)  # type: ignore[no-untyped-call]
        return out_TM

    def grouped(self, x_ND: Tensor, weight_EMD: Tensor, sizes_E: Tensor) -> Tensor:
        if not fits(weight_EMD):
            return super().grouped(x_ND, weight_EMD, sizes_E)
        out_NM: Tensor = _Grouped.apply(x_ND, weight_EMD.to(x_ND.dtype), sizes_E)  # type: ignore[no-untyped-call]
        return out_NM


class EmulatedMXFP8(BFloat16):
    def linear(self, x_TD: Tensor, weight_MD: Tensor, bias_M: Tensor | None = None) -> Tensor:
        out_TM = mxfp8.linear(x_TD, weight_MD.to(x_TD.dtype))
        return out_TM if bias_M is None else out_TM + bias_M.to(x_TD.dtype)

    def joined(self, x_TD: Tensor, weights: Sequence[Tensor], held: Twice | None = None) -> Tensor:
        return self.linear(x_TD, torch.cat([weight_MD.to(x_TD.dtype) for weight_MD in weights]))

    def grouped(self, x_ND: Tensor, weight_EMD: Tensor, sizes_E: Tensor) -> Tensor:
        parts = zip(torch.split(x_ND, sizes_E.tolist()), weight_EMD.to(x_ND.dtype).unbind(), strict=True)
        products = [mxfp8.linear(rows_D, weight_MD) for rows_D, weight_MD in parts if len(rows_D)]
        return torch.cat(products) if products else F.linear(x_ND, weight_EMD[0].to(x_ND.dtype))


def fits(weight: Tensor) -> bool:
    """Whether a GPU's 8-bit product takes it."""
    return not any(size % MULTIPLE for size in weight.shape[-2:])


PLAIN = Precision()
PRECISIONS = {"float32": PLAIN, "bfloat16": BFloat16(), "fp8": RowwiseFP8(), "mxfp8": EmulatedMXFP8()}


def choose(name: str, device: str) -> Precision:
    """The precision of a setting; `auto` is what a device is made for."""
    if name == "auto":
        name = "bfloat16" if torch.device(device).type == "cuda" else "float32"
    if name not in PRECISIONS:
        raise EtudeError(f"precision is {name!r}; it is one of auto, {', '.join(PRECISIONS)}")
    if name == "fp8" and torch.device(device).type == "cuda":
        if torch.cuda.get_device_capability(device) < (8, 9):
            raise EtudeError("precision is 'fp8', which this GPU cannot multiply; take 'bfloat16'")
        import etude.model.low_precision.quantise_kernels  # noqa: F401  (it makes its operations known to torch)
    return PRECISIONS[name]


class Linear(nn.Linear):
    """A projection inside a block."""

    precision: Precision = PLAIN
    held: Twice | None = None  # 8-bit copies of the weight, or of all those that it is the first of side by side
    held_of: tuple[tuple[int, int], ...] = ()  # which weights these are of, and how often each had been written to

    def forward(self, x: Tensor) -> Tensor:
        held = held_now(self)
        if held is not None:
            return self.precision.joined(x, (self.weight,), held)
        return self.precision.linear(x, self.weight, self.bias)


def held_now(linear: Linear) -> Twice | None:
    """What `hold` made of its weight."""
    # only where a compiler reads: `hold` was called just before that runs, and nobody else looks whether it was
    return linear.held if torch.compiler.is_compiling() else None


def side_by_side(x_TD: Tensor, projections: Sequence[nn.Module]) -> list[Tensor]:
    """What several projections of the same input give.

    Where activations are smaller than the weights, which are rounded anyway, as one product: it is larger, and so is
    the one that gives the input's gradient.
    """
    linears = joinable(projections)
    if linears is None:
        return [p(x_TD) for p in projections]
    weights = [linear.weight for linear in linears]
    joined_TM = linears[0].precision.joined(x_TD, weights, held_now(linears[0]))
    return list(torch.split(joined_TM, [len(weight_MD) for weight_MD in weights], -1))


def joinable(projections: Sequence[nn.Module]) -> list[Linear] | None:
    """The projections, if they are plain ones whose weights are rounded when they are used."""
    linears = [p for p in projections if isinstance(p, Linear)]  # not those with adapters
    biased = any(getattr(p, "bias", None) is not None for p in projections)
    return None if biased or len(linears) < len(projections) or linears[0].precision is PLAIN else linears


@torch.no_grad()
def hold(projections: Sequence[nn.Module]) -> None:
    """Keeps 8-bit copies of weights that act side by side, until one of them is written to: a step has many batches."""
    linears = joinable(projections)
    if linears is None or not isinstance(linears[0].precision, RowwiseFP8):
        return
    weights, first = [linear.weight.detach() for linear in linears], linears[0]
    # An address or a count of writes that changed makes the copies old; optim.py counts the fused writes.
    written = tuple((weight_MD.data_ptr(), weight_MD._version) for weight_MD in weights)
    if first.held_of != written and all(map(fits, weights)):
        first.held = None  # its memory may go before the next copies come
        first.held, first.held_of = by_rows_and_columns(weights, torch.bfloat16), written


def set_precision(model: nn.Module, precision: Precision) -> None:
    """Everything inside `model` that multiplies by a weight does so in this precision from now on."""
    for module in model.modules():
        if hasattr(module, "precision"):
            setattr(module, "precision", precision)  # noqa: B010  (a module's attributes have no types)
        if isinstance(module, Linear):
            module.held, module.held_of = None, ()


def quantised(x: Tensor) -> tuple[Tensor, Tensor]:
    """8-bit numbers and the scale of each row: x is about their product."""
    # A row of zeros has no largest entry to divide by.
    largest = x.abs().amax(-1, keepdim=True).float().clamp(min=1e-12)
    return (x.float() * (largest.reciprocal() * LARGEST)).clamp(-LARGEST, LARGEST).to(EIGHT), largest * (1 / LARGEST)


def by_rows(parts: Sequence[Tensor], dtype: torch.dtype) -> Quantised:
    """Matrices one below the other, rounded to `dtype` and quantised."""
    if parts[0].is_cuda:
        found: Quantised = torch.ops.etude.by_rows(list(parts))
        return found
    numbers, scale = quantised(torch.cat([part.to(dtype) for part in parts]))
    return numbers, scale[:, 0]


def by_rows_and_columns(parts: Sequence[Tensor], dtype: torch.dtype) -> Twice:
    """The same twice: the matrix, and its transpose, whose rows a GPU pads to a multiple of 16."""
    if parts[0].is_cuda:
        found: Twice = torch.ops.etude.by_rows_and_columns(list(parts))
        return found
    whole = torch.cat([part.to(dtype) for part in parts])
    return *by_rows((whole,), dtype), *by_rows((whole.t(),), dtype)


def product(a_MK: Tensor, a_scale_M: Tensor, b_NK: Tensor, b_scale_N: Tensor, dtype: torch.dtype) -> Tensor:
    """a times b transposed."""
    if a_MK.is_cuda:
        scales = a_scale_M[:, None], b_scale_N[None]
        # Exact accumulation was no better: the same run ended at a loss of 1.204, and at 1.191 with this.
        return torch._scaled_mm(a_MK, b_NK.t(), *scales, out_dtype=dtype, use_fast_accum=True)
    return (a_MK.float() @ b_NK.float().t() * a_scale_M[:, None] * b_scale_N).to(dtype)


class _Linear(torch.autograd.Function):
    """Weights come twice: quantised, to be multiplied, and as they are, to get a gradient."""

    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, *arguments: Tensor) -> Tensor:
        weight, weight_scale, *turned = arguments[:4]
        x, x_scale, *x_turned = by_rows_and_columns((x_TD,), x_TD.dtype)
        ctx.save_for_backward(*turned, *x_turned)
        ctx.weights = [(len(weight_MD), weight_MD.dtype) for weight_MD in arguments[4:]]
        return product(x, x_scale, weight, weight_scale, x_TD.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (g_TM,) = gradients
        g, g_scale, g_turned, g_turned_scale = by_rows_and_columns((g_TM,), g_TM.dtype)
        turned, turned_scale, x_turned, x_turned_scale = ctx.saved_tensors
        slope_TD = product(g, g_scale, turned, turned_scale, g_TM.dtype)
        slope_MD = product(g_turned, g_turned_scale, x_turned, x_turned_scale, g_TM.dtype)
        parts = torch.split(slope_MD, [rows for rows, _ in ctx.weights])
        slopes = [part_MD.to(dtype) for part_MD, (_, dtype) in zip(parts, ctx.weights, strict=True)]
        return slope_TD, None, None, None, None, *slopes


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
    products = [F.linear(rows_D, weight_MD) for rows_D, weight_MD in parts if len(rows_D)]
    # of no rows at all: still a product, whose gradient is zeros, since other ranks wait for this one's
    return torch.cat(products) if products else F.linear(x_ND, weight_EMD[0])


def _grouped_at_once(x_ND: Tensor) -> bool:
    return x_ND.dtype == torch.bfloat16 and (x_ND.is_cuda or torch.compiler.is_compiling())


def _ends(sizes_E: Tensor) -> Tensor:
    return sizes_E.cumsum(0, dtype=torch.int32)
