"""REINFORCE with a running mean of earlier rewards as the baseline: for tasks that can be tried only once.

The baseline is kept for each source of tasks, so that an easy source does not make a hard one look bad. A step's own
rewards enter it after the step: no rollout is part of its own baseline.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import pydantic
from pydantic import Field

from etude.learn.streams import Item
from etude.rl.algorithms.base import Algorithm, BatchShape, StepView, policy_gradient
from etude.rl.groups import Rollout


class SingleRollout(Algorithm):
    single = True

    class Settings(pydantic.BaseModel, extra="forbid", frozen=True):
        decay: float = Field(0.9, ge=0, lt=1, description="share of the old baseline that a step leaves")

    settings: Settings

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.baselines: dict[str, float] = {}  # by source, with all steps so far
        self._before: dict[str, float] = {}  # without this one

    def observe(self, groups: Sequence[Sequence[Rollout]], rewards: Sequence[Sequence[float]], view: StepView) -> None:
        self._before = dict(self.baselines)
        heard: dict[str, list[float]] = defaultdict(list)
        for rollouts, group in zip(groups, rewards, strict=True):
            for rollout, reward in zip(rollouts, group, strict=True):
                heard[rollout.source].append(reward)
        for source, values in heard.items():
            mean = sum(values) / len(values)
            # The first step of a source has no past: its own mean is the best guess there is.
            self._before.setdefault(source, mean)
            self.baselines[source] = self._before[source] + (1 - self.settings.decay) * (mean - self._before[source])

    def items(self, rollouts: Sequence[Rollout], rewards: Sequence[float], plan: BatchShape) -> list[list[Item]]:
        weights = self.weights([rollout.sampled_tokens for rollout in rollouts], plan)
        return [
            policy_gradient(rollout, reward - self._before[rollout.source], weight)
            for rollout, reward, weight in zip(rollouts, rewards, weights, strict=True)
        ]

    def state(self) -> dict[str, Any]:
        return {"baselines": self.baselines}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.baselines = {str(name): float(value) for name, value in state.get("baselines", {}).items()}
