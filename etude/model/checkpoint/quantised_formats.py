"""Weights as checkpoints store them in fewer bits, read as tensors.

Two formats, both of matrices [M, N]:

    FP8 blocks    what DeepSeek-V3 stores: `weight` as float8_e4m3fn, and `weight_scale_inv` with one float32 for each
                  block of 128 x 128, the blocks at the lower and right edge cut off. The value is fp8 * scale; the
                  `inv` means the inverse of what the values were multiplied by.
    packed INT4   what compressed-tensors calls pack-quantized and Kimi stores: `weight_packed` int32 [M, N/8], eight
                  values a word, the lowest four bits first, each stored plus 8; `weight_scale` [M, N/group]; the
                  value is int4 * scale. A row that does not fill its last word or its last group ends in padding.

Exact: quantising what was read, with the stored scales, gives the stored bytes again (the tests do). Knows nothing of
files or names.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

FP8 = torch.float8_e4m3fn
FP8_BLOCK = (128, 128)
INT4_IN_WORD = 8
INT4_OFFSET = 8  # -8..7 is stored as 0..15


def blocks(size: int, block: int) -> int:
    """How many blocks of one dimension so many entries fill, the last one perhaps in part."""
    return -(-size // block)


# FP8 in blocks


def dequantise_fp8(stored_MN: Tensor, scale: Tensor, block: tuple[int, int] = FP8_BLOCK) -> Tensor:
    """float32 [M, N]."""
    values = stored_MN.float()
    for rows, scale_N in bands(values, scale, block):
        rows.mul_(scale_N)
    return values


def bands(values_MN: Tensor, scale: Tensor, block: tuple[int, int]) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows that share their scales, and the scale of each column: the scales of all entries never exist at once."""
    for rows, scales in zip(torch.split(values_MN, block[0]), scale.float(), strict=True):
        yield rows, scales.repeat_interleave(block[1])[: values_MN.shape[1]]


# INT4, eight in a word


def dequantise_int4(packed: Tensor, scale: Tensor, columns: int, group: int) -> Tensor:
    """float32 [M, columns]; rounded to bfloat16 it is what compressed-tensors computes in bfloat16."""
    values = unpack_int4(packed, columns).float()
    for part, scale_MG in groups(values, scale, group):
        part.mul_(scale_MG)
    return values


def unpack_int4(packed: Tensor, columns: int) -> Tensor:
    """int32 words -> int8 numbers from -8 to 7, without the padding."""
    bytes_MB = packed.contiguous().view(torch.uint8)  # the lowest byte of a word first, as on every machine of today
    pairs_MB2 = torch.stack((bytes_MB & 15, bytes_MB >> 4), 2)
    return pairs_MB2.flatten(1)[:, :columns].to(torch.int8) - INT4_OFFSET


def groups(values_MN: Tensor, scale: Tensor, group: int) -> Iterator[tuple[Tensor, Tensor]]:
    """All whole groups [M, groups, columns of one] and their scales; then the last, cut off one, if there is any."""
    whole = values_MN.shape[1] // group
    yield values_MN[:, : whole * group].view(len(values_MN), whole, group), scale[:, :whole, None].float()
    if whole < scale.shape[1]:
        yield values_MN[:, None, whole * group :], scale[:, whole:, None].float()
