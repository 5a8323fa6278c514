"""Dr. GRPO: reward minus the group's mean; no division by the deviation, none by the length of an answer."""

from __future__ import annotations

from collections.abc import Sequence

import pydantic
from pydantic import Field

from etude.rl.algorithms.base import Algorithm, BatchShape


class DrGrpo(Algorithm):
    class Settings(pydantic.BaseModel, extra="forbid", frozen=True):
        tokens: int = Field(0, ge=0, description="constant that stands for a rollout's length; 0 takes rl.normaliser")

    settings: Settings

    def advantages(self, rewards: Sequence[float]) -> list[float]:
        if min(rewards) == max(rewards):  # exactly nothing, where rounding of the mean would leave a trace
            return [0.0] * len(rewards)
        mean = sum(rewards) / len(rewards)
        return [reward - mean for reward in rewards]

    def weights(self, lengths: Sequence[int], plan: BatchShape) -> list[float]:
        return [1.0 / (plan.groups * plan.group * (self.settings.tokens or plan.longest))] * len(lengths)
