"""Weights in fewer bits, as the makers of checkpoints write them: what `quantised_formats` reads.

The scales are those of the reference quantisers: DeepSeek's for FP8 (the largest entry of a block becomes the largest
number), compressed-tensors' for INT4 (the largest entry of a group becomes 7.5 steps, half of the range of 15). Knows
nothing of files or names.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from etude.model.checkpoint.quantised_formats import (
    FP8,
    FP8_BLOCK,
    INT4_IN_WORD,
    INT4_OFFSET,
    bands,
    blocks,
    groups,
)

FP8_MAX = 448.0
INT4_MAX = 7
INT4_REACH = 7.5  # steps to the largest entry of a group: it is rounded to -8 below, and cut to 7 above


def fp8_scale(weight_MN: Tensor, block: tuple[int, int] = FP8_BLOCK) -> Tensor:
    """The float32 scales [blocks of M, blocks of N] that bring each block's largest entry to the largest fp8."""
    rows, columns = (blocks(size, step) for size, step in zip(weight_MN.shape, block, strict=True))
    whole = F.pad(weight_MN.float().abs(), (0, columns * block[1] - weight_MN.shape[1]))
    whole = F.pad(whole, (0, 0, 0, rows * block[0] - weight_MN.shape[0]))
    largest = whole.view(rows, block[0], columns, block[1]).amax((1, 3))
    return torch.where(largest > 0, largest / FP8_MAX, 1.0)


def quantise_fp8(weight_MN: Tensor, scale: Tensor, block: tuple[int, int] = FP8_BLOCK) -> Tensor:
    values = weight_MN.to(torch.float32, copy=True)
    for rows, scale_N in bands(values, scale, block):
        rows.div_(scale_N)
    return values.clamp_(-FP8_MAX, FP8_MAX).to(FP8)


def int4_scale(weight_MN: Tensor, group: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """The scales [M, groups of N], for groups of zeros the smallest step that the dtype knows."""
    columns = blocks(weight_MN.shape[1], group)
    whole = F.pad(weight_MN.float().abs(), (0, columns * group - weight_MN.shape[1]))
    largest = whole.view(-1, columns, group).amax(2)
    scale = (largest / INT4_REACH).to(dtype)
    return torch.where(scale > 0, scale, torch.finfo(dtype).eps)


def quantise_int4(weight_MN: Tensor, scale: Tensor, group: int) -> Tensor:
    """int32 [M, N/8]."""
    values = weight_MN.to(torch.float32, copy=True)
    for columns, scale_MG in groups(values, scale, group):
        columns.div_(scale_MG)
    return pack_int4(values.round_().clamp_(-INT4_OFFSET, INT4_MAX))


def pack_int4(values_MN: Tensor) -> Tensor:
    """Integers from -8 to 7 -> int32 words; what is missing of the last word is zero bits."""
    whole = F.pad(values_MN.to(torch.int32) + INT4_OFFSET, (0, -values_MN.shape[1] % INT4_IN_WORD))
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=values_MN.device)
    # disjoint bits, so their sum is their union; the eighth value may reach the sign bit, as int32 wraps around
    words = (whole.view(whole.shape[0], -1, INT4_IN_WORD) << shifts).sum(2, dtype=torch.int32)
    return words.contiguous()
