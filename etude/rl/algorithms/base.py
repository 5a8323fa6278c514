"""What an algorithm is: settings, and the step from a group of rewarded rollouts to items for the learner.

Most algorithms are an `advantages` and a `weights`, one number for each rollout; one that wants more (other streams,
a number for each token) writes `items` itself. Off-policy correction is the batch's, and KL is in the rewards already:
an algorithm knows neither, and no other group than the one it is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pydantic

from etude.core.settings import FeedbackSettings
from etude.learn.streams import Item, Sampled, Stream
from etude.rl.groups import Rollout


@dataclass(frozen=True)
class BatchShape:
    """What every group of a run shares."""

    groups: int  # in a step
    group: int  # rollouts of a task
    longest: int  # tokens that stand for a rollout's length: a constant of the run


class Algorithm:
    """Base of all algorithms. One instance serves a whole run."""

    class Settings(pydantic.BaseModel, extra="forbid", frozen=True):
        """What a recipe may set beside `use`."""

    def __init__(self, settings: Any) -> None:
        self.settings = settings

    def advantages(self, rewards: Sequence[float]) -> list[float]:
        """How much better than expected each rollout of a group was."""
        raise NotImplementedError

    def weights(self, lengths: Sequence[int], plan: BatchShape) -> list[float]:
        """What each sampled token of each rollout counts; `lengths` are sampled tokens.

        A constant, unless an algorithm says otherwise: the same for every token of a run, so that no rollout is
        favoured for being short or long.
        """
        return [1.0 / (plan.groups * plan.group * plan.longest)] * len(lengths)

    def feedback(self, settings: FeedbackSettings) -> FeedbackSettings:
        """How feedback teaches beside it: as the recipe says, unless the algorithm is feedback itself."""
        return settings

    def items(self, rollouts: Sequence[Rollout], rewards: Sequence[float], plan: BatchShape) -> list[list[Item]]:
        """The training sequences of each rollout of a group."""
        advantages = self.advantages(rewards)
        weights = self.weights([rollout.sampled_tokens for rollout in rollouts], plan)
        return [
            policy_gradient(rollout, advantage, weight)
            for rollout, advantage, weight in zip(rollouts, advantages, weights, strict=True)
        ]


def policy_gradient(rollout: Rollout, advantage: float, weight: float) -> list[Item]:
    """One item for each segment: every sampled token with the same advantage and the same weight."""
    items = []
    for trace in rollout.traces:
        sampled_T = trace.sampled_T.astype(np.float32)
        target = Sampled(sampled_T * np.float32(advantage), trace.logprob_T)
        stream = Stream("main", sampled_T * np.float32(weight), target)
        items.append(Item(trace.ids_T, [stream], rollout.temperature, trace.experts_TBK))
    return items
