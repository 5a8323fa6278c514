"""Triton kernels around a step with drafts: what its tokens are, which drafts are kept, and what is drawn behind them.

The rule is that of engine/draft_acceptance.py, from logits on both sides. Three launches: pieces of the vocabulary are
summed up, for the model's logits and for those that drafts came from; then what the model has more than the drafts, by
pieces again; then one program a request finds its token and writes what the next step begins with. Each decides for
itself which drafts are kept, which takes no time beside waiting for another launch.
"""

from __future__ import annotations

import triton
import triton.language as tl

from etude.engine import draft_acceptance as accept

DRAFTING: tl.constexpr = tl.constexpr(accept.DRAFTING)
ACCEPTING: tl.constexpr = tl.constexpr(accept.ACCEPTING)


@triton.jit
def _mix(x):
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def _uniform(seed, counter):
    """The number of (seed, counter), as sampler.py has it."""
    seed = seed.to(tl.uint64, bitcast=True)
    # Splitmix64 as in sampler.py, bit for bit: a seed draws the same numbers wherever it is computed.
    bits = _mix(_mix(seed + 0x9E3779B97F4A7C15) + (counter + 1).to(tl.uint64) * 0x9E3779B97F4A7C15)
    return (bits >> 11).to(tl.float64) * 1.1102230246251565e-16


@triton.jit
def begin_kernel(
    sources,
    asked_ends,
    stops,
    asked_ids,  # [R, J]
    table,  # [R, M]
    told,  # [X, S]
    ids,  # [R, J], and so are the next three
    positions,
    slots,
    lengths,
    ends,
    told_rows,
    blocks,
    nobody,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Which tokens stand where: as the last step left it, or as the host says."""
    r = tl.program_id(0)
    J: tl.constexpr = K + 1
    source = tl.load(sources + r)
    stop = tl.load(stops + r)
    from_host = source < 0
    seat = tl.maximum(source, 0)
    kept = tl.load(told + seat)
    end = tl.where(from_host, tl.load(asked_ends + r), tl.load(told + told_rows + seat))
    tl.store(ends + r, end)
    for j in tl.static_range(0, J):
        if j == 0:
            known = tl.load(told + (2 + kept) * told_rows + seat)
        else:
            known = tl.load(told + (1 + 2 * J + j) * told_rows + seat)
        token = tl.where(from_host, tl.load(asked_ids + r * J + j), known)
        place = end + j
        # Places from `stop` on belong to no token: they write to the slot `nobody` and see nothing (length 0).
        there = place < stop
        block = tl.load(table + r * blocks + place // BLOCK, mask=there, other=0)
        tl.store(ids + r * J + j, token)
        tl.store(positions + r * J + j, tl.where(there, place, 0))
        tl.store(slots + r * J + j, tl.where(there, block * BLOCK + place % BLOCK, nobody))
        tl.store(lengths + r * J + j, tl.where(there, place + 1, 0))


@triton.jit
def sums_kernel(
    logits,  # [R, J, V]
    beliefs,  # [S, K, V]
    sources,
    temperatures,
    tops,  # [R, J + K, C]: the highest of a piece; first of the model's logits, then of the drafts'
    sums,  # the sum of its weights, relative to that
    bests,  # where it stands
    vocabulary,
    pieces,
    K: tl.constexpr,
    PIECE: tl.constexpr,
):
    line, piece = tl.program_id(0), tl.program_id(1)
    J: tl.constexpr = K + 1
    r, which = line // (J + K), line % (J + K)
    inverse = _inverse(temperatures, r)
    v = piece * PIECE + tl.arange(0, PIECE)
    model = which < J
    own = logits + (r * J + which).to(tl.int64) * vocabulary
    drafts = beliefs + (_seat(sources, r) * K + which - J).to(tl.int64) * vocabulary
    own_V = tl.load(own + v, mask=(v < vocabulary) & model, other=-float("inf"))
    drafts_V = tl.load(drafts + v, mask=(v < vocabulary) & (which >= J), other=-float("inf"))
    x_V = tl.where(model, own_V, drafts_V) * inverse
    top = tl.max(x_V, 0)
    at = line * pieces + piece
    tl.store(tops + at, top)
    tl.store(sums + at, tl.sum(tl.exp(x_V - top), 0))
    tl.store(bests + at, piece * PIECE + tl.argmax(x_V, 0))


@triton.jit
def _inverse(temperatures, r):
    temperature = tl.load(temperatures + r).to(tl.float32)
    return 1.0 / tl.where(temperature == 0.0, 1.0, temperature)


@triton.jit
def _seat(sources, r):
    """Where the drafts of a row's request came from."""
    source = tl.load(sources + r)
    return tl.where(source < 0, r, source)


@triton.jit
def _row(tops, sums, line, pieces, PIECES_PAD: tl.constexpr):
    """The highest of a line of logits, and the sum of its weights relative to it."""
    c = tl.arange(0, PIECES_PAD)
    top_C = tl.load(tops + line * pieces + c, mask=c < pieces, other=-float("inf"))
    top = tl.max(top_C, 0)
    sum_C = tl.load(sums + line * pieces + c, mask=c < pieces, other=0.0)
    return top, tl.sum(tl.where(c < pieces, sum_C * tl.exp(top_C - top), 0.0), 0)


@triton.jit
def _best(tops, bests, line, pieces, PIECES_PAD: tl.constexpr):
    """The first of the likeliest."""
    c = tl.arange(0, PIECES_PAD)
    top_C = tl.load(tops + line * pieces + c, mask=c < pieces, other=-float("inf"))
    first = tl.min(tl.where((c < pieces) & (top_C == tl.max(top_C, 0)), c, PIECES_PAD), 0)
    return tl.load(bests + line * pieces + tl.minimum(first, pieces - 1))


@triton.jit
def _kept(
    r,
    seat,
    logits,
    beliefs,
    ids,
    seed,
    counter,
    left,
    greedy,
    inverse,
    tops,
    sums,
    bests,
    vocabulary,
    pieces,
    K: tl.constexpr,
    PIECES_PAD: tl.constexpr,
):
    """How many of its drafts a request keeps; it has `left` of them."""
    J: tl.constexpr = K + 1
    kept = left * 0
    going = kept + 1
    for k in tl.static_range(0, K):
        line = r * (J + K) + k
        draft = tl.load(ids + r * J + 1 + k)
        top, total = _row(tops, sums, line, pieces, PIECES_PAD)
        p = tl.exp(tl.load(logits + (r * J + k).to(tl.int64) * vocabulary + draft) * inverse - top) / total
        q_top, q_total = _row(tops, sums, line + J, pieces, PIECES_PAD)
        q = tl.exp(tl.load(beliefs + (seat * K + k).to(tl.int64) * vocabulary + draft) * inverse - q_top) / q_total
        # u * q < p and not u < p / q: where q rounds to 0 there is nothing to divide by.
        fair = _uniform(seed ^ ACCEPTING, counter + k).to(tl.float32) * q < p
        sure = _best(tops, bests, line, pieces, PIECES_PAD) == draft
        going = going * (tl.where(greedy, sure, fair) & (k < left)).to(tl.int32)
        kept += going
    return kept


@triton.jit
def _rest(logits, beliefs, line, place, seat, kept, v, vocabulary, inverse, tops, sums, pieces, K: tl.constexpr,
          PIECES_PAD: tl.constexpr, minus):  # fmt: skip
    """What the model has more than the draft at a place, over some of the vocabulary; all of it where none was."""
    J: tl.constexpr = K + 1
    top, total = _row(tops, sums, line, pieces, PIECES_PAD)
    base = logits + place.to(tl.int64) * vocabulary
    p_V = tl.exp(tl.load(base + v, mask=v < vocabulary, other=-float("inf")) * inverse - top) / total
    k = tl.minimum(kept, K - 1)
    q_top, q_total = _row(tops, sums, line - kept + J + k, pieces, PIECES_PAD)
    base = beliefs + (seat * K + k).to(tl.int64) * vocabulary
    q_V = tl.exp(tl.load(base + v, mask=v < vocabulary, other=-float("inf")) * inverse - q_top) / q_total
    return tl.maximum(p_V - minus * q_V, 0.0)


@triton.jit
def rests_kernel(
    logits,
    beliefs,
    sources,
    temperatures,
    seeds,
    prompts,
    stops,
    ids,
    ends,
    tops,
    sums,
    bests,
    rests,  # [R, C]: what p has more than q in a piece, at the first draft that is not kept
    vocabulary,
    pieces,
    K: tl.constexpr,
    PIECE: tl.constexpr,
    PIECES_PAD: tl.constexpr,
):
    r, piece = tl.program_id(0), tl.program_id(1)
    J: tl.constexpr = K + 1
    greedy = tl.load(temperatures + r) == 0.0
    inverse, seat, end = _inverse(temperatures, r), _seat(sources, r), tl.load(ends + r)
    left = tl.minimum(tl.maximum(tl.load(stops + r) - end - 1, 0), K)
    counter = (end + 1 - tl.load(prompts + r)).to(tl.int64)
    kept = _kept(r, seat, logits, beliefs, ids, tl.load(seeds + r), counter, left, greedy, inverse, tops, sums, bests,
                 vocabulary, pieces, K, PIECES_PAD)  # fmt: skip
    v = piece * PIECE + tl.arange(0, PIECE)
    minus = tl.where(kept < left, 1.0, 0.0)
    rest_V = _rest(logits, beliefs, r * (J + K) + kept, r * J + kept, seat, kept, v, vocabulary, inverse, tops, sums,
                   pieces, K, PIECES_PAD, minus)  # fmt: skip
    # Sums in float64, as in sampler.pick: in float32 a token rarer than 1e-7 would be lost.
    tl.store(rests + r * pieces + piece, tl.sum(rest_V.to(tl.float64), 0))


@triton.jit
def settle_kernel(
    logits,
    beliefs,
    sources,
    temperatures,
    seeds,
    prompts,
    stops,
    ids,
    ends,
    tops,
    sums,
    bests,
    rests,
    told,  # [X, S]: drafts kept, the new end, J tokens, J log-probabilities
    logprobs,  # the same memory, as float32
    ahead,  # [R, J + K]: tokens behind the first
    rows,  # [R]: whose state is drafted from
    numbers,  # [K, R]: to draft with
    told_rows,
    vocabulary,
    pieces,
    many_rows,
    K: tl.constexpr,
    PIECE: tl.constexpr,
    PIECES_PAD: tl.constexpr,
):
    r = tl.program_id(0)
    J: tl.constexpr = K + 1
    greedy = tl.load(temperatures + r) == 0.0
    inverse, seat, end, seed = _inverse(temperatures, r), _seat(sources, r), tl.load(ends + r), tl.load(seeds + r)
    left = tl.minimum(tl.maximum(tl.load(stops + r) - end - 1, 0), K)
    counter = (end + 1 - tl.load(prompts + r)).to(tl.int64)
    kept = _kept(r, seat, logits, beliefs, ids, seed, counter, left, greedy, inverse, tops, sums, bests, vocabulary,
                 pieces, K, PIECES_PAD)  # fmt: skip
    line = r * (J + K) + kept
    top, total = _row(tops, sums, line, pieces, PIECES_PAD)
    c = tl.arange(0, PIECES_PAD)
    rest_C = tl.load(rests + r * pieces + c, mask=c < pieces, other=0.0)
    some = tl.sum(rest_C, 0) > 0  # rounding may have eaten what p has more: then all of p
    top_C = tl.load(tops + line * pieces + c, mask=c < pieces, other=-float("inf"))
    sum_C = tl.load(sums + line * pieces + c, mask=c < pieces, other=0.0)
    whole_C = tl.where(c < pieces, sum_C * tl.exp(top_C - top) / total, 0.0).to(tl.float64)
    rest_C = tl.where(some, rest_C, whole_C)
    minus = tl.where(some & (kept < left), 1.0, 0.0)
    running_C = tl.cumsum(rest_C, 0)
    all_of_it = tl.sum(rest_C, 0)
    ALMOST: tl.constexpr = 0.9999999999999998
    point = tl.minimum(_uniform(seed, counter + kept) * all_of_it, all_of_it * ALMOST)
    piece = tl.minimum(tl.sum(((running_C <= point) & (c < pieces)).to(tl.int32), 0), pieces - 1)
    point -= tl.sum(tl.where(c < piece, rest_C, 0.0), 0)
    v = piece * PIECE + tl.arange(0, PIECE)
    rest_V = _rest(logits, beliefs, line, r * J + kept, seat, kept, v, vocabulary, inverse, tops, sums, pieces, K,
                   PIECES_PAD, minus)  # fmt: skip
    inside_V = tl.cumsum(rest_V.to(tl.float64), 0)
    token = tl.min(tl.where((inside_V > point) & (rest_V > 0), v, vocabulary), 0)
    # Rounding can put the point behind the last token that has any weight: then that one is taken.
    last = tl.max(tl.where(rest_V > 0, v, 0), 0)
    token = tl.where(token < vocabulary, token, last)
    token = tl.where(greedy, _best(tops, bests, line, pieces, PIECES_PAD), token)
    token = tl.minimum(tl.maximum(token, 0), vocabulary - 1)

    tl.store(told + r, kept)
    tl.store(told + told_rows + r, end + kept + 1)
    tl.store(rows + r, r * J + kept)
    for j in tl.static_range(0, J):
        chosen = token
        if j < K:
            chosen = tl.where(j < kept, tl.load(ids + r * J + 1 + j), token)
        chosen = tl.where(j <= kept, chosen, 0)
        j_top, j_total = _row(tops, sums, r * (J + K) + j, pieces, PIECES_PAD)
        logit = tl.load(logits + (r * J + j).to(tl.int64) * vocabulary + chosen) * inverse
        tl.store(told + (2 + j) * told_rows + r, chosen)
        tl.store(logprobs + (2 + J + j) * told_rows + r, tl.where(j <= kept, logit - j_top - tl.log(j_total), 0.0))
        tl.store(ahead + r * (J + K) + j, chosen)
    for k in tl.static_range(0, K):
        tl.store(ahead + r * (J + K) + J + k, 0)
        tl.store(numbers + k * many_rows + r, _uniform(seed ^ DRAFTING, counter + kept + 1 + k))
