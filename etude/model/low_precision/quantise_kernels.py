"""Triton kernels that quantise a matrix by its rows, or by its rows and by its columns at once.

A product sums along one dimension, and the scales of row-wise FP8 lie along the other. So the backward pass wants of
every operand a second copy, scaled by columns and stored transposed, since the GPU's 8-bit product takes no other
layout. Both copies need all maxima first: one pass takes the maxima of rows and columns, tile by tile, and a second one
reads each tile again, scales it twice and writes it twice, once turned. SwiGLU and its gradient can be made on the way,
in both passes, and are then never written whole. The numbers of plain matrices are those of `products.quantised`, bit
for bit. Knows matrices, not what they are of.
"""

from __future__ import annotations

from itertools import accumulate

import torch
import triton
import triton.language as tl
from torch import Tensor

EIGHT = torch.float8_e4m3fn
LARGEST, UNIT = tl.constexpr(448.0), tl.constexpr(1 / 448)
SMALLEST = tl.constexpr(1e-12)  # of a row's largest number: rows of zeros have a scale too
MULTIPLE = 16  # columns of the turned copy are padded to it with zeros, which add nothing to a sum

# rows and columns of a tile, and warps: of the pass that takes maxima and of the one that writes
MAXIMA, WRITING = (64, 128, 4), (64, 128, 4)
SLOPES = (64, 64, 4)  # two tiles at once
CHUNK = 4096  # numbers of a row at once


@triton.jit
def _rounded(x):
    """float32 masters as the bfloat16 numbers that are multiplied elsewhere."""
    return x.to(tl.bfloat16).to(tl.float32)


@triton.jit
def _gated(gate, up):
    """SwiGLU, rounded where operations of their own would round."""
    return _rounded(_rounded(gate * tl.sigmoid(gate)) * up)


@triton.jit
def _tile(x, x_row, t_T, d_D, T, D, GATED: tl.constexpr):
    """A tile of x, or, where x is gates and what they act on side by side, of what SwiGLU makes of them."""
    real_TD = (t_T < T)[:, None] & (d_D < D)[None, :]
    place_TD = x + t_T.to(tl.int64)[:, None] * x_row + d_D[None, :]
    x_TD = _rounded(tl.load(place_TD, mask=real_TD, other=0.0))
    if GATED:
        x_TD = _gated(x_TD, tl.load(place_TD + D, mask=real_TD, other=0.0).to(tl.float32))
    return x_TD


@triton.jit
def _slopes(x, g, t_T, d_D, T, D):
    """Tiles of the gradients of gates and of what they act on, from those of what SwiGLU made of them."""
    real_TD = (t_T < T)[:, None] & (d_D < D)[None, :]
    row_T = t_T.to(tl.int64)
    place_TD = x + row_T[:, None] * 2 * D + d_D[None, :]
    gate_TD = tl.load(place_TD, mask=real_TD, other=0.0).to(tl.float32)
    up_TD = tl.load(place_TD + D, mask=real_TD, other=0.0).to(tl.float32)
    g_TD = tl.load(g + row_T[:, None] * D + d_D[None, :], mask=real_TD, other=0.0).to(tl.float32)
    open_TD = tl.sigmoid(gate_TD)
    slope_TD = g_TD * up_TD * open_TD * (1.0 + gate_TD * (1.0 - open_TD))
    return _rounded(slope_TD), _rounded(g_TD * _rounded(gate_TD * open_TD))


@triton.jit
def _maximum_of_rows(x_TD, maxima, t_T, T):
    """As the bits of float32: of numbers that are not negative they are ordered as the numbers are."""
    tl.atomic_max(maxima + t_T, tl.max(x_TD, 1).to(tl.int32, bitcast=True), mask=t_T < T, sem="relaxed")


@triton.jit
def _maximum_of_columns(x_TD, maxima, d_D, D):
    tl.atomic_max(maxima + d_D, tl.max(x_TD, 0).to(tl.int32, bitcast=True), mask=d_D < D, sem="relaxed")


@triton.jit
def _write(
    x_TD, row_most, column_most, out, out_row, row_scale, turned, turned_row, column_scale, t_T, d_D, T, PADDED, D
):
    """Scales a tile twice and writes it twice, once turned."""
    row_T = tl.load(row_most + t_T, mask=t_T < T, other=0).to(tl.float32, bitcast=True)
    column_D = tl.load(column_most + d_D, mask=d_D < D, other=0).to(tl.float32, bitcast=True)
    row_T, column_D = tl.maximum(row_T, SMALLEST), tl.maximum(column_D, SMALLEST)
    if tl.program_id(0) == 0:
        tl.store(row_scale + t_T, row_T * UNIT, mask=t_T < T)
    if tl.program_id(1) == 0:
        tl.store(column_scale + d_D, column_D * UNIT, mask=d_D < D)
    by_rows_TD = (x_TD * (LARGEST * tl.div_rn(1.0, row_T))[:, None]).to(tl.float8e4nv)
    real_TD = (t_T < T)[:, None] & (d_D < D)[None, :]
    tl.store(out + t_T.to(tl.int64)[:, None] * out_row + d_D[None, :], by_rows_TD, mask=real_TD)
    by_columns_TD = (x_TD * (LARGEST * tl.div_rn(1.0, column_D))[None, :]).to(tl.float8e4nv)
    place_DT = turned + d_D.to(tl.int64)[:, None] * turned_row + t_T[None, :]
    tl.store(place_DT, tl.trans(by_columns_TD), mask=(d_D < D)[:, None] & (t_T < PADDED)[None, :])


@triton.jit
def maxima_kernel(
    x,
    x_row,
    row_most,
    column_most,
    T,
    D,
    GATED: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    d_D = tl.program_id(0) * BLOCK_D + tl.arange(0, BLOCK_D)
    t_T = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
    x_TD = tl.abs(_tile(x, x_row, t_T, d_D, T, D, GATED))
    _maximum_of_rows(x_TD, row_most, t_T, T)
    _maximum_of_columns(x_TD, column_most, d_D, D)


@triton.jit
def both_kernel(
    x,
    x_row,
    row_most,
    column_most,
    out,
    row_scale,
    turned,
    turned_row,
    column_scale,
    T,
    PADDED,
    D,
    GATED: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    d_D = tl.program_id(0) * BLOCK_D + tl.arange(0, BLOCK_D)
    t_T = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
    x_TD = _tile(x, x_row, t_T, d_D, T, D, GATED)
    _write(x_TD, row_most, column_most, out, D, row_scale, turned, turned_row, column_scale, t_T, d_D, T, PADDED, D)


@triton.jit
def slope_maxima_kernel(x, g, row_most, column_most, T, D, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr):
    d_D = tl.program_id(0) * BLOCK_D + tl.arange(0, BLOCK_D)
    t_T = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
    gate_TD, up_TD = _slopes(x, g, t_T, d_D, T, D)
    gate_TD, up_TD = tl.abs(gate_TD), tl.abs(up_TD)
    _maximum_of_rows(tl.maximum(gate_TD, up_TD), row_most, t_T, T)
    _maximum_of_columns(gate_TD, column_most, d_D, D)
    _maximum_of_columns(up_TD, column_most + D, d_D, D)


@triton.jit
def slopes_kernel(
    x,
    g,
    row_most,
    column_most,
    out,
    row_scale,
    turned,
    turned_row,
    column_scale,
    T,
    PADDED,
    D,
    BLOCK_T: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    d_D = tl.program_id(0) * BLOCK_D + tl.arange(0, BLOCK_D)
    t_T = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
    gate_TD, up_TD = _slopes(x, g, t_T, d_D, T, D)
    width = 2 * D
    _write(
        gate_TD, row_most, column_most, out, width, row_scale, turned, turned_row, column_scale, t_T, d_D, T, PADDED, D
    )
    below = D.to(tl.int64) * turned_row
    _write(
        up_TD,
        row_most,
        column_most + D,
        out + D,
        width,
        row_scale,
        turned + below,
        turned_row,
        column_scale + D,
        t_T,
        d_D,
        T,
        PADDED,
        D,
    )


@triton.jit
def rows_kernel(x, x_row, out, scales, D, CHUNK: tl.constexpr):
    t = tl.program_id(0).to(tl.int64)
    d_D = tl.arange(0, CHUNK)
    most_D = tl.zeros((CHUNK,), tl.float32)
    for start in range(0, D, CHUNK):
        x_D = tl.load(x + t * x_row + start + d_D, mask=start + d_D < D, other=0.0)
        most_D = tl.maximum(most_D, tl.abs(_rounded(x_D)))
    most = tl.maximum(tl.max(most_D, 0), SMALLEST)
    tl.store(scales + t, most * UNIT)
    factor = LARGEST * tl.div_rn(1.0, most)
    for start in range(0, D, CHUNK):
        x_D = _rounded(tl.load(x + t * x_row + start + d_D, mask=start + d_D < D, other=0.0))
        tl.store(out + t * D + start + d_D, (x_D * factor).to(tl.float8e4nv), mask=start + d_D < D)


@torch.library.custom_op("etude::by_rows", mutates_args=())
def by_rows(parts: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Of matrices that lie one below the other: 8-bit numbers [T, D], and the scale of each row."""
    out_TD, scale_T = _by_rows(parts)
    width, start = out_TD.shape[1], 0
    chunk = min(CHUNK, triton.next_power_of_2(width))
    for x in map(_in_rows, parts):
        if len(x):
            rows_kernel[len(x),](x, x.stride(0), out_TD[start:], scale_T[start:], width, chunk)
        start += len(x)
    return out_TD, scale_T


@by_rows.register_fake
def _(parts: list[Tensor]) -> tuple[Tensor, Tensor]:
    return _by_rows(parts)


def _by_rows(parts: list[Tensor]) -> tuple[Tensor, Tensor]:
    rows, like = sum(x.shape[0] for x in parts), parts[0]  # not len(x): a number of tokens may be a symbol here
    return like.new_empty(rows, like.shape[1], dtype=EIGHT), like.new_empty(rows, dtype=torch.float32)


def _in_rows(x: Tensor) -> Tensor:
    return x if x.stride(1) == 1 else x.contiguous()


@torch.library.custom_op("etude::by_rows_and_columns", mutates_args=())
def by_rows_and_columns(parts: list[Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of matrices that lie one below the other: 8-bit numbers [T, D] and the scale of each row; and turned, [D, T] and
    the scale of each column, T padded there."""
    return _quantise([_in_rows(x) for x in parts], parts[0].shape[1], False)


@by_rows_and_columns.register_fake
def _(parts: list[Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _twice(parts[0], sum(x.shape[0] for x in parts), parts[0].shape[1])


@torch.library.custom_op("etude::gated", mutates_args=())
def gated(x_T2D: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same of what SwiGLU makes of gates and what they act on, which lie side by side."""
    return _quantise([x_T2D.contiguous()], x_T2D.shape[1] // 2, True)


@gated.register_fake
def _(x_T2D: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _twice(x_T2D, x_T2D.shape[0], x_T2D.shape[1] // 2)


@torch.library.custom_op("etude::gated_slopes", mutates_args=())
def gated_slopes(x_T2D: Tensor, g_TD: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same of the gradients of gates and what they act on, from those of what SwiGLU made of them."""
    x_T2D, g_TD = x_T2D.contiguous(), g_TD.contiguous()
    (rows, width), found = g_TD.shape, _twice(x_T2D, *x_T2D.shape)
    out_TD, row_scale_T, turned_DT, column_scale_D = found
    maxima, padded = out_TD.new_zeros(rows + 2 * width, dtype=torch.int32), turned_DT.shape[1]
    places = maxima[2 * width :], maxima
    grid = triton.cdiv(width, SLOPES[1]), triton.cdiv(padded, SLOPES[0])
    slope_maxima_kernel[grid](x_T2D, g_TD, *places, rows, width, *SLOPES[:2], num_warps=SLOPES[2])
    outs = out_TD, row_scale_T, turned_DT, padded, column_scale_D
    slopes_kernel[grid](x_T2D, g_TD, *places, *outs, rows, padded, width, *SLOPES[:2], num_warps=SLOPES[2])
    return found


@gated_slopes.register_fake
def _(x_T2D: Tensor, g_TD: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _twice(x_T2D, *x_T2D.shape)


def _quantise(parts: list[Tensor], width: int, gate: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows = sum(len(x) for x in parts)
    found = out_TD, row_scale_T, turned_DT, column_scale_D = _twice(parts[0], rows, width)
    maxima = out_TD.new_zeros(rows + width, dtype=torch.int32)
    starts = [0, *accumulate(map(len, parts))]
    for start, x in zip(starts, parts, strict=False):
        grid = triton.cdiv(width, MAXIMA[1]), triton.cdiv(len(x), MAXIMA[0])
        places = maxima[width + start :], maxima
        maxima_kernel[grid](x, x.stride(0), *places, len(x), width, gate, *MAXIMA[:2], num_warps=MAXIMA[2])
    for start, x in zip(starts, parts, strict=False):
        end = turned_DT.shape[1] if start + len(x) == rows else start + len(x)
        grid = triton.cdiv(width, WRITING[1]), triton.cdiv(end - start, WRITING[0])
        both_kernel[grid](
            x,
            x.stride(0),
            maxima[width + start :],
            maxima,
            out_TD[start:],
            row_scale_T[start:],
            turned_DT[:, start:],
            turned_DT.stride(0),
            column_scale_D,
            len(x),
            end - start,
            width,
            gate,
            *WRITING[:2],
            num_warps=WRITING[2],
        )
    return found


def _twice(like: Tensor, rows: int, width: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    out_TD, row_scale_T = like.new_empty(rows, width, dtype=EIGHT), like.new_empty(rows, dtype=torch.float32)
    padded = (rows + MULTIPLE - 1) // MULTIPLE * MULTIPLE
    return out_TD, row_scale_T, out_TD.new_empty(width, padded), row_scale_T.new_empty(width)
