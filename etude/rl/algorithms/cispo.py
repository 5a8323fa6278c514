"""CISPO: the importance ratio is cut and stopped, and no token is dropped: even one past the bound is learnt from."""

from __future__ import annotations

from collections.abc import Sequence

import pydantic
from pydantic import Field

from etude.learn.streams import Correction
from etude.rl.algorithms.base import Algorithm, BatchShape
from etude.rl.algorithms.grpo import normalised


class Cispo(Algorithm):
    scales_rewards = True

    class Settings(pydantic.BaseModel, extra="forbid", frozen=True):
        eps: float = Field(1e-4, gt=0, description="added to the deviation")
        low: float = Field(0.0, ge=0, description="least ratio; 0 cuts nothing below")
        high: float = Field(5.0, gt=0, description="largest ratio")

    settings: Settings

    def advantages(self, rewards: Sequence[float]) -> list[float]:
        return normalised(rewards, self.settings.eps)

    def weights(self, lengths: Sequence[int], plan: BatchShape) -> list[float]:
        return [1.0 / (plan.groups * max(1, sum(lengths)))] * len(lengths)

    def correction(self) -> Correction:
        return Correction("truncate", "token", self.settings.low, self.settings.high)
