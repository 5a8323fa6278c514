"""Triton kernels: from logits to tokens, in one pass over the vocabulary and a look at one piece of it.

The first kernel sums up pieces of the vocabulary. The second finds, by running sums in float64, the piece in which the
uniform number falls, and in it the token; so every row is sampled by the inverse of its cumulative distribution, as in
sampler.py, from the same uniform numbers. At temperature 0 it is the first of the best.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def pieces_kernel(
    logits,  # [R, V], float32
    temperatures,  # [R], float64
    tops,  # [R, C]: the highest of a piece
    sums,  # [R, C]: the sum of its weights, relative to that
    bests,  # [R, C]: where it stands
    vocabulary,
    pieces,
    PIECE: tl.constexpr,
):
    row, piece = tl.program_id(0), tl.program_id(1)
    temperature = tl.load(temperatures + row).to(tl.float32)
    # Greedy rows report their log-probability at temperature 1.
    temperature = tl.where(temperature == 0.0, 1.0, temperature)
    v = piece * PIECE + tl.arange(0, PIECE)
    x_V = tl.load(logits + row.to(tl.int64) * vocabulary + v, mask=v < vocabulary, other=-float("inf")) / temperature
    top = tl.max(x_V, 0)
    best = tl.argmax(x_V, 0)
    tl.store(tops + row * pieces + piece, top)
    tl.store(sums + row * pieces + piece, tl.sum(tl.exp(x_V - top), 0))
    tl.store(bests + row * pieces + piece, piece * PIECE + best)


@triton.jit
def pick_kernel(
    logits,
    temperatures,
    uniforms,  # [R], float64
    tops,
    sums,
    bests,
    tokens,  # [R], int32
    logprobs,  # [R], float32
    vocabulary,
    pieces,
    PIECE: tl.constexpr,
    PIECES_PAD: tl.constexpr,
):
    row = tl.program_id(0)
    said = tl.load(temperatures + row).to(tl.float32)
    temperature = tl.where(said == 0.0, 1.0, said)
    c = tl.arange(0, PIECES_PAD)
    real = c < pieces
    top_C = tl.load(tops + row * pieces + c, mask=real, other=-float("inf"))
    highest = tl.max(top_C, 0)
    sum_C = tl.load(sums + row * pieces + c, mask=real, other=0.0) * tl.exp(top_C - highest)
    sum_C = tl.where(real, sum_C, 0.0).to(tl.float64)
    running_C = tl.cumsum(sum_C, 0)
    total = tl.sum(sum_C, 0)
    ALMOST: tl.constexpr = 0.9999999999999998  # the point lies below the end, even where rounding would put it there
    point = tl.minimum(tl.load(uniforms + row) * total, total * ALMOST)
    piece = tl.minimum(tl.sum((running_C <= point).to(tl.int32), 0), pieces - 1)
    point -= tl.sum(tl.where(c < piece, sum_C, 0.0), 0)
    i = tl.arange(0, PIECE)
    v = piece * PIECE + i
    at = logits + row.to(tl.int64) * vocabulary
    x_V = tl.load(at + v, mask=v < vocabulary, other=-float("inf")) / temperature
    weight_V = tl.exp(x_V - highest).to(tl.float64)
    inside_V = tl.cumsum(weight_V, 0)
    point = tl.minimum(point, tl.sum(weight_V, 0) * ALMOST)
    token = piece * PIECE + tl.sum((inside_V <= point).to(tl.int32), 0)
    if said == 0.0:
        first = tl.min(tl.where(real & (top_C == highest), c, PIECES_PAD), 0)
        token = tl.load(bests + row * pieces + tl.minimum(first, pieces - 1))
    token = tl.minimum(tl.maximum(token, 0), vocabulary - 1)  # a row of what is no number must point somewhere, too
    chosen = tl.load(at + token) / temperature
    tl.store(tokens + row, token)
    tl.store(logprobs + row, chosen - highest - tl.log(total.to(tl.float32)))
