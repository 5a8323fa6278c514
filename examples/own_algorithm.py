"""Successes count for more the rarer they are in their group."""

from collections.abc import Sequence

import pydantic
from pydantic import Field

from etude.rl.algorithms.base import Algorithm


class Rare(Algorithm):
    class Settings(pydantic.BaseModel, extra="forbid", frozen=True):
        floor: float = Field(0.1, gt=0, le=1, description="smallest success rate that is divided by")

    settings: Settings

    def advantages(self, rewards: Sequence[float]) -> list[float]:
        if min(rewards) == max(rewards):
            return [0.0] * len(rewards)  # nothing to learn: the group costs no forward
        mean = sum(rewards) / len(rewards)
        return [(reward - mean) / max(mean, self.settings.floor) for reward in rewards]
