"""What an algorithm is: settings, and the step from a group of rewarded rollouts to items for the learner.

Most algorithms are an `advantages` and a `weights`, one number for each rollout; one that wants more (other streams,
a number for each token) writes `items` itself. One that needs to know all groups of a step looks at them in `observe`
and may keep `state`, which the checkpoint saves. KL against the reference is in the rewards or a stream of its own
already: an algorithm does not know it. Off-policy correction is the batch's; `correction` is the algorithm's own, which
the batch takes in place of the one of the recipe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pydantic

from etude.core.rl_settings import FeedbackSettings
from etude.learn.streams import Correction, Item, Sampled, Stream
from etude.rl.groups import Rollout


@dataclass(frozen=True)
class BatchShape:
    """What every group of a run shares."""

    groups: int  # in a step
    group: int  # rollouts of a task
    longest: int  # tokens that stand for a rollout's length: a constant of the run
    limit: int = 0  # most tokens that a rollout may sample; 0 is unknown


@dataclass(frozen=True)
class StepView(BatchShape):
    """The same, and which step of the run it is."""

    step: int = 0


class Algorithm:
    """Base of all algorithms. One instance serves a whole run."""

    scales_rewards: ClassVar[bool] = False  # divides by the group's deviation: then KL must not be in the rewards
    single: ClassVar[bool] = False  # its baseline is not the group's, so that a group may be of one rollout

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
        """The training sequences of each rollout of a group; `plan` is the step's `StepView`."""
        advantages = self.advantages(rewards)
        weights = self.weights([rollout.sampled_tokens for rollout in rollouts], plan)
        return [
            policy_gradient(rollout, advantage, weight)
            for rollout, advantage, weight in zip(rollouts, advantages, weights, strict=True)
        ]

    # For those who need more than one group

    def observe(self, groups: Sequence[Sequence[Rollout]], rewards: Sequence[Sequence[float]], view: StepView) -> None:
        """Sees all groups of a step before `items` is asked about any of them."""

    def state(self) -> dict[str, Any]:
        """What it keeps from step to step, as JSON; saved with every checkpoint."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from what `state` returned."""

    # What it asks of the batch

    def correction(self) -> Correction | None:
        """Its own off-policy correction, if it is defined by one."""
        return None

    @property
    def refill(self) -> int:
        """Most groups without signal, for each one with, that are replaced by others in a step; 0 replaces none."""
        return 0


def policy_gradient(rollout: Rollout, advantage: float, weight: float) -> list[Item]:
    """One item for each segment: every sampled token with the same advantage and the same weight."""
    items = []
    for trace in rollout.traces:
        sampled_T = trace.sampled_T.astype(np.float32)
        target = Sampled(sampled_T * np.float32(advantage), trace.logprob_T)
        stream = Stream("main", sampled_T * np.float32(weight), target)
        items.append(Item(trace.ids_T, [stream], rollout.temperature, trace.experts_TBK))
    return items
