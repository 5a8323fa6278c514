"""Triton kernels: attention of one query a request over its pages, for grouped heads and for latents.

A request's tokens may be split over several programs, so that few requests still fill the chip; a second kernel joins
what they found. Each program keeps a running maximum and sum, so a page is read once. Places past the end of a request
are never read. Sums are float32; probabilities are rounded to the cache's dtype for their product with the values.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def grouped_kernel(
    q,  # [R, H, X], rows q_row apart
    keys,  # [N, K, B, X]
    values,
    table,  # [R / EACH, M]: so many queries share a line
    lengths,  # [R]
    out,  # [R, H, X], or of the splits [R, H, S, X], float32
    tops,  # [R, H, S]: the logarithm of each split's sum, base 2
    scale,  # of the scores, base 2
    q_row,
    blocks,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP_PAD: tl.constexpr,
    DIMS: tl.constexpr,
    DIMS_PAD: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    SPLITS: tl.constexpr,
    EACH: tl.constexpr,
):
    head, row, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    GROUP: tl.constexpr = HEADS // KV_HEADS
    length = tl.load(lengths + row)
    # Shares of whole tiles, so that no tile is read by two programs.
    share = tl.cdiv(tl.cdiv(length, SPLITS), TILE) * TILE
    start = split * share
    stop = tl.minimum(start + share, length)
    g, d, n = tl.arange(0, GROUP_PAD), tl.arange(0, DIMS_PAD), tl.arange(0, TILE)
    q_at = row.to(tl.int64) * q_row + (head * GROUP + g[:, None]) * DIMS + d[None, :]
    mine = (g[:, None] < GROUP) & (d[None, :] < DIMS)
    q_GX = tl.load(q + q_at, mask=mine, other=0.0)
    # A large finite number: with -inf a split without tokens would compute -inf minus -inf, which is NaN.
    best_G = tl.full([GROUP_PAD], -1.0e30, tl.float32)
    sum_G = tl.zeros([GROUP_PAD], tl.float32)
    out_GX = tl.zeros([GROUP_PAD, DIMS_PAD], tl.float32)
    for first in range(start, stop, TILE):
        place = first + n
        there = place < stop
        block = tl.load(table + (row // EACH) * blocks + place // BLOCK, mask=there, other=0).to(tl.int64)
        at = (block * KV_HEADS + head) * (BLOCK * DIMS) + (place % BLOCK) * DIMS
        k_XN = tl.load(keys + at[None, :] + d[:, None], mask=there[None, :] & (d[:, None] < DIMS), other=0.0)
        v_NX = tl.load(values + at[:, None] + d[None, :], mask=there[:, None] & (d[None, :] < DIMS), other=0.0)
        scores_GN = tl.dot(q_GX, k_XN, input_precision="ieee") * scale
        scores_GN = tl.where(there[None, :], scores_GN, -1.0e30)
        # not the maximum's own rule for what is not a number: scores that are none must not be lost
        new_G = tl.maximum(best_G, tl.max(scores_GN, 1))
        fade_G = tl.exp2(best_G - new_G)
        weights_GN = tl.exp2(scores_GN - new_G[:, None])
        sum_G = sum_G * fade_G + tl.sum(weights_GN, 1)
        out_GX = out_GX * fade_G[:, None] + tl.dot(weights_GN.to(v_NX.dtype), v_NX, input_precision="ieee")
        best_G = new_G
    # Empty rows of a recorded graph have length 0: they give zeros, not 0 / 0.
    whole_G = tl.where(sum_G == 0.0, 1.0, sum_G)
    out_GX = out_GX / whole_G[:, None]
    place_G = (row.to(tl.int64) * HEADS + head * GROUP + g) * SPLITS + split
    tl.store(out + place_G[:, None] * DIMS + d[None, :], out_GX.to(out.dtype.element_ty), mask=mine)
    if SPLITS > 1:
        top_G = tl.where(sum_G == 0.0, -1.0e30, best_G + tl.log2(whole_G))
        tl.store(tops + place_G, top_G, mask=g < GROUP)


@triton.jit
def latent_kernel(
    q,  # [H, R, C]
    turned,  # [R, H, E], rows and heads apart as said: the rotated part of the queries
    latents,  # [N, 1, B, C + E]
    table,
    lengths,
    out,  # [H, R, C], or of the splits [H, R, S, C], float32
    tops,
    scale,
    rows,
    turned_row,
    turned_head,
    blocks,
    HEADS: tl.constexpr,
    HEADS_TILE: tl.constexpr,
    RANK: tl.constexpr,
    RANK_PAD: tl.constexpr,
    EXTRA: tl.constexpr,
    EXTRA_PAD: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    SPLITS: tl.constexpr,
    EACH: tl.constexpr,
):
    part, row, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    DIMS: tl.constexpr = RANK + EXTRA
    length = tl.load(lengths + row)
    share = tl.cdiv(tl.cdiv(length, SPLITS), TILE) * TILE
    start = split * share
    stop = tl.minimum(start + share, length)
    h = part * HEADS_TILE + tl.arange(0, HEADS_TILE)
    c, e, n = tl.arange(0, RANK_PAD), tl.arange(0, EXTRA_PAD), tl.arange(0, TILE)
    mine = (h[:, None] < HEADS) & (c[None, :] < RANK)
    q_HC = tl.load(q + (h[:, None] * rows + row) * RANK + c[None, :], mask=mine, other=0.0)
    turned_at = row.to(tl.int64) * turned_row + h[:, None] * turned_head + e[None, :]
    q_HE = tl.load(turned + turned_at, mask=(h[:, None] < HEADS) & (e[None, :] < EXTRA), other=0.0)
    best_H = tl.full([HEADS_TILE], -1.0e30, tl.float32)
    sum_H = tl.zeros([HEADS_TILE], tl.float32)
    out_HC = tl.zeros([HEADS_TILE, RANK_PAD], tl.float32)
    for first in range(start, stop, TILE):
        place = first + n
        there = place < stop
        block = tl.load(table + (row // EACH) * blocks + place // BLOCK, mask=there, other=0).to(tl.int64)
        at = (block * BLOCK + place % BLOCK) * DIMS
        k_NC = tl.load(latents + at[:, None] + c[None, :], mask=there[:, None] & (c[None, :] < RANK), other=0.0)
        k_NE = tl.load(latents + at[:, None] + RANK + e[None, :], mask=there[:, None] & (e[None, :] < EXTRA), other=0.0)
        scores_HN = tl.dot(q_HC, tl.trans(k_NC), input_precision="ieee")
        scores_HN += tl.dot(q_HE, tl.trans(k_NE), input_precision="ieee")
        scores_HN = tl.where(there[None, :], scores_HN * scale, -1.0e30)
        new_H = tl.maximum(best_H, tl.max(scores_HN, 1))
        fade_H = tl.exp2(best_H - new_H)
        weights_HN = tl.exp2(scores_HN - new_H[:, None])
        sum_H = sum_H * fade_H + tl.sum(weights_HN, 1)
        out_HC = out_HC * fade_H[:, None] + tl.dot(weights_HN.to(k_NC.dtype), k_NC, input_precision="ieee")
        best_H = new_H
    whole_H = tl.where(sum_H == 0.0, 1.0, sum_H)
    out_HC = out_HC / whole_H[:, None]
    place_H = (h * rows + row).to(tl.int64) * SPLITS + split
    tl.store(out + place_H[:, None] * RANK + c[None, :], out_HC.to(out.dtype.element_ty), mask=mine)
    if SPLITS > 1:
        top_H = tl.where(sum_H == 0.0, -1.0e30, best_H + tl.log2(whole_H))
        tl.store(tops + place_H, top_H, mask=h < HEADS)


@triton.jit
def join_kernel(parts, tops, out, DIMS: tl.constexpr, DIMS_PAD: tl.constexpr, SPLITS: tl.constexpr):
    """The splits of one query: [S, X] weighted by their sums."""
    query = tl.program_id(0).to(tl.int64)
    s, d = tl.arange(0, SPLITS), tl.arange(0, DIMS_PAD)
    top_S = tl.load(tops + query * SPLITS + s)
    weight_S = tl.exp2(top_S - tl.max(top_S, 0))
    weight_S = weight_S / tl.sum(weight_S, 0)
    at = (query * SPLITS + s[:, None]) * DIMS + d[None, :]
    parts_SX = tl.load(parts + at, mask=d[None, :] < DIMS, other=0.0)
    tl.store(out + query * DIMS + d, tl.sum(parts_SX * weight_S[:, None], 0).to(out.dtype.element_ty), mask=d < DIMS)
