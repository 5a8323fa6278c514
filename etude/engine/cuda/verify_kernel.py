"""A Triton kernel that accepts drafts and draws the token behind them: one program for each request, one launch.

The rule is that of steady.py's `verify`, from logits on both sides; the tests there hold the two against each other.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096  # of the vocabulary


@triton.jit
def _stats(base, inverse, vocabulary, BLOCK: tl.constexpr):
    """The largest of a row of tempered logits, the sum of their exponentials above it, and where it stands."""
    top = -float("inf")
    total = 0.0
    best = 0
    for first in range(0, vocabulary, BLOCK):
        v = first + tl.arange(0, BLOCK)
        x_V = tl.load(base + v, mask=v < vocabulary, other=-float("inf")) * inverse
        high = tl.max(x_V, 0)
        place = first + tl.argmax(x_V, 0)
        best = tl.where(high > top, place, best)
        higher = tl.maximum(high, top)
        total = total * tl.exp(top - higher) + tl.sum(tl.exp(x_V - higher), 0)
        top = higher
    return top, total, best


@triton.jit
def verify_kernel(
    logits,  # [R, K + 1, V]
    beliefs,  # [R, K, V], the logits that drafts were drawn from
    drafts,  # [R, K]
    temperatures,  # [R]
    accepting,  # [R, K]
    drawing,  # [R, K + 1]
    kept,  # [R]
    tokens,  # [R]
    logprobs,  # [R, K + 1]: of the drafts that are kept, and of the token behind them
    vocabulary,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
):
    r = tl.program_id(0).to(tl.int64)
    temperature = tl.load(temperatures + r).to(tl.float32)
    greedy = temperature == 0.0
    inverse = 1.0 / tl.where(greedy, 1.0, temperature)
    many = (r * 0).to(tl.int32)
    nothing = tl.load(drawing + r * (K + 1)) * 0.0  # float64
    going = 1
    for k in tl.static_range(0, K):
        base = logits + (r * (K + 1) + k) * vocabulary
        top, total, best = _stats(base, inverse, vocabulary, BLOCK)
        draft = tl.load(drafts + r * K + k)
        log_p = tl.load(base + draft) * inverse - top - tl.log(total)
        believed = beliefs + (r * K + k) * vocabulary
        q_top, q_total, _ = _stats(believed, inverse, vocabulary, BLOCK)
        q = tl.exp(tl.load(believed + draft) * inverse - q_top) / q_total
        fair = tl.load(accepting + r * K + k).to(tl.float32) * q < tl.exp(log_p)
        accepted = tl.where(greedy, best == draft, fair).to(tl.int32)
        tl.store(logprobs + r * (K + 1) + k, log_p.to(tl.float64))
        going = going * accepted
        many += going
    base = logits + (r * (K + 1) + many) * vocabulary
    top, total, best = _stats(base, inverse, vocabulary, BLOCK)
    behind = beliefs
    q_top = 0.0
    q_total = 1.0
    minus = 0.0  # behind the last draft nothing is taken away
    if K > 0:
        behind = beliefs + (r * K + tl.minimum(many, K - 1)) * vocabulary
        q_top, q_total, _ = _stats(behind, inverse, vocabulary, BLOCK)
        minus = tl.where(many < K, 1.0, 0.0)
    rest = nothing
    for first in range(0, vocabulary, BLOCK):
        v = first + tl.arange(0, BLOCK)
        p_V = tl.exp(tl.load(base + v, mask=v < vocabulary, other=-float("inf")) * inverse - top) / total
        if K > 0:
            q_V = tl.exp(tl.load(behind + v, mask=v < vocabulary, other=-float("inf")) * inverse - q_top) / q_total
            p_V = tl.maximum(p_V - minus * q_V, 0.0)
        rest += tl.sum(p_V, 0).to(tl.float64)
    minus = tl.where(rest > 0, minus, 0.0)  # rounding may have eaten what p has more
    rest = tl.where(rest > 0, rest, 1.0)
    point = tl.load(drawing + r * (K + 1) + many) * rest
    before = nothing
    token = -1
    last = 0
    for first in range(0, vocabulary, BLOCK):
        v = first + tl.arange(0, BLOCK)
        p_V = tl.exp(tl.load(base + v, mask=v < vocabulary, other=-float("inf")) * inverse - top) / total
        if K > 0:
            q_V = tl.exp(tl.load(behind + v, mask=v < vocabulary, other=-float("inf")) * inverse - q_top) / q_total
            p_V = tl.maximum(p_V - minus * q_V, 0.0)
        sums_V = before + tl.cumsum(p_V.to(tl.float64), 0)
        passed = tl.min(tl.where((sums_V > point) & (p_V > 0), v, vocabulary), 0)
        token = tl.where((token < 0) & (passed < vocabulary), passed, token)
        last = tl.maximum(last, tl.max(tl.where(p_V > 0, v, 0), 0))
        before += tl.sum(p_V, 0).to(tl.float64)
    token = tl.where(token < 0, last, token)
    token = tl.where(greedy, best, token)
    tl.store(kept + r, many.to(tl.int64))
    tl.store(tokens + r, token.to(tl.int64))
    log_p = tl.load(base + token) * inverse - top - tl.log(total)
    tl.store(logprobs + r * (K + 1) + many, log_p.to(tl.float64))


def verify_logits(
    logits_RJV: Tensor,
    beliefs_RKV: Tensor,
    drafts_RK: Tensor,
    temperature_R1: Tensor,
    accepting_RK: Tensor,
    drawing_RJ: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    requests, new, vocabulary = logits_RJV.shape
    kept_R1, token_R1 = torch.empty(2, requests, 1, dtype=torch.int64, device=logits_RJV.device)
    logprobs_RJ = torch.zeros(requests, new, dtype=torch.float64, device=logits_RJV.device)
    verify_kernel[(requests,)](
        logits_RJV.contiguous(),
        beliefs_RKV,
        drafts_RK.contiguous(),
        temperature_R1.contiguous(),
        accepting_RK.contiguous(),
        drawing_RJ.contiguous(),
        kept_R1,
        token_R1,
        logprobs_RJ,
        vocabulary,
        new - 1,
        min(BLOCK, triton.next_power_of_2(vocabulary)),
        num_warps=8,
    )
    return kept_R1, token_R1, logprobs_RJ
