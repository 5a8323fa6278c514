"""GRPO as first published: advantages divided by the group's deviation, each answer averaged over its own length."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pydantic
from pydantic import Field

from etude.rl.algorithms.base import Algorithm, BatchShape


def normalised(rewards: Sequence[float], eps: float) -> list[float]:
    """Reward minus the group's mean, divided by the group's deviation."""
    # Exactly nothing: rounding of the mean, divided by so small an eps, would not be.
    if min(rewards) == max(rewards):
        return [0.0] * len(rewards)
    mean = sum(rewards) / len(rewards)
    deviation = math.sqrt(sum((reward - mean) ** 2 for reward in rewards) / len(rewards))
    return [(reward - mean) / (deviation + eps) for reward in rewards]


class Grpo(Algorithm):
    scales_rewards = True

    class Settings(pydantic.BaseModel, extra="forbid", frozen=True):
        eps: float = Field(1e-4, gt=0, description="added to the deviation")

    settings: Settings

    def advantages(self, rewards: Sequence[float]) -> list[float]:
        return normalised(rewards, self.settings.eps)

    def weights(self, lengths: Sequence[int], plan: BatchShape) -> list[float]:
        return [1.0 / (plan.groups * plan.group * max(1, length)) for length in lengths]
