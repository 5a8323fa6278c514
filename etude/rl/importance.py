"""Importance weights of whole rollouts: one ratio for all segments, which may lie in several micro-batches.

The learner corrects tokens and segments while it trains them. The ratio of a rollout needs all of its segments before
any is trained, so the present log-probabilities are asked for first, and the weight goes into the advantages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from etude.learn.streams import Correction, Floats, Item, Sampled, Stream
from etude.rl.groups import Rollout


def log_ratio(rollout: Rollout, live: Sequence[Floats]) -> float:
    """Mean of log p(learner) / p(sampler) over the sampled tokens of all of its segments."""
    apart = [
        (live_T.astype(np.float64) - trace.logprob_T)[trace.sampled_T]
        for trace, live_T in zip(rollout.traces, live, strict=True)
    ]
    tokens = np.concatenate(apart) if apart else np.zeros(0)
    return float(tokens.mean()) if len(tokens) else 0.0


def weight(correction: Correction, ratio: float, advantage: float) -> float:
    """What an advantage is multiplied by; the gradient through a clipped ratio is the ratio's own, or nothing."""
    bounded = min(max(ratio, correction.low), correction.high)
    if correction.kind == "none":
        return 1.0
    if correction.kind == "truncate":
        return bounded
    if correction.kind == "mask":
        return ratio if bounded == ratio else 0.0
    return ratio if ratio * advantage <= bounded * advantage else 0.0


def weighted(item: Item, correction: Correction, ratio: float) -> Item:
    """The item with its sampled streams weighted by the ratio of their rollout."""
    return replace(item, streams=[_weighted(stream, correction, ratio) for stream in item.streams])


def _weighted(stream: Stream, correction: Correction, ratio: float) -> Stream:
    target = stream.target
    if not isinstance(target, Sampled):
        return stream
    up, down = weight(correction, ratio, 1.0), weight(correction, ratio, -1.0)
    advantage_T = target.advantage_T * np.where(target.advantage_T > 0, up, down).astype(np.float32)
    return replace(stream, target=Sampled(advantage_T, target.logprob_T))
