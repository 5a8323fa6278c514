"""From groups to the learner's batch: rewards, KL, the algorithm, and what is left out.

Knows the learner's verb `score` for the frozen reference; neither how a batch is trained nor where groups come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from etude.core.settings import RLSettings
from etude.learn.streams import Batch, Correction, Floats, Item, Twin
from etude.rl.algorithms.base import Algorithm, BatchShape
from etude.rl.feedback.streams import HintStreams
from etude.rl.groups import Rollout, RolloutGroup


class Scores(Protocol):
    async def score(self, items: Sequence[Item], weights: str = "live") -> list[Floats]: ...


@dataclass(frozen=True)
class Prepared:
    """A batch, and what became of the groups it was made from."""

    batch: Batch  # only items that cost a forward
    zero_variance: int  # groups that teach nothing
    masked: int  # rollouts left out because a limit stopped them
    trained_tokens: int  # sampled tokens that are learnt from
    reference_kl: float  # mean k1 of a rollout against the frozen weights; 0 when it is off
    feedback: dict[str, float] = field(default_factory=dict)  # what became of the hints; empty when there is none


async def prepare(
    groups: Sequence[RolloutGroup],
    algorithm: Algorithm,
    plan: BatchShape,
    settings: RLSettings,
    learner: Scores,
    step: int = 0,
) -> Prepared:
    """What these groups ask of the learner."""
    hints = HintStreams(algorithm.feedback(settings.feedback), plan, step, settings.plausible)
    divergence = await reference_divergence([group.rollouts for group in groups], learner) if settings.kl else None
    kept: list[Item] = []
    zero_variance = masked = 0
    for place, group in enumerate(groups):
        rewards = [rollout.reward for rollout in group.rollouts]
        if divergence is not None:
            rewards = [r - settings.kl * k1 for r, k1 in zip(rewards, divergence[place], strict=True)]
        found = False
        for rollout, items in zip(group.rollouts, algorithm.items(group.rollouts, rewards, plan), strict=True):
            # A group of equal rewards has advantages of 0: its items cannot move the gradient and cost no forward.
            counting = [item for item in items if item.forward_tokens]
            found = found or bool(counting)
            if settings.overlong == "mask" and rollout.overlong:
                masked += 1  # it is still part of its group's mean
                counting = []
            # A hint teaches its turn whatever the rollout was worth, without any difference in its group too.
            asked = hints.add(rollout, counting) if hints.on else counting
            kept += [replayed(item, settings) for item in asked]
        zero_variance += not found
    correction = Correction(
        settings.correction, settings.correction_level, settings.correction_low, settings.correction_high
    )
    streams = [stream for item in kept for stream in item.streams if not isinstance(stream.target, Twin)]
    trained = sum(int((stream.weight_T != 0).sum()) for stream in streams)
    flat = [k1 for group_k1 in divergence or [] for k1 in group_k1]
    mean = sum(flat) / len(flat) if flat else 0.0
    return Prepared(Batch(kept, correction), zero_variance, masked, trained, mean, hints.metrics)


def replayed(item: Item, settings: RLSettings) -> Item:
    """With its experts, if they are to be chosen again, and the bound that they must pass for it."""
    if item.experts_TBK is None:
        return item
    return replace(item, experts_TBK=item.experts_TBK if settings.replay else None, plausible=settings.plausible)


async def reference_divergence(groups: Sequence[Sequence[Rollout]], learner: Scores) -> list[list[float]]:
    """k1 of each rollout against the frozen weights: the sum of log p(sampler) - log p(reference) over its tokens."""
    traces = [(trace, rollout.temperature) for group in groups for rollout in group for trace in rollout.traces]
    scores = iter(await learner.score([Item(trace.ids_T, [], t) for trace, t in traces], weights="frozen"))
    return [
        [sum(float((trace.logprob_T - next(scores))[trace.sampled_T].sum()) for trace in r.traces) for r in group]
        for group in groups
    ]
