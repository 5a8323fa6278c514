"""Log-probabilities of a prompt's own tokens, with the likeliest alternatives: what evaluations of text ask for.

Computed without the cache, as `Engine.score` is. At temperature 1: of the model itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from etude.core.errors import EtudeError
from etude.engine.request import Top
from etude.model.decoder import Decoder
from etude.model.packed_forward import Packed

ROWS = 256  # whose distributions are held at once


@dataclass(frozen=True)
class PromptScores:
    """One entry for each token but the first, which nothing predicts."""

    logprobs: list[float]
    tops: list[Top]  # as many as were asked for, likeliest first


@torch.inference_mode()
def prompt_scores(decoder: Decoder, ids: Sequence[int], top: int) -> PromptScores:
    if len(ids) < 2:
        return PromptScores([], [])
    hidden_TD = Packed(decoder, [np.array(ids)]).hidden()[0]
    logprobs: list[float] = []
    tops: list[Top] = []
    for start in range(0, len(ids) - 1, ROWS):
        end = min(start + ROWS, len(ids) - 1)
        scores_RV = decoder.logits(hidden_TD[start:end]).float().log_softmax(-1)
        next_R1 = torch.tensor(ids[start + 1 : end + 1], device=scores_RV.device)[:, None]
        logprobs += scores_RV.gather(-1, next_R1)[:, 0].tolist()
        values_RK, ids_RK = scores_RV.topk(min(top, scores_RV.shape[-1]))
        tops += [tuple(zip(*row, strict=True)) for row in zip(ids_RK.tolist(), values_RK.tolist(), strict=True)]
    if not np.isfinite(logprobs).all():
        raise EtudeError("scoring the prompt gave log-probabilities that are not finite")
    return PromptScores(logprobs, tops)
