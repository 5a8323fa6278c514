"""MXFP8, emulated exactly: blocks of 32 numbers along the summed dimension, each with a power of two for its scale.

    e = ceil(log2(largest of the block / 448)),   numbers = e4m3(x / 2^e)          (scale E8M0, numbers E4M3)

What comes back, numbers times 2^e, has four significant bits, so bfloat16 holds it exactly, and a product of two such
matrices in bfloat16 with float32 sums is the product that MXFP8 hardware computes, but for the order of the sums. The
numbers are therefore those of the format and the speed is not: quantising costs what the hardware would save. The three
products of a layer each sum along another dimension and have blocks along it; the transposed copies are quantised from
the numbers before, never from a copy that is rounded already. Knows matrices, not layers.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 32
EIGHT = torch.float8_e4m3fn
LARGEST = 448.0
EXPONENTS = (-127, 127)  # of E8M0


def rounded(x: Tensor) -> Tensor:
    """`x` as MXFP8 along its last dimension has it, in its own dtype."""
    size = x.shape[-1]
    padded = F.pad(x.float(), (0, -size % BLOCK))  # zeros change no block's largest number
    blocks = padded.reshape(*x.shape[:-1], -1, BLOCK)
    # frexp, not log2: an exact power of two must not be rounded up to the next exponent
    mantissa, exponent = torch.frexp(blocks.abs().amax(-1, keepdim=True) / LARGEST)
    exponent = (exponent - (mantissa == 0.5).int()).clamp(*EXPONENTS)
    numbers = torch.ldexp(blocks, -exponent).clamp(-LARGEST, LARGEST).to(EIGHT).float()
    return torch.ldexp(numbers, exponent).flatten(-2)[..., :size].to(x.dtype)


def linear(x_TD: Tensor, weight_MD: Tensor) -> Tensor:
    """x times the transposed weight; both, and the two products of the backward pass, in MXFP8."""
    out_TM: Tensor = _Linear.apply(x_TD, weight_MD)  # type: ignore[no-untyped-call]
    return out_TM


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, weight_MD: Tensor) -> Tensor:
        ctx.save_for_backward(x_TD, weight_MD)
        return rounded(x_TD) @ rounded(weight_MD).mT

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        (g_TM,) = gradients
        x_TD, weight_MD = ctx.saved_tensors
        slope_TD = rounded(g_TM) @ rounded(weight_MD.mT).mT
        slope_MD = rounded(g_TM.flatten(0, -2).mT) @ rounded(x_TD.flatten(0, -2).mT).mT
        return slope_TD, slope_MD
