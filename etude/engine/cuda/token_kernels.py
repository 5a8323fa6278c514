"""Triton kernels over single tokens: embeddings, norms, rotations with the write into the cache, the gate.

What a product with a weight gave is rounded to the model's dtype before it is used again, as it is where these are
operations of their own, so that learner and engine round alike.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def embed_kernel(weight, tokens, sources, sampled, out, DIMS: tl.constexpr, PAD: tl.constexpr):
    t = tl.program_id(0)
    source = tl.load(sources + t)
    token = tl.load(tokens + t)
    if source >= 0:
        token = tl.load(sampled + source)
    d = tl.arange(0, PAD)
    x_D = tl.load(weight + token.to(tl.int64) * DIMS + d, mask=d < DIMS)
    tl.store(out + t.to(tl.int64) * DIMS + d, x_D, mask=d < DIMS)


@triton.jit
def norm_kernel(x, y, weight, summed, out, eps, x_row, DIMS: tl.constexpr, PAD: tl.constexpr, ADD: tl.constexpr):
    t = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, PAD)
    real = d < DIMS
    x_D = tl.load(x + t * x_row + d, mask=real, other=0.0).to(tl.float32)
    if ADD:
        x_D += tl.load(y + t * DIMS + d, mask=real, other=0.0).to(tl.float32)
        # The sum is rounded before its norm is taken, as the learner's own addition is.
        rounded_D = x_D.to(summed.dtype.element_ty)
        tl.store(summed + t * DIMS + d, rounded_D, mask=real)
        x_D = rounded_D.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x_D * x_D, 0) / DIMS + eps)
    w_D = tl.load(weight + d, mask=real, other=0.0).to(tl.float32)
    tl.store(out + t * DIMS + d, (x_D * scale * w_D).to(out.dtype.element_ty), mask=real)


@triton.jit
def pair_kernel(
    weight,  # [V, D]
    ids,  # [R, J], rows ids_row apart
    hidden,  # [T, D]
    next_norm,
    norm,
    out,  # [T, 2 D]
    next_eps,
    eps,
    ids_row,
    J: tl.constexpr,
    DIMS: tl.constexpr,
    PAD: tl.constexpr,
):
    t = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, PAD)
    real = d < DIMS
    token = tl.load(ids + (t // J) * ids_row + t % J).to(tl.int64)
    x_D = tl.load(weight + token * DIMS + d, mask=real, other=0.0).to(tl.float32)
    h_D = tl.load(hidden + t * DIMS + d, mask=real, other=0.0).to(tl.float32)
    x_D *= tl.rsqrt(tl.sum(x_D * x_D, 0) / DIMS + next_eps)
    h_D *= tl.rsqrt(tl.sum(h_D * h_D, 0) / DIMS + eps)
    x_D *= tl.load(next_norm + d, mask=real, other=0.0).to(tl.float32)
    h_D *= tl.load(norm + d, mask=real, other=0.0).to(tl.float32)
    tl.store(out + t * 2 * DIMS + d, x_D.to(out.dtype.element_ty), mask=real)
    tl.store(out + t * 2 * DIMS + DIMS + d, h_D.to(out.dtype.element_ty), mask=real)


@triton.jit
def gate_kernel(x, out, WIDTH: tl.constexpr, TILE: tl.constexpr):
    t = tl.program_id(0).to(tl.int64)
    f = tl.program_id(1) * TILE + tl.arange(0, TILE)
    real = f < WIDTH
    gate_F = tl.load(x + t * 2 * WIDTH + f, mask=real, other=0.0).to(tl.float32)
    up_F = tl.load(x + t * 2 * WIDTH + WIDTH + f, mask=real, other=0.0).to(tl.float32)
    gate_F = (gate_F * tl.sigmoid(gate_F)).to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + t * WIDTH + f, (gate_F * up_F).to(out.dtype.element_ty), mask=real)


@triton.jit
def _turned(low, high, angles, position, d, HALF: tl.constexpr):
    """A rotation of pairs; the angles are rounded to the dtype of what is turned, as in the model."""
    at = position * 2 * HALF + d
    cos = tl.load(angles + at, mask=d < HALF, other=0.0).to(low.dtype).to(tl.float32)[None, :]
    sin = tl.load(angles + at + HALF, mask=d < HALF, other=0.0).to(low.dtype).to(tl.float32)[None, :]
    a, b = low.to(tl.float32), high.to(tl.float32)
    return (a * cos - b * sin).to(low.dtype), (b * cos + a * sin).to(low.dtype)


@triton.jit
def _normed(low, high, weight, d, eps, HALF: tl.constexpr):
    a, b = low.to(tl.float32), high.to(tl.float32)
    scale = tl.rsqrt((tl.sum(a * a, 1) + tl.sum(b * b, 1)) / (2 * HALF) + eps)[:, None]
    w_low = tl.load(weight + d, mask=d < HALF, other=0.0).to(tl.float32)[None, :]
    w_high = tl.load(weight + HALF + d, mask=d < HALF, other=0.0).to(tl.float32)[None, :]
    return (a * scale * w_low).to(low.dtype), (b * scale * w_high).to(low.dtype)


@triton.jit
def place_kernel(
    qkv,  # [T, (H + 2 K) X]
    q_weight,
    k_weight,
    angles,  # [positions, 2, X / 2]
    positions,
    slots,
    keys,  # [N, K, B, X]
    values,
    q_eps,
    k_eps,
    NORM: tl.constexpr,
    HEADS: tl.constexpr,
    HEADS_PAD: tl.constexpr,
    KV_HEADS: tl.constexpr,
    KV_PAD: tl.constexpr,
    HALF: tl.constexpr,
    HALF_PAD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    t = tl.program_id(0).to(tl.int64)
    position, slot = tl.load(positions + t).to(tl.int64), tl.load(slots + t).to(tl.int64)
    DIMS: tl.constexpr = 2 * HALF
    row = qkv + t * (HEADS + 2 * KV_HEADS) * DIMS
    d = tl.arange(0, HALF_PAD)

    h = tl.arange(0, HEADS_PAD)
    at = h[:, None] * DIMS + d[None, :]
    real = (h[:, None] < HEADS) & (d[None, :] < HALF)
    low, high = tl.load(row + at, mask=real, other=0.0), tl.load(row + at + HALF, mask=real, other=0.0)
    if NORM:
        low, high = _normed(low, high, q_weight, d, q_eps, HALF)
    low, high = _turned(low, high, angles, position, d, HALF)
    tl.store(row + at, low, mask=real)
    tl.store(row + at + HALF, high, mask=real)

    k = tl.arange(0, KV_PAD)
    at = k[:, None] * DIMS + d[None, :]
    real = (k[:, None] < KV_HEADS) & (d[None, :] < HALF)
    to = ((slot // BLOCK) * KV_HEADS + k[:, None]) * (BLOCK * DIMS) + (slot % BLOCK) * DIMS + d[None, :]
    row += HEADS * DIMS
    low, high = tl.load(row + at, mask=real, other=0.0), tl.load(row + at + HALF, mask=real, other=0.0)
    if NORM:
        low, high = _normed(low, high, k_weight, d, k_eps, HALF)
    low, high = _turned(low, high, angles, position, d, HALF)
    tl.store(row + at, low, mask=real)
    tl.store(row + at + HALF, high, mask=real)
    tl.store(keys + to, low, mask=real)
    tl.store(keys + to + HALF, high, mask=real)
    row += KV_HEADS * DIMS
    tl.store(values + to, tl.load(row + at, mask=real, other=0.0), mask=real)
    tl.store(values + to + HALF, tl.load(row + at + HALF, mask=real, other=0.0), mask=real)


@triton.jit
def place_latent_kernel(
    q,  # [T, H, P + E], of which the last E are rotated
    kv,  # [T, C + E], rows kv_row apart
    weight,
    angles,
    positions,
    slots,
    cache,  # [N, 1, B, C + E]
    eps,
    kv_row,
    INTERLEAVED: tl.constexpr,
    HEADS: tl.constexpr,
    HEADS_PAD: tl.constexpr,
    PLAIN: tl.constexpr,
    HALF: tl.constexpr,
    HALF_PAD: tl.constexpr,
    RANK: tl.constexpr,
    RANK_PAD: tl.constexpr,
):
    t = tl.program_id(0).to(tl.int64)
    position, slot = tl.load(positions + t).to(tl.int64), tl.load(slots + t).to(tl.int64)
    STEP: tl.constexpr = 2 if INTERLEAVED else 1
    APART: tl.constexpr = 1 if INTERLEAVED else HALF
    d, h, c = tl.arange(0, HALF_PAD), tl.arange(0, HEADS_PAD), tl.arange(0, RANK_PAD)
    one = tl.arange(0, 1)

    head = q + (t * HEADS + h[:, None]) * (PLAIN + 2 * HALF) + PLAIN
    real = (h[:, None] < HEADS) & (d[None, :] < HALF)
    low = tl.load(head + STEP * d[None, :], mask=real, other=0.0)
    high = tl.load(head + STEP * d[None, :] + APART, mask=real, other=0.0)
    row = kv + t * kv_row
    turn = row + RANK + 0 * one[:, None]
    few = (one[:, None] < 1) & (d[None, :] < HALF)
    k_low = tl.load(turn + STEP * d[None, :], mask=few, other=0.0)
    k_high = tl.load(turn + STEP * d[None, :] + APART, mask=few, other=0.0)
    x_C = tl.load(row + c, mask=c < RANK, other=0.0).to(tl.float32)
    tl.debug_barrier()  # a pair's new places are others' old ones
    low, high = _turned(low, high, angles, position, d, HALF)
    tl.store(head + d[None, :], low, mask=real)
    tl.store(head + d[None, :] + HALF, high, mask=real)
    k_low, k_high = _turned(k_low, k_high, angles, position, d, HALF)
    scale = tl.rsqrt(tl.sum(x_C * x_C, 0) / RANK + eps)
    w_C = tl.load(weight + c, mask=c < RANK, other=0.0).to(tl.float32)
    latent_C = (x_C * scale * w_C).to(cache.dtype.element_ty)
    to = cache + slot * (RANK + 2 * HALF)
    tl.store(row + c, latent_C, mask=c < RANK)
    tl.store(to + c, latent_C, mask=c < RANK)
    tl.store(turn + d[None, :], k_low, mask=few)
    tl.store(turn + d[None, :] + HALF, k_high, mask=few)
    turn = to + RANK + 0 * one[:, None]
    tl.store(turn + d[None, :], k_low, mask=few)
    tl.store(turn + d[None, :] + HALF, k_high, mask=few)
