"""Triton kernels for few tokens, where a product with a weight is nothing but reading it once.

One program makes a few outputs and reads whole rows of the weight for them; the norm before and the gate behind cost
no launch of their own. Experts of few tokens are read the same way, output by output, with nothing sorted. Sums are
float32, and what stands for the result of an operation is rounded as that would be.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def thin_kernel(
    x,  # [1, D]
    y,  # [1, D], added to x
    norm,  # [D]
    weight,  # [N, D], or [2 N, D] with a gate
    bias,  # [N]
    out,  # [1, N]
    summed,  # [1, D], x + y
    eps,
    outputs,
    DIMS: tl.constexpr,
    PAD: tl.constexpr,
    ADD: tl.constexpr,
    NORM: tl.constexpr,
    BIAS: tl.constexpr,
    GATE: tl.constexpr,
    TILE: tl.constexpr,
    STRIDE: tl.constexpr,
):
    n = tl.program_id(0) * TILE + tl.arange(0, TILE)
    real = n[:, None] < outputs
    scale = 1.0
    # asked for before the norm is computed, so that the memory is not idle meanwhile
    s = tl.arange(0, STRIDE)
    at = n[:, None].to(tl.int64) * DIMS + s[None, :]
    there = real & (s[None, :] < DIMS)
    w_ND = tl.load(weight + at, mask=there, other=0.0)
    if GATE:
        u_ND = tl.load(weight + outputs * DIMS + at, mask=there, other=0.0)
    if NORM:
        d = tl.arange(0, PAD)
        x_D = tl.load(x + d, mask=d < DIMS, other=0.0).to(tl.float32)
        if ADD:
            x_D += tl.load(y + d, mask=d < DIMS, other=0.0).to(tl.float32)
            rounded_D = x_D.to(summed.dtype.element_ty)
            # All programs compute the sum, as each needs all of it; one writes it.
            if tl.program_id(0) == 0:
                tl.store(summed + d, rounded_D, mask=d < DIMS)
            x_D = rounded_D.to(tl.float32)
        scale = tl.rsqrt(tl.sum(x_D * x_D, 0) / DIMS + eps)
    total = tl.zeros([TILE, STRIDE], tl.float32)
    gated = tl.zeros([TILE, STRIDE], tl.float32)
    for first in tl.static_range(0, DIMS, STRIDE):
        d = first + tl.arange(0, STRIDE)
        if first > 0:
            at = n[:, None].to(tl.int64) * DIMS + d[None, :]
            there = real & (d[None, :] < DIMS)
            w_ND = tl.load(weight + at, mask=there, other=0.0)
            if GATE:
                u_ND = tl.load(weight + outputs * DIMS + at, mask=there, other=0.0)
        x_S = tl.load(x + d, mask=d < DIMS, other=0.0).to(tl.float32)
        if NORM:
            if ADD:
                x_S += tl.load(y + d, mask=d < DIMS, other=0.0).to(tl.float32)
                x_S = x_S.to(x.dtype.element_ty).to(tl.float32)
            x_S = x_S * scale * tl.load(norm + d, mask=d < DIMS, other=0.0).to(tl.float32)
            x_S = x_S.to(x.dtype.element_ty).to(tl.float32)
        total += w_ND.to(tl.float32) * x_S[None, :]
        if GATE:
            gated += u_ND.to(tl.float32) * x_S[None, :]
    out_N = tl.sum(total, 1)
    if GATE:
        gate_N = out_N.to(x.dtype.element_ty).to(tl.float32)
        gate_N = (gate_N * tl.sigmoid(gate_N)).to(x.dtype.element_ty).to(tl.float32)
        out_N = gate_N * tl.sum(gated, 1).to(x.dtype.element_ty).to(tl.float32)
    if BIAS:
        out_N += tl.load(bias + n, mask=n < outputs, other=0.0).to(tl.float32)
    tl.store(out + n, out_N.to(out.dtype.element_ty), mask=n < outputs)


@triton.jit
def _add_two(a, b, c, d):
    return a + c, b + d


@triton.jit
def _add_four(a, b, c, d, e, f, g, h):
    return a + e, b + f, c + g, d + h


@triton.jit
def _summed(x, y, summed, first, d, DIMS: tl.constexpr, ADD: tl.constexpr):
    """x + y, rounded; written by the first program."""
    x_D = tl.load(x + d, mask=d < DIMS, other=0.0).to(tl.float32)
    if ADD:
        x_D += tl.load(y + d, mask=d < DIMS, other=0.0).to(tl.float32)
        rounded_D = x_D.to(summed.dtype.element_ty)
        if first:
            tl.store(summed + d, rounded_D, mask=d < DIMS)
        x_D = rounded_D.to(tl.float32)
    return x_D


@triton.jit
def _normed_part(x, y, w_S, scale, d, DIMS: tl.constexpr, ADD: tl.constexpr, NORM: tl.constexpr):
    x_S = tl.load(x + d, mask=d < DIMS, other=0.0).to(tl.float32)
    if NORM:
        if ADD:
            x_S += tl.load(y + d, mask=d < DIMS, other=0.0).to(tl.float32)
            x_S = x_S.to(x.dtype.element_ty).to(tl.float32)
        x_S = (x_S * scale * w_S).to(x.dtype.element_ty).to(tl.float32)
    return x_S[None, :]


@triton.jit
def _gated(gate_N, up_N, like):
    gate_N = gate_N.to(like.dtype.element_ty).to(tl.float32)
    gate_N = (gate_N * tl.sigmoid(gate_N)).to(like.dtype.element_ty).to(tl.float32)
    return gate_N * up_N.to(like.dtype.element_ty).to(tl.float32)


@triton.jit
def twin_kernel(
    x,  # [2, D]
    y,
    norm,
    weight,
    bias,
    out,  # [2, N]
    summed,
    eps,
    outputs,
    DIMS: tl.constexpr,
    PAD: tl.constexpr,
    ADD: tl.constexpr,
    NORM: tl.constexpr,
    BIAS: tl.constexpr,
    GATE: tl.constexpr,
    TILE: tl.constexpr,
    STRIDE: tl.constexpr,
):
    """The same for a token and its draft: the weight is read once for both."""
    n = tl.program_id(0) * TILE + tl.arange(0, TILE)
    real = n[:, None] < outputs
    s = tl.arange(0, STRIDE)
    at = n[:, None].to(tl.int64) * DIMS + s[None, :]
    there = real & (s[None, :] < DIMS)
    w_ND = tl.load(weight + at, mask=there, other=0.0)
    if GATE:
        u_ND = tl.load(weight + outputs * DIMS + at, mask=there, other=0.0)
    scale_a = 1.0
    scale_b = 1.0
    if NORM:
        d = tl.arange(0, PAD)
        a_D = _summed(x, y, summed, tl.program_id(0) == 0, d, DIMS, ADD)
        b_D = _summed(x + DIMS, y + DIMS, summed + DIMS, tl.program_id(0) == 0, d, DIMS, ADD)
        square_a, square_b = tl.reduce((a_D * a_D, b_D * b_D), 0, _add_two)  # one wait for both
        scale_a = tl.rsqrt(square_a / DIMS + eps)
        scale_b = tl.rsqrt(square_b / DIMS + eps)
    total_a = tl.zeros([TILE, STRIDE], tl.float32)
    total_b = tl.zeros([TILE, STRIDE], tl.float32)
    gated_a = tl.zeros([TILE, STRIDE], tl.float32)
    gated_b = tl.zeros([TILE, STRIDE], tl.float32)
    for first in tl.static_range(0, DIMS, STRIDE):
        d = first + tl.arange(0, STRIDE)
        if first > 0:
            at = n[:, None].to(tl.int64) * DIMS + d[None, :]
            there = real & (d[None, :] < DIMS)
            w_ND = tl.load(weight + at, mask=there, other=0.0)
            if GATE:
                u_ND = tl.load(weight + outputs * DIMS + at, mask=there, other=0.0)
        w_S = tl.load(norm + d, mask=d < DIMS, other=0.0).to(tl.float32)
        a_S = _normed_part(x, y, w_S, scale_a, d, DIMS, ADD, NORM)
        b_S = _normed_part(x + DIMS, y + DIMS, w_S, scale_b, d, DIMS, ADD, NORM)
        total_a += w_ND.to(tl.float32) * a_S
        total_b += w_ND.to(tl.float32) * b_S
        if GATE:
            gated_a += u_ND.to(tl.float32) * a_S
            gated_b += u_ND.to(tl.float32) * b_S
    if GATE:
        a_N, b_N, up_a, up_b = tl.reduce((total_a, total_b, gated_a, gated_b), 1, _add_four)
        a_N, b_N = _gated(a_N, up_a, x), _gated(b_N, up_b, x)
    else:
        a_N, b_N = tl.reduce((total_a, total_b), 1, _add_two)
    if BIAS:
        b = tl.load(bias + n, mask=n < outputs, other=0.0).to(tl.float32)
        a_N += b
        b_N += b
    tl.store(out + n, a_N.to(out.dtype.element_ty), mask=n < outputs)
    tl.store(out + outputs + n, b_N.to(out.dtype.element_ty), mask=n < outputs)


@triton.jit
def experts_in_kernel(
    x,  # [T, D]
    chosen,  # [T, C]
    weight,  # [E, 2 F, D]
    out,  # [T, C, F]
    CHOICES: tl.constexpr,
    DIMS: tl.constexpr,
    WIDTH: tl.constexpr,
    TILE: tl.constexpr,
    STRIDE: tl.constexpr,
):
    visit = tl.program_id(1)
    expert = tl.load(chosen + visit).to(tl.int64)
    f = tl.program_id(0) * TILE + tl.arange(0, TILE)
    base = weight + expert * 2 * WIDTH * DIMS
    gate = tl.zeros([TILE, STRIDE], tl.float32)
    up = tl.zeros([TILE, STRIDE], tl.float32)
    for first in tl.static_range(0, DIMS, STRIDE):
        d = first + tl.arange(0, STRIDE)
        there = (f[:, None] < WIDTH) & (d[None, :] < DIMS)
        at = f[:, None] * DIMS + d[None, :]
        x_S = tl.load(x + (visit // CHOICES) * DIMS + d, mask=d < DIMS, other=0.0).to(tl.float32)[None, :]
        gate += tl.load(base + at, mask=there, other=0.0).to(tl.float32) * x_S
        up += tl.load(base + WIDTH * DIMS + at, mask=there, other=0.0).to(tl.float32) * x_S
    gate_F = tl.sum(gate, 1).to(x.dtype.element_ty).to(tl.float32)
    gate_F = (gate_F * tl.sigmoid(gate_F)).to(x.dtype.element_ty).to(tl.float32)
    up_F = tl.sum(up, 1).to(x.dtype.element_ty).to(tl.float32)
    tl.store(out + visit * WIDTH + f, (gate_F * up_F).to(out.dtype.element_ty), mask=f < WIDTH)


@triton.jit
def experts_out_kernel(
    inner,  # [T, C, F]
    chosen,
    share,  # [T, C], the experts' weights
    weight,  # [E, D, F]
    out,  # [T, D]
    CHOICES: tl.constexpr,
    DIMS: tl.constexpr,
    WIDTH: tl.constexpr,
    TILE: tl.constexpr,
    STRIDE: tl.constexpr,
):
    token = tl.program_id(1)
    d = tl.program_id(0) * TILE + tl.arange(0, TILE)
    out_D = tl.zeros([TILE], tl.float32)
    for choice in range(CHOICES):
        visit = token * CHOICES + choice
        base = weight + tl.load(chosen + visit).to(tl.int64) * DIMS * WIDTH
        total = tl.zeros([TILE, STRIDE], tl.float32)
        for first in tl.static_range(0, WIDTH, STRIDE):
            f = first + tl.arange(0, STRIDE)
            there = (d[:, None] < DIMS) & (f[None, :] < WIDTH)
            w_DF = tl.load(base + d[:, None] * WIDTH + f[None, :], mask=there, other=0.0).to(tl.float32)
            total += w_DF * tl.load(inner + visit * WIDTH + f, mask=f < WIDTH, other=0.0).to(tl.float32)[None, :]
        one_D = tl.sum(total, 1).to(out.dtype.element_ty).to(tl.float32)
        out_D += one_D * tl.load(share + visit).to(tl.float32)
    tl.store(out + token * DIMS + d, out_D.to(out.dtype.element_ty), mask=d < DIMS)


@triton.jit
def route_kernel(
    x,  # [T, D]
    weight,  # [E, D]
    bias,  # [E], takes part in the choice alone
    chosen,  # [T, C]
    share,  # [T, C]
    factor,
    DIMS: tl.constexpr,
    STRIDE: tl.constexpr,
    EXPERTS: tl.constexpr,
    PAD: tl.constexpr,
    CHOICES: tl.constexpr,
    SIGMOID: tl.constexpr,
    SHARED_OUT: tl.constexpr,
):
    """Scores in float32, the best few in the order of their numbers; `SHARED_OUT` makes their weights sum to 1."""
    t = tl.program_id(0).to(tl.int64)
    e = tl.arange(0, PAD)
    real = e < EXPERTS
    score_E = tl.zeros([PAD], tl.float32)
    for first in range(0, DIMS, STRIDE):
        d = first + tl.arange(0, STRIDE)
        there = real[:, None] & (d[None, :] < DIMS)
        w_ED = tl.load(weight + e[:, None] * DIMS + d[None, :], mask=there, other=0.0).to(tl.float32)
        x_S = tl.load(x + t * DIMS + d, mask=d < DIMS, other=0.0).to(tl.float32)
        score_E += tl.sum(w_ED * x_S[None, :], 1)
    if SIGMOID:
        score_E = tl.sigmoid(score_E)
        wanted_E = score_E + tl.load(bias + e, mask=real, other=0.0)
    else:
        score_E = tl.where(real, score_E, -float("inf"))
        score_E = tl.exp(score_E - tl.max(score_E, 0))
        score_E = score_E / tl.sum(score_E, 0)
        wanted_E = score_E
    wanted_E = tl.where(real, wanted_E, -float("inf"))
    taken_E = e < 0
    for _ in tl.static_range(0, CHOICES):
        # what is not a number compares with nothing: the first that is left is taken, and the rows stay in their bounds
        best = tl.argmax(tl.where(taken_E, -float("inf"), wanted_E), 0)
        taken_E = taken_E | (e == best)
    place_E = tl.cumsum(taken_E.to(tl.int32), 0) - 1
    share_E = tl.where(taken_E, score_E, 0.0)
    if SHARED_OUT:
        share_E = share_E / (tl.sum(share_E, 0) + 1e-20)
    at = t * CHOICES + place_E
    tl.store(chosen + at, e.to(chosen.dtype.element_ty), mask=taken_E)
    tl.store(share + at, (share_E * factor).to(share.dtype.element_ty), mask=taken_E)
