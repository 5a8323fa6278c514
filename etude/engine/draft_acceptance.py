"""Which drafts are kept, and what is drawn behind them: the rule of exact rejection sampling, in plain torch.

Also which uniform number decides what: all randomness of token i comes from (seed, i) in three streams. Knows
distributions and tokens, no requests and no cache.

Shapes: R requests, K drafts of each, J = K + 1 places that the model says something about, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from etude.engine.sampler import pick

DRAFTING, ACCEPTING = 0x5DEECE66D, 0x2545F4914F6CDD1D  # what separates the streams of one seed; drawing has the seed


def verify(
    p_RJV: Tensor,
    q_RKV: Tensor,
    drafts_RK: Tensor,
    drafted_RK: Tensor,
    accepting_RK: Tensor,
    drawing_RJ: Tensor,
) -> tuple[Tensor, Tensor]:
    """How many of its K drafts each request keeps, and the token behind them.

    `p` are the model's distributions at the drafts and behind the last, `q` those that the drafts were drawn from.
    Entries of `drafts` beyond a request's own are not `drafted`. Uniform numbers: one to accept each draft, one to
    draw the token at each place.
    """
    many = drafts_RK.shape[1]
    q_RKV = q_RKV * drafted_RK[:, :, None]  # where nothing was drafted, all of p is what p has more
    at_RK1 = drafts_RK[:, :, None]
    p_RK, q_RK = p_RJV[:, :many].gather(-1, at_RK1)[..., 0], q_RKV.gather(-1, at_RK1)[..., 0]
    # u * q < p and not u < p / q: where q rounds to 0 there is nothing to divide by.
    kept_RK = drafted_RK & (accepting_RK * q_RK < p_RK)
    # The product is cumulative: behind the first rejected draft none is kept, whatever came out there.
    kept_R = kept_RK.long().cumprod(1).sum(1)
    rows_R = torch.arange(len(kept_R), device=kept_R.device)
    p_RV = p_RJV[rows_R, kept_R]
    # Behind the last draft nothing was drafted, so all of p counts: q is padded with zeros.
    behind_RV = torch.nn.functional.pad(q_RKV, (0, 0, 0, 1))[rows_R, kept_R]
    rest_RV = (p_RV - behind_RV).clamp_(min=0)
    # a rejection means that p has less than q somewhere, so more elsewhere; rounding may have eaten it
    rest_RV = torch.where(rest_RV.sum(-1, keepdim=True) > 0, rest_RV, p_RV)
    token_R1, _ = pick(rest_RV, drawing_RJ[rows_R, kept_R][:, None])
    return kept_R, token_R1[:, 0]
