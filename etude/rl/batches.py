"""From groups to the learner's batch: rewards, KL, the algorithm, and what is left out.

Knows the learner's verb `score` for the frozen reference and for ratios of whole rollouts; neither how a batch is
trained nor where groups come from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from etude.core.rl_settings import RLSettings
from etude.learn.streams import Batch, Correction, Floats, Item, Sampled
from etude.rl import importance
from etude.rl import reference as references
from etude.rl.algorithms.base import Algorithm, BatchShape, StepView
from etude.rl.feedback import HintStreams
from etude.rl.groups import Rollout, RolloutGroup
from etude.rl.reference import Reference, Scores

Nested = list[list[list[Floats]]]  # of each trace of each rollout of each group


@dataclass(frozen=True)
class Prepared:
    """A batch, and what became of the groups it was made from."""

    batch: Batch  # only items that cost a forward
    zero_variance: int  # groups whose rewards teach nothing; hints may
    masked: int  # rollouts left out because a limit stopped them
    trained_tokens: int  # sampled tokens that are learnt from
    reference_kl: float  # mean k1 of a rollout against the frozen weights; 0 when it is off
    diagnostics: dict[str, float] = field(default_factory=dict)  # means and variances of the estimators of that KL
    feedback: dict[str, float] = field(default_factory=dict)  # what became of the hints; empty when there is none


async def prepare(
    groups: Sequence[RolloutGroup],
    algorithm: Algorithm,
    plan: BatchShape,
    settings: RLSettings,
    learner: Scores,
    step: int = 0,
) -> Prepared:
    """What these groups ask of the learner; `step` is how many steps were trained before."""
    view = StepView(plan.groups, plan.group, plan.longest, plan.limit, step)
    rollouts = [group.rollouts for group in groups]
    reference = await references.compare(rollouts, learner) if settings.kl else None
    correction, whole_rollouts = chosen_correction(algorithm, settings)
    streamed = reference if settings.kl_estimator != "k1" else None
    live = await present(rollouts, learner, settings) if whole_rollouts or streamed is not None else None
    rewards = [[rollout.reward for rollout in group] for group in rollouts]
    if reference is not None and streamed is None:
        rewards = [
            [reward - settings.kl * k1 for reward, k1 in zip(group, reference.k1(place), strict=True)]
            for place, group in enumerate(rewards)
        ]
    algorithm.observe(rollouts, rewards, view)
    hints = HintStreams(algorithm.feedback(settings.feedback), plan, step, settings.plausible)
    kept: list[Item] = []
    zero_variance = masked = 0
    for place, group in enumerate(rollouts):
        found = False
        for member, (rollout, items) in enumerate(
            zip(group, algorithm.items(group, rewards[place], view), strict=True)
        ):
            found = found or any(item.forward_tokens for item in items)
            if settings.overlong == "mask" and rollout.overlong:
                masked += 1  # it is still part of its group's mean
                items = []
            elif streamed is not None and live is not None:
                items = with_reference(rollout, items, streamed, (place, member), live, view, settings)
            if whole_rollouts and live is not None:
                ratio = math.exp(importance.log_ratio(rollout, live[place][member]))
                items = [importance.weighted(item, correction, ratio) for item in items]
            # A group of equal rewards has advantages of 0: its items cannot move the gradient and cost no forward.
            counting = [item for item in items if item.forward_tokens]
            # A hint teaches its turn whatever the rollout was worth, without any difference in its group too.
            asked = hints.add(rollout, counting) if hints.on else counting
            kept += [replayed(item, settings) for item in asked]
        # Feedback alone asks for no policy gradient, whatever the rewards are.
        zero_variance += not found and len(set(rewards[place])) <= 1
    # One stream of an item: KL and the policy gradient are about the same tokens.
    sampled = [[stream for stream in item.streams if isinstance(stream.target, Sampled)][:1] for item in kept]
    trained = sum(int((stream.weight_T != 0).sum()) for streams in sampled for stream in streams)
    return Prepared(
        Batch(kept, Correction() if whole_rollouts else correction),
        zero_variance,
        masked,
        trained,
        reference.mean_k1 if reference is not None else 0.0,
        reference.variances if reference is not None else {},
        hints.metrics,
    )


def chosen_correction(algorithm: Algorithm, settings: RLSettings) -> tuple[Correction, bool]:
    """What is done about old tokens, and whether ratios are of whole rollouts."""
    own = algorithm.correction() if settings.correction == "auto" else None
    if own is not None:
        return own, False
    kind = "truncate" if settings.correction == "auto" else settings.correction
    level: Literal["token", "sequence"] = "sequence" if settings.correction_level == "sequence" else "token"
    found = Correction(kind, level, settings.correction_low, settings.correction_high)
    return found, settings.correction_level == "rollout" and kind != "none"


async def present(rollouts: Sequence[Sequence[Rollout]], learner: Scores, settings: RLSettings) -> Nested:
    """Log-probabilities of every token under the weights that are about to be trained, routed as they will be."""
    items = [
        replayed(Item(trace.ids_T, [], rollout.temperature, trace.experts_TBK), settings)
        for group in rollouts
        for rollout in group
        for trace in rollout.traces
    ]
    scores = iter(await learner.score(items))
    return [[[next(scores) for _ in rollout.traces] for rollout in group] for group in rollouts]


def with_reference(
    rollout: Rollout,
    items: Sequence[Item],
    reference: Reference,
    at: tuple[int, int],
    live: Nested,
    view: StepView,
    settings: RLSettings,
) -> list[Item]:
    """The rollout's items with the KL of each segment as one stream more."""
    weight = settings.kl / (view.groups * view.group * view.longest)
    streams = []
    for number, trace in enumerate(rollout.traces):
        log_r_T = reference.log_ratios[at[0]][at[1]][number]
        log_r_T = log_r_T - trace.sampled_T * (live[at[0]][at[1]][number] - trace.logprob_T)
        facts = (trace.sampled_T.astype(np.float32), trace.logprob_T)
        streams.append(references.stream(settings.kl_estimator, log_r_T, *facts, weight))
    # One forward for both, where the algorithm wrote an item for each segment.
    shared = len(items) == len(streams) and all(
        len(item.tokens_T) == len(trace.ids_T) for item, trace in zip(items, rollout.traces, strict=True)
    )
    if shared:
        pairs = zip(items, streams, strict=True)
        return [replace(item, streams=[*item.streams, stream]) for item, stream in pairs]
    own = [
        Item(trace.ids_T, [stream], rollout.temperature, trace.experts_TBK)
        for trace, stream in zip(rollout.traces, streams, strict=True)
    ]
    return [*items, *own]


def replayed(item: Item, settings: RLSettings) -> Item:
    """With its experts, if they are to be chosen again, and the bound that they must pass for it."""
    if item.experts_TBK is None:
        return item
    return replace(item, experts_TBK=item.experts_TBK if settings.replay else None, plausible=settings.plausible)
