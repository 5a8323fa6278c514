"""Targeted textual feedback: the divergence between a turn with a hint above it and without, as streams.

    sum over the turn's tokens of  weight * D(p(. | context, hint), p(. | context)) / normaliser

The hinted side is a twin, scored without gradient in the same step, nothing is sampled again. It is added to whatever
the algorithm asks of the same tokens, and to rollouts of which it asks nothing. Knows hints and settings; neither
which behaviour a hint is about nor the reward.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from etude.core.errors import EtudeError
from etude.core.policy import UNROUTED
from etude.core.rl_settings import FeedbackSettings
from etude.harness.hinted import Hinted
from etude.learn.streams import Floats, Item, Stream, Twin
from etude.rl.algorithms.base import BatchShape
from etude.rl.groups import Rollout, Trace


def weight_at(settings: FeedbackSettings, step: int) -> float:
    """The weight of step `step` (0 is the first)."""
    rising = min(1.0, (step + 1) / (settings.warmup + 1))
    falling = max(0.0, 1 - max(0, step - settings.hold) / settings.decay) if settings.decay else 1.0
    return settings.weight * rising * falling


def is_on(settings: FeedbackSettings) -> bool:
    return bool(settings.behaviours) or settings.context != "turn"


def needs_frozen(settings: FeedbackSettings) -> bool:
    """Whether the learner has to keep the weights that it starts from."""
    return is_on(settings) and settings.teacher == "frozen"


def check_feedback(settings: FeedbackSettings, ema: float) -> None:
    """Refuses a teacher that the learner would not have; `ema` is the decay of its averaged weights."""
    if is_on(settings) and settings.teacher == "ema" and not ema:
        raise EtudeError(
            "the teacher of feedback is 'ema', but no weights are averaged; set rl.optim.ema, such as 0.95"
        )
    if is_on(settings) and settings.support == "sampled" and settings.direction != "reverse":
        raise EtudeError(
            "rl.feedback.support is 'sampled', whose gradient is that of the reverse divergence alone; "
            "set rl.feedback.direction to 'reverse', or support to 'full' or 'top'"
        )


@dataclass
class HintStreams:
    """The feedback of one step; `metrics` are what became of the sites of its rollouts."""

    settings: FeedbackSettings
    shape: BatchShape
    step: int
    plausible: float = 0.0  # of replayed experts
    counts: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(("sites", "dropped", "capped", "hinted", "tokens"), 0.0)
    )

    @property
    def on(self) -> bool:
        return is_on(self.settings)

    def add(self, rollout: Rollout, items: Sequence[Item]) -> list[Item]:
        """The items of a rollout with its hints, and items of their own for segments that have none."""
        wanted = {site.message for site in rollout.sites if site.hint}
        chosen = first_of_each_kind(rollout, self.settings.cap)
        self.counts["sites"] += len(wanted)
        self.counts["dropped"] += len(wanted) - len(rollout.hints)
        self.counts["capped"] += len(rollout.hints) - len(chosen)
        weight = weight_at(self.settings, self.step) / (self.shape.groups * self.shape.group * self.shape.longest)
        found = list(items)
        if not weight:
            return found
        for number, trace in enumerate(rollout.traces):
            here = [hint for hint in chosen if hint.segment == number]
            if not here:
                continue
            self.counts["hinted"] += len(here)
            self.counts["tokens"] += sum(int(trace.sampled_T[hint.start : hint.end].sum()) for hint in here)
            place = next((i for i, item in enumerate(found) if np.array_equal(item.tokens_T, trace.ids_T)), None)
            if place is not None:
                streams = [self._stream(trace, hint, weight, len(trace.ids_T)) for hint in here]
                found[place] = replace(found[place], streams=[*found[place].streams, *streams])
                continue
            # Nothing else is asked of it, so what stands behind the last hinted turn costs nothing.
            length = max(hint.end for hint in here)
            experts = None if trace.experts_TBK is None else trace.experts_TBK[:length]
            streams = [self._stream(trace, hint, weight, length) for hint in here]
            found.append(Item(trace.ids_T[:length], streams, rollout.temperature, experts))
        return found

    def _stream(self, trace: Trace, hint: Hinted, weight: float, length: int) -> Stream:
        turn, inserted = slice(hint.start, hint.end), np.array(hint.inserted, trace.ids_T.dtype)
        weight_T, align_T = np.zeros(length, np.float32), np.full(length, -1, np.int64)
        weight_T[turn] = trace.sampled_T[turn] * np.float32(weight)
        align_T[turn] = hint.at + len(inserted) + np.arange(hint.end - hint.start)
        return Stream("main", weight_T, self._twin(trace, hint, inserted, align_T))

    def _twin(self, trace: Trace, hint: Hinted, inserted: np.ndarray, align_T: np.ndarray) -> Twin:
        settings, experts, turn = self.settings, trace.experts_TBK, slice(hint.start, hint.end)
        routes = None
        if settings.routing == "replay" and experts is not None:
            unknown = np.full((len(inserted), *experts.shape[1:]), UNROUTED, experts.dtype)
            routes = np.concatenate((experts[: hint.at], unknown, experts[turn]))
        logprob_T: Floats | None = trace.logprob_T[: len(align_T)] if settings.ratio else None
        support: Literal["full", "sampled"] | int = settings.top if settings.support == "top" else settings.support
        return Twin(
            tokens_U=np.concatenate((trace.ids_T[: hint.at], inserted, trace.ids_T[turn])),
            align_T=align_T,
            weights=settings.teacher,
            trust=settings.trust,
            divergence=settings.direction,
            beta=settings.beta,
            support=support,
            clip=settings.clip or float("inf"),
            lowers=settings.filter,
            logprob_T=logprob_T,
            ratio=settings.ratio or float("inf"),
            experts_UBK=routes,
            plausible=self.plausible if routes is not None else 0.0,
        )

    @property
    def metrics(self) -> dict[str, float]:
        return {f"feedback_{name}": value for name, value in self.counts.items()} if self.on else {}


def first_of_each_kind(rollout: Rollout, most: int) -> list[Hinted]:
    """So many of its hints, in their order: of every kind the first, then of every kind the second.

    Errors come in a row: of the first ones alone, one that is made again and again leaves none of what comes after it.
    """
    seen = Counter[str]()
    ranked = list[tuple[int, int]]()
    for place, hint in enumerate(rollout.hints):
        kind = rollout.sites[hint.site].kind
        ranked.append((seen[kind], place))
        seen[kind] += 1
    return [rollout.hints[place] for place in sorted(place for _, place in sorted(ranked)[:most])]
