"""Weights as checkpoints store them in fewer bits: numbers to tensors and back, exactly.

Two formats, both of matrices [M, N]:

    FP8 blocks    what DeepSeek-V3 stores: `weight` as float8_e4m3fn, and `weight_scale_inv` with one float32 for each
                  block of 128 x 128, the blocks at the lower and right edge cut off. The value is fp8 * scale; the
                  `inv` means the inverse of what the values were multiplied by.
    packed INT4   what compressed-tensors calls pack-quantized and Kimi stores: `weight_packed` int32 [M, N/8], eight
                  values a word, the lowest four bits first, each stored plus 8; `weight_scale` [M, N/group]; the
                  value is int4 * scale. A row that does not fill its last word or its last group ends in padding.

Quantising what was dequantised, with the stored scales, gives the stored bytes again. Knows nothing of files or names.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

FP8 = torch.float8_e4m3fn
FP8_BLOCK = (128, 128)
FP8_MAX = 448.0
INT4_IN_WORD = 8
INT4_OFFSET = 8  # -8..7 is stored as 0..15
INT4_MAX = 7  # scales are chosen by it, so that a group is symmetric


def blocks(size: int, block: int) -> int:
    """How many blocks of one dimension so many entries fill, the last one perhaps in part."""
    return -(-size // block)


# FP8 in blocks


def fp8_scale(weight_MN: Tensor, block: tuple[int, int] = FP8_BLOCK) -> Tensor:
    """The float32 scales [blocks of M, blocks of N] that bring each block's largest entry to the largest fp8."""
    rows, columns = (blocks(size, step) for size, step in zip(weight_MN.shape, block, strict=True))
    whole = F.pad(weight_MN.float().abs(), (0, columns * block[1] - weight_MN.shape[1]))
    whole = F.pad(whole, (0, 0, 0, rows * block[0] - weight_MN.shape[0]))
    largest = whole.view(rows, block[0], columns, block[1]).amax((1, 3))
    return torch.where(largest > 0, largest / FP8_MAX, 1.0)


def quantise_fp8(weight_MN: Tensor, scale: Tensor, block: tuple[int, int] = FP8_BLOCK) -> Tensor:
    values = weight_MN.to(torch.float32, copy=True)
    for rows, scale_N in _bands(values, scale, block):
        rows.div_(scale_N)
    return values.clamp_(-FP8_MAX, FP8_MAX).to(FP8)


def dequantise_fp8(stored_MN: Tensor, scale: Tensor, block: tuple[int, int] = FP8_BLOCK) -> Tensor:
    """float32 [M, N]."""
    values = stored_MN.float()
    for rows, scale_N in _bands(values, scale, block):
        rows.mul_(scale_N)
    return values


def _bands(values_MN: Tensor, scale: Tensor, block: tuple[int, int]) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows that share their scales, and the scale of each column: the scales of all entries never exist at once."""
    for rows, scales in zip(torch.split(values_MN, block[0]), scale.float(), strict=True):
        yield rows, scales.repeat_interleave(block[1])[: values_MN.shape[1]]


# INT4, eight in a word


def int4_scale(weight_MN: Tensor, group: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """The scales [M, groups of N] that bring each group's largest entry to 7."""
    columns = blocks(weight_MN.shape[1], group)
    whole = F.pad(weight_MN.float().abs(), (0, columns * group - weight_MN.shape[1]))
    largest = whole.view(-1, columns, group).amax(2)
    return torch.where(largest > 0, largest / INT4_MAX, 1.0).to(dtype)


def quantise_int4(weight_MN: Tensor, scale: Tensor, group: int) -> Tensor:
    """int32 [M, N/8]."""
    values = weight_MN.to(torch.float32, copy=True)
    for columns, scale_MG in _groups(values, scale, group):
        columns.div_(scale_MG)
    return pack_int4(values.round_().clamp_(-INT4_OFFSET, INT4_MAX))


def dequantise_int4(packed: Tensor, scale: Tensor, columns: int, group: int) -> Tensor:
    """float32 [M, columns]; rounded to bfloat16 it is what compressed-tensors computes in bfloat16."""
    values = unpack_int4(packed, columns).float()
    for part, scale_MG in _groups(values, scale, group):
        part.mul_(scale_MG)
    return values


def pack_int4(values_MN: Tensor) -> Tensor:
    """Integers from -8 to 7 -> int32 words; what is missing of the last word is zero bits."""
    whole = F.pad(values_MN.to(torch.int32) + INT4_OFFSET, (0, -values_MN.shape[1] % INT4_IN_WORD))
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=values_MN.device)
    # disjoint bits, so their sum is their union; the eighth value may reach the sign bit, as int32 wraps around
    words = (whole.view(whole.shape[0], -1, INT4_IN_WORD) << shifts).sum(2, dtype=torch.int32)
    return words.contiguous()


def unpack_int4(packed: Tensor, columns: int) -> Tensor:
    """int32 words -> int8 numbers from -8 to 7, without the padding."""
    bytes_MB = packed.contiguous().view(torch.uint8)  # the lowest byte of a word first, as on every machine of today
    pairs_MB2 = torch.stack((bytes_MB & 15, bytes_MB >> 4), 2)
    return pairs_MB2.flatten(1)[:, :columns].to(torch.int8) - INT4_OFFSET


def _groups(values_MN: Tensor, scale: Tensor, group: int) -> Iterator[tuple[Tensor, Tensor]]:
    """All whole groups [M, groups, columns of one] and their scales; then the last, cut off one, if there is any."""
    whole = values_MN.shape[1] // group
    yield values_MN[:, : whole * group].view(len(values_MN), whole, group), scale[:, :whole, None].float()
    if whole < scale.shape[1]:
        yield values_MN[:, None, whole * group :], scale[:, whole:, None].float()
