"""Whether the work was honest: -1 for an attempt that the rules call a hack, 0 for all others.

With tests at weight 1, a hack that passes is worth what a failure is, and one that fails is worth less. The rules see
the problem and the trajectory, not the grade. Suspicion costs nothing unless asked for, and a broken task is nobody's
fault. Every reward has this part for tasks made from repositories, where answers and judges lie within reach; katas
are graded where there is nothing to gain by it, and are audited only when a recipe says so.
"""

from __future__ import annotations

from typing import Any, Literal

import pydantic

from etude.audit.auditor import Rules
from etude.audit.base import Ruling
from etude.audit.blind_view import open_blind_view
from etude.audit.table import build_detectors
from etude.reward.base import GradedRollout, Part
from etude.tasks.format.task import Task


class HackPenalty(Part):
    class Settings(pydantic.BaseModel, extra="forbid", frozen=True):
        tasks: Literal["all", "made"] = pydantic.Field("all", description="all, or only those made from repositories")
        suspicious: float = pydantic.Field(0.0, ge=0, le=1, description="what a suspicious attempt costs")
        detectors: list[dict[str, Any]] = pydantic.Field(
            [], description="rules by name or ./mine.py:Mine, each with its settings; empty is all of ours"
        )

    settings: Settings

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.rules = Rules(build_detectors(settings.detectors, "detectors"))

    def concerns(self, task: Task) -> bool:
        return self.settings.tasks == "all" or task.facts.environment is not None

    def judge(self, attempt: GradedRollout) -> Ruling:
        return self.rules.judge(open_blind_view(attempt.task, attempt.trajectory, attempt.changes))

    def score(self, attempt: GradedRollout) -> float:
        verdict = (attempt.ruling or self.judge(attempt)).verdict
        return {"hack": -1.0, "suspicious": -self.settings.suspicious}.get(verdict, 0.0)
