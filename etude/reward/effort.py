"""What an answer cost: minus C(x), where x weighs six kinds of effort and C grows ever more slowly.

    C(x) = ((1 + k x)^(1 - q) - 1) / (k (1 - q)),   C(x) = ln(1 + k x) / k for q = 1

C(0) = 0 and C'(x) = (1 + k x)^-q: the first call of an easy task is felt, the hundredth of a long one hardly. With
q = 0 it is x itself, and above 1 it never passes 1 / (k (q - 1)). Where the prompt states a level of effort, C is
multiplied by that level's factor: the same work costs more where little was asked for. Knows the counts of a
trajectory and its level, nothing else.
"""

from __future__ import annotations

import math

import pydantic
from pydantic import Field

from etude.harness.trajectory import Effort as Counts
from etude.reward.base import GradedRollout, Part


def penalty(x: float, k: float, q: float) -> float:
    """C(x). Exact also where q is so near 1 that the formula as written would divide nothing by nothing."""
    grown = math.log1p(k * x)
    # expm1 keeps the digits that a difference of nearly equal numbers loses.
    return grown / k if q == 1 else math.expm1((1 - q) * grown) / (k * (1 - q))


class Effort(Part):
    class Settings(pydantic.BaseModel, extra="forbid", frozen=True):
        k: float = Field(1.0, gt=0, description="how soon effort begins to count less")
        q: float = Field(1.0, ge=0, description="how fast it counts less: 0 never, above 1 there is a most")
        thinking: float = Field(1e-3, ge=0, description="weight of a thinking token")
        call: float = Field(1e-3, ge=0, description="weight of a token of a tool call")
        output: float = Field(2e-4, ge=0, description="weight of a token of tool output")
        final: float = Field(1e-3, ge=0, description="weight of a token of the final message")
        calls: float = Field(0.02, ge=0, description="weight of a tool call")
        turns: float = Field(0.02, ge=0, description="weight of a turn")
        summary: float = Field(1e-3, ge=0, description="weight of a token of a summary")
        levels: dict[str, float] = Field(
            {"low": 2.0, "medium": 1.0, "high": 0.25},
            description="factor of the whole for each level of harness.effort; 1 where the prompt states none",
        )

    settings: Settings

    def score(self, rollout: GradedRollout) -> float:
        factor = self.settings.levels.get(rollout.trajectory.terms.effort, 1.0)
        return -factor * penalty(self.weigh(rollout.trajectory.effort), self.settings.k, self.settings.q)

    def weigh(self, counts: Counts) -> float:
        """x: the counts, weighted."""
        weights = self.settings
        return (
            weights.thinking * counts.thinking_tokens
            + weights.call * counts.call_tokens
            + weights.output * counts.output_tokens
            + weights.final * counts.final_tokens
            + weights.calls * counts.calls
            + weights.turns * counts.turns
            + weights.summary * counts.summary_tokens
        )
