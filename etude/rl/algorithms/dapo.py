"""DAPO: GRPO's advantages with a clip that leaves more room upwards, every token of a group counted alike, groups
without signal replaced, and rollouts near the limit of length punished softly instead of all at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import pydantic
from pydantic import Field

from etude.learn.streams import Correction, Item
from etude.rl.algorithms.base import Algorithm, BatchShape
from etude.rl.algorithms.grpo import normalised
from etude.rl.groups import Rollout


class Dapo(Algorithm):
    scales_rewards = True

    class Settings(pydantic.BaseModel, extra="forbid", frozen=True):
        eps: float = Field(1e-4, gt=0, description="added to the deviation")
        low: float = Field(0.2, ge=0, le=1, description="how far below 1 the ratio counts")
        high: float = Field(0.28, ge=0, description="how far above 1 the ratio counts")
        refill: int = Field(3, ge=0, description="groups without signal that are replaced for each one with; 0: none")
        overlong: float = Field(
            0.2, ge=0, le=1, description="share of harness.limits.sampled_tokens in which the punishment grows; 0: none"
        )
        penalty: float = Field(1.0, ge=0, description="punishment at the limit")

    settings: Settings

    def advantages(self, rewards: Sequence[float]) -> list[float]:
        return normalised(rewards, self.settings.eps)

    def weights(self, lengths: Sequence[int], plan: BatchShape) -> list[float]:
        return [1.0 / (plan.groups * max(1, sum(lengths)))] * len(lengths)

    def items(self, rollouts: Sequence[Rollout], rewards: Sequence[float], plan: BatchShape) -> list[list[Item]]:
        shaped = [r - self.punishment(each.sampled_tokens, plan) for r, each in zip(rewards, rollouts, strict=True)]
        return super().items(rollouts, shaped, plan)

    def punishment(self, length: int, plan: BatchShape) -> float:
        """0 up to where the buffer before the limit begins, then growing to `penalty` at the limit."""
        buffer = self.settings.overlong * plan.limit
        return self.settings.penalty * min(1.0, max(0.0, length - (plan.limit - buffer)) / buffer) if buffer else 0.0

    def correction(self) -> Correction:
        return Correction("clip", "token", 1 - self.settings.low, 1 + self.settings.high)

    @property
    def refill(self) -> int:
        return self.settings.refill
