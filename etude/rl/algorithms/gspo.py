"""GSPO: one importance ratio for a whole segment, the geometric mean over its tokens, clipped as one."""

from __future__ import annotations

from collections.abc import Sequence

import pydantic
from pydantic import Field

from etude.learn.streams import Correction
from etude.rl.algorithms.base import Algorithm, BatchShape
from etude.rl.algorithms.grpo import normalised


class Gspo(Algorithm):
    scales_rewards = True

    class Settings(pydantic.BaseModel, extra="forbid", frozen=True):
        eps: float = Field(1e-4, gt=0, description="added to the deviation")
        # A mean over many tokens moves far less than a single ratio: these are the paper's bounds.
        low: float = Field(3e-4, ge=0, le=1, description="how far below 1 the ratio counts")
        high: float = Field(4e-4, ge=0, description="how far above 1 the ratio counts")

    settings: Settings

    def advantages(self, rewards: Sequence[float]) -> list[float]:
        return normalised(rewards, self.settings.eps)

    def weights(self, lengths: Sequence[int], plan: BatchShape) -> list[float]:
        return [1.0 / (plan.groups * plan.group * max(1, length)) for length in lengths]

    def correction(self) -> Correction:
        return Correction("clip", "sequence", 1 - self.settings.low, 1 + self.settings.high)
