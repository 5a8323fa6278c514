"""The graded result: one for a solved task. A part of the tests passed is worth nothing unless asked for."""

from __future__ import annotations

import pydantic

from etude.reward.base import GradedRollout, Part


class Tests(Part):
    class Settings(pydantic.BaseModel, extra="forbid", frozen=True):
        partial: float = pydantic.Field(
            0.0, ge=0, lt=1, description="worth of the share of required tests that pass, where not all do"
        )

    settings: Settings

    def score(self, rollout: GradedRollout) -> float:
        grade = rollout.grade
        return 1.0 if grade.passed else self.settings.partial * grade.share
