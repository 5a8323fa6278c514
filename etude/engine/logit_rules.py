"""What bends a request's logits before they are sampled: penalties, biases, and which tokens may come next at all.

Applied before the temperature. The log-probability of a token is then that of the bent distribution, as it is the one
sampled from. Rows without rules are not looked at. Training never uses any of this.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from etude.engine.request import Request

MOST_BIASES = 1024


class Constraint(Protocol):
    """Which tokens may follow. One object serves one answer: it is shown ever longer beginnings of it."""

    def allowed(self, sampled: Sequence[int]) -> NDArray[np.bool_] | None:
        """For each id of the vocabulary whether it may come behind these; None allows all."""


@dataclass(eq=False)
class LogitRules:
    """The rules of one answer."""

    frequency_penalty: float = 0.0  # taken from the logit of a token for each time it was sampled
    presence_penalty: float = 0.0  # taken once from each token that was sampled
    repetition_penalty: float = 1.0  # logits of tokens in prompt and answer are divided by it, negative ones multiplied
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    min_p: float = 0.0  # tokens less likely than this share of the likeliest are cut
    min_tokens: int = 0  # before so many, no stop id
    constraint: Constraint | None = None
    _counts: Counter[int] = field(default_factory=Counter)
    _counted: int = 0

    def __bool__(self) -> bool:
        plain = LogitRules()
        names = ("frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias", "min_p", "min_tokens")
        return self.constraint is not None or any(getattr(self, name) != getattr(plain, name) for name in names)

    def apply(self, logits_V: Tensor, request: Request) -> None:
        """Changes the logits of the request's next token in place."""
        sampled, sampling = request.sampled, request.sampling
        self._penalise(logits_V, request.prompt, sampled)
        if self.logit_bias:
            ids = torch.tensor(list(self.logit_bias), device=logits_V.device)
            logits_V[ids] += torch.tensor(list(self.logit_bias.values()), device=logits_V.device, dtype=logits_V.dtype)
        if self.constraint is not None and (allowed := self.constraint.allowed(sampled)) is not None:
            logits_V.masked_fill_(~torch.from_numpy(allowed).to(logits_V.device), -math.inf)
        if len(sampled) < self.min_tokens and sampling.stop_ids:
            ends = torch.tensor(sampling.stop_ids, device=logits_V.device)
            # A grammar that is at its end allows nothing but an end: that comes before a wished length.
            if (logits_V > -math.inf).sum() > (logits_V[ends] > -math.inf).sum():
                logits_V[ends] = -math.inf
        if self.min_p and sampling.temperature:
            # In logits: p < min_p * p_max is what lies below the largest by more than T * log(1 / min_p).
            logits_V.masked_fill_(logits_V < logits_V.max() + sampling.temperature * math.log(self.min_p), -math.inf)

    def _penalise(self, logits_V: Tensor, prompt: Sequence[int], sampled: Sequence[int]) -> None:
        if not (self.frequency_penalty or self.presence_penalty or self.repetition_penalty != 1):
            return
        self._counts.update(sampled[self._counted :])
        self._counted = len(sampled)
        if self.repetition_penalty != 1 and (seen := {*prompt, *self._counts}):
            ids = torch.tensor(sorted(seen), device=logits_V.device)
            old = logits_V[ids]
            logits_V[ids] = torch.where(old > 0, old / self.repetition_penalty, old * self.repetition_penalty)
        if self._counts:
            ids = torch.tensor(list(self._counts), device=logits_V.device)
            counts = torch.tensor(list(self._counts.values()), device=logits_V.device, dtype=logits_V.dtype)
            logits_V[ids] -= self.frequency_penalty * counts + self.presence_penalty


def apply_rules(logits_RV: Tensor, requests: Sequence[Request]) -> Tensor:
    """The logits, those of requests with rules changed in place."""
    for row, request in enumerate(requests):
        if request.rules is not None:
            request.rules.apply(logits_RV[row], request)
    return logits_RV


class OneOf:
    """An answer that begins with one of several sequences of ids; each says how it goes on, None: freely.

    `first` are sequences behind what the prompt already holds of them: an empty one goes on at once.
    """

    def __init__(self, first: Mapping[tuple[int, ...], Constraint | None], vocab_size: int) -> None:
        self._first, self._vocab_size = dict(first), vocab_size

    def allowed(self, sampled: Sequence[int]) -> NDArray[np.bool_] | None:
        begun = tuple(sampled)
        # The longest first: where one sequence begins another, who wrote more of it meant the longer.
        for sequence in sorted(self._first, key=len, reverse=True):
            if begun[: len(sequence)] == sequence and not self._longer(begun, sequence):
                rest = self._first[sequence]
                return rest.allowed(begun[len(sequence) :]) if rest is not None else None
        mask = np.zeros(self._vocab_size, dtype=np.bool_)
        for sequence in self._first:
            if len(sequence) > len(begun) and sequence[: len(begun)] == begun:
                mask[sequence[len(begun)]] = True
        return mask

    def _longer(self, begun: tuple[int, ...], sequence: tuple[int, ...]) -> bool:
        """Whether a longer sequence is still possible, and nothing decided between the two yet."""
        return len(begun) == len(sequence) and any(
            len(other) > len(sequence) and other[: len(sequence)] == sequence for other in self._first
        )
