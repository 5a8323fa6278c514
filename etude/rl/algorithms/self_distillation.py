"""Self-distillation without a policy gradient: the model learns from itself when it knows more.

    sdpo   it has read what went wrong in the rollout      KL(plain || informed), likeliest tokens, averaged weights
    sdft   it has read a demonstration                     KL(informed || plain), averaged weights
    opsd   it has read the reference                       Jensen-Shannon, the weights of the start

The streams are those of `rl/feedback.py`, which also puts them beside any other algorithm (`rl.feedback.context`). Our
demonstrations are the references of tasks, so sdft and opsd differ in divergence and teacher alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from pydantic import Field

from etude.core.rl_settings import FeedbackSettings
from etude.learn.streams import Item
from etude.rl.algorithms.base import Algorithm, BatchShape
from etude.rl.groups import Rollout


class _Settings(Algorithm.Settings, frozen=True):
    teacher: Literal["", "live", "ema", "frozen"] = Field(
        "", description="weights that read what the student did not; empty takes the algorithm's own"
    )


class Sdpo(Algorithm):
    class Settings(_Settings, frozen=True):
        """Of SDPO."""

    settings: Settings

    def feedback(self, settings: FeedbackSettings) -> FeedbackSettings:
        teacher = self.settings.teacher or "ema"
        return replace(settings, context="errors", direction="reverse", support="top", teacher=teacher, filter=False)

    def items(self, rollouts: Sequence[Rollout], rewards: Sequence[float], plan: BatchShape) -> list[list[Item]]:
        return [[] for _ in rollouts]


class Sdft(Algorithm):
    class Settings(_Settings, frozen=True):
        """Of SDFT."""

    settings: Settings

    def feedback(self, settings: FeedbackSettings) -> FeedbackSettings:
        teacher = self.settings.teacher or "ema"
        return replace(settings, context="solution", direction="forward", support="full", teacher=teacher, filter=False)

    def items(self, rollouts: Sequence[Rollout], rewards: Sequence[float], plan: BatchShape) -> list[list[Item]]:
        return [[] for _ in rollouts]


class Opsd(Algorithm):
    class Settings(_Settings, frozen=True):
        """Of OPSD."""

    settings: Settings

    def feedback(self, settings: FeedbackSettings) -> FeedbackSettings:
        teacher = self.settings.teacher or "frozen"
        how = replace(settings, context="solution", direction="jsd", beta=0.5, support="full", filter=False)
        return replace(how, teacher=teacher)

    def items(self, rollouts: Sequence[Rollout], rewards: Sequence[float], plan: BatchShape) -> list[list[Item]]:
        return [[] for _ in rollouts]
