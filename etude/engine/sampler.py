"""Logits to tokens, for many requests at once, with the log-probability of every choice.

Token i of a request depends on its logits, its settings and (seed, i) alone. The uniform number comes from a counter
(splitmix64), not from a generator with a state, and picks by the inverse of the cumulative distribution; so neither
the neighbours in the batch, nor a preemption, nor the order of arrival change what a seed samples.

The log-probability is that of the distribution sampled from: temperature applied, what top-k and top-p cut off gone,
the rest renormalised. Greedy choices (temperature 0) have no such distribution; theirs is that of temperature 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from etude.core.policy import Sampling
from etude.engine.request import Top

T = TypeVar("T")

_PIECE = 64  # vocabulary entries summed at once
_STEP = np.uint64(0x9E3779B97F4A7C15)
_BELOW = 1 - 2.0**-52  # times this, a float64 is smaller


class Sampled(NamedTuple):
    tokens: list[int]
    logprobs: list[float]
    tops: dict[int, Top]  # by row, of those that asked
    counts: Sequence[int] | None = None  # tokens for each who asked, one behind the other; None: one each

    def takers(self, ready: Sequence[T]) -> Sequence[T]:
        """Whose each token is."""
        if self.counts is None:
            return ready
        return [one for one, count in zip(ready, self.counts, strict=True) for _ in range(count)]


def uniforms(seeds: Sequence[int], counters: Sequence[int]) -> NDArray[np.float64]:
    """One number in [0, 1) for each pair, equal for equal pairs. Seeds count modulo 2**64."""
    return mixed(seed_bits(seeds), np.array(counters, dtype=np.uint64))


def seed_bits(seeds: Sequence[int]) -> NDArray[np.uint64]:
    return np.array([seed & 0xFFFF_FFFF_FFFF_FFFF for seed in seeds], dtype=np.uint64)


def mixed(seed: NDArray[np.uint64], counter: NDArray[np.uint64]) -> NDArray[np.float64]:
    with np.errstate(over="ignore"):
        # the seed is mixed before the counter is added, or seed s + 1 would repeat seed s shifted by one token
        bits = _mix(_mix(seed + _STEP) + (counter + np.uint64(1)) * _STEP)
    # 53 bits are what a float64 holds, so the number never rounds up to 1.
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@dataclass(frozen=True)
class Choice:
    """Tokens and log-probabilities where the logits lie; the host has not waited for them."""

    tokens_R: Tensor
    logprobs_R: Tensor
    tops: Callable[[], dict[int, Top]]


@dataclass(frozen=True)
class Rows:
    """Some of the rows, for the host and where the logits lie."""

    numbers: list[int]
    index: Tensor


class Settings:
    """How each of R rows is sampled; of those with something special, which rows they are."""

    def __init__(self, sampling: Sequence[Sampling], device: torch.device) -> None:
        self.sampling = sampling
        self.greedy = _rows([not s.temperature for s in sampling], device)
        self.limited = _rows([bool(s.temperature and (s.top_k or s.top_p < 1)) for s in sampling], device)
        self.asking = _rows([bool(s.top_logprobs) for s in sampling], device)
        self.temperature_R1: Tensor | None = None
        if any(s.temperature not in (0.0, 1.0) for s in sampling):
            self.temperature_R1 = torch.tensor([s.temperature or 1.0 for s in sampling], device=device)[:, None]


def _rows(which: Sequence[bool], device: torch.device) -> Rows | None:
    rows = [i for i, yes in enumerate(which) if yes]
    return Rows(rows, torch.tensor(rows, device=device)) if rows else None


def sample(logits_RV: Tensor, sampling: Sequence[Sampling], counters: Sequence[int]) -> Sampled:
    """A token and its log-probability for each row. Logits that are not finite give NaN, never a token to trust."""
    return read(choose(logits_RV, sampling, counters))


def read(choice: Choice) -> Sampled:
    return Sampled(choice.tokens_R.tolist(), choice.logprobs_R.tolist(), choice.tops())


def choose(logits_RV: Tensor, sampling: Sequence[Sampling], counters: Sequence[int]) -> Choice:
    uniform_R1 = torch.from_numpy(uniforms([s.seed for s in sampling], counters))[:, None]
    # A copy, because `choose_at` writes over the logits.
    return choose_at(logits_RV.clone(), Settings(sampling, logits_RV.device), uniform_R1.to(logits_RV.device))


def choose_at(logits_RV: Tensor, settings: Settings, uniform_R1: Tensor) -> Choice:
    """The same with all at hand. The weights take the place of the logits, which nobody else may need any more."""
    logits_RV = logits_RV.float()
    if settings.temperature_R1 is not None:
        logits_RV /= settings.temperature_R1
    # From the logits: as weights, two that differ by less than float32's precision at 1 would tie.
    best_G1 = logits_RV[settings.greedy.index].argmax(-1, keepdim=True) if settings.greedy else None
    weights_RV = logits_RV.sub_(logits_RV.amax(-1, keepdim=True)).exp_()
    if settings.limited:
        rows, cut = settings.limited.index, [settings.sampling[i] for i in settings.limited.numbers]
        weights_RV[rows] = heaviest(weights_RV[rows], cut)
    token_R1, total_R1 = pick(weights_RV, uniform_R1)
    if settings.greedy and best_G1 is not None:
        token_R1[settings.greedy.index] = best_G1
    shift_R1 = total_R1.log()
    logprob_R1 = weights_RV.gather(-1, token_R1).double().log_() - shift_R1
    tops: Callable[[], dict[int, Top]] = dict
    if settings.asking:
        tops = partial(_tops, weights_RV, shift_R1, settings.sampling, settings.asking)
    return Choice(token_R1[:, 0], logprob_R1[:, 0], tops)


def _tops(weights_RV: Tensor, shift_R1: Tensor, sampling: Sequence[Sampling], asking: Rows) -> dict[int, Top]:
    wanted = [sampling[i].top_logprobs for i in asking.numbers]
    heavy_AK, ids_AK = weights_RV[asking.index].topk(min(max(wanted), weights_RV.shape[-1]))
    logprobs_AK = heavy_AK.double().log_() - shift_R1[asking.index]
    kept_A = (heavy_AK > 0).sum(-1).tolist()  # what was cut off has no weight, and is no alternative
    out: dict[int, Top] = {}
    for place, (i, most) in enumerate(zip(asking.numbers, wanted, strict=True)):
        end = min(kept_A[place], most)
        out[i] = tuple(zip(ids_AK[place, :end].tolist(), logprobs_AK[place, :end].tolist(), strict=True))
    return out


def pick(weights_RV: Tensor, uniform_R1: Tensor) -> tuple[Tensor, Tensor]:
    """The token at which the running sum of the weights passes the uniform share of the total; and the total.

    Running sums are float64: in float32 a token rarer than 1e-7 would be lost, and the log-probability blurred. Over a
    whole vocabulary they are slow, so they are taken over pieces first, then within the piece that holds the point.
    """
    rows, width = weights_RV.shape
    if width % _PIECE:
        weights_RV = torch.nn.functional.pad(weights_RV, (0, -width % _PIECE))
    pieces_RPW = weights_RV.view(rows, -1, _PIECE)
    sums_RP = pieces_RPW.sum(-1).cumsum(-1, dtype=torch.float64)
    total_R1 = sums_RP[:, -1:]
    point_R1 = uniform_R1 * total_R1
    piece_R1 = _passed(sums_RP, point_R1)
    before_R1 = torch.nn.functional.pad(sums_RP, (1, 0)).gather(-1, piece_R1)
    inside_RW = pieces_RPW.gather(1, piece_R1[:, :, None].expand(-1, -1, _PIECE))[:, 0].cumsum(-1, dtype=torch.float64)
    token_R1 = _passed(inside_RW, point_R1.sub_(before_R1)).add_(piece_R1, alpha=_PIECE)
    return token_R1.clamp_(max=width - 1), total_R1  # only a row of NaN comes to the padding


def _passed(sums_RN: Tensor, point_R1: Tensor) -> Tensor:
    """The first place where the sum lies above the point; it has weight, even if rounding puts the point at the end."""
    point_R1 = torch.minimum(point_R1, sums_RN[:, -1:] * _BELOW)
    # a row of NaN finds nothing, and must not point past the end
    return torch.searchsorted(sums_RN, point_R1, right=True).clamp_(max=sums_RN.shape[-1] - 1)


def heaviest(weights_RV: Tensor, sampling: Sequence[Sampling]) -> Tensor:
    """Zeroes all but the top_k heaviest, then all but the heaviest that together reach top_p of what is left."""
    width = weights_RV.shape[-1]
    top_k = [min(s.top_k or width, width) for s in sampling]  # a number of any size; a tensor holds 64 bits
    top_p = [s.top_p if s.top_p < 1 else float("inf") for s in sampling]  # the sum of all may round to below 1
    heavy_RV, order_RV = weights_RV.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(width, device=weights_RV.device)
    heavy_RV = heavy_RV * (rank < torch.tensor(top_k, device=weights_RV.device)[:, None])
    summed_RV = heavy_RV.cumsum(-1, dtype=torch.float64)
    before_RV = summed_RV - heavy_RV  # a token stays if those heavier than it do not reach top_p yet
    limit_R1 = torch.tensor(top_p, device=weights_RV.device, dtype=torch.float64)[:, None] * summed_RV[:, -1:]
    heavy_RV = heavy_RV * (before_RV < limit_R1)
    return torch.zeros_like(weights_RV).scatter_(-1, order_RV, heavy_RV)
