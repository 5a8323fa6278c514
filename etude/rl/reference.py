"""KL divergence from the frozen starting model: k1 in the reward, or k2 or k3 as a stream; and what each would vary by.

With r = p(reference) / p(policy) of a sampled token: k1 = -log r, k2 = (log r)^2 / 2, k3 = r - 1 - log r. Where an
estimator stands decides what its gradient is the gradient of: k1 taken from the reward and k2 as a loss give that of
KL(policy || reference); k3 as a loss gives that of KL(reference || policy); k1 as a loss gives nothing on average.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from etude.learn.streams import Floats, Item, Sampled, Stream
from etude.rl.groups import Rollout

Doubles = npt.NDArray[np.float64]


class Scores(Protocol):
    async def score(self, items: Sequence[Item], weights: str = "live") -> list[Floats]: ...


@dataclass(frozen=True)
class Reference:
    """log r of the sampled tokens of each trace of each rollout of each group (0 elsewhere), under the sampler."""

    log_ratios: list[list[list[Doubles]]] = field(default_factory=list)
    variances: dict[str, float] = field(default_factory=dict)

    def k1(self, group: int) -> list[float]:
        """Of each rollout: the sum over its tokens."""
        return [-float(sum(part.sum() for part in rollout)) for rollout in self.log_ratios[group]]

    @property
    def mean_k1(self) -> float:
        """Of a rollout."""
        flat = [value for group in range(len(self.log_ratios)) for value in self.k1(group)]
        return sum(flat) / len(flat) if flat else 0.0


def estimates(log_r: Doubles) -> dict[str, Doubles]:
    """k1, k2 and k3 of each token."""
    return {"k1": -log_r, "k2": log_r**2 / 2, "k3": np.expm1(log_r) - log_r}


async def compare(groups: Sequence[Sequence[Rollout]], learner: Scores) -> Reference:
    """Scores the rollouts under the frozen weights."""
    # The frozen model chooses its experts itself: those that the engine was routed to are the policy's.
    items = [Item(trace.ids_T, [], each.temperature) for group in groups for each in group for trace in each.traces]
    scores = iter(await learner.score(items, "frozen"))
    log_ratios = [
        [[np.where(t.sampled_T, next(scores).astype(np.float64) - t.logprob_T, 0.0) for t in r.traces] for r in group]
        for group in groups
    ]
    masks = [trace.sampled_T for group in groups for rollout in group for trace in rollout.traces]
    flat = [part for group in log_ratios for rollout in group for part in rollout]
    tokens = np.concatenate([part[mask] for part, mask in zip(flat, masks, strict=True)]) if flat else np.zeros(0)
    found: dict[str, float] = {}
    if len(tokens):
        for name, values in estimates(tokens).items():
            found |= {f"reference_{name}": float(values.mean()), f"reference_{name}_variance": float(values.var())}
    return Reference(log_ratios, found)


def stream(
    estimator: Literal["k1", "k2", "k3"], log_r_T: Doubles, sampled_T: Floats, logprob_T: Floats, weight: float
) -> Stream:
    """The estimator's gradient as a stream; `log_r_T` is under the present weights.

    k2's gradient is -log r times that of log p, and k3's is (1 - r) times it: a policy gradient whose advantage is
    log r or r - 1, which the batch's correction treats like any other.
    """
    advantage_T = log_r_T if estimator == "k2" else np.expm1(log_r_T)
    return Stream("main", sampled_T * np.float32(weight), Sampled(advantage_T.astype(np.float32), logprob_T))
