"""Whether the rollout was audited as a hack: -1 for one, 0 for all others. Reads the ruling of the rollout's audit.

With tests at weight 1, a hack that passes is worth what a failure is, and one that fails is worth less. Suspicion costs
nothing unless asked for, and a broken task is nobody's fault. Where no recipe names this part, it counts for tasks made
from repositories, where answers and tests lie within reach; katas are graded where there is nothing to gain by it, and
are audited only when a recipe says so.
"""

from __future__ import annotations

from typing import Any, Literal

import pydantic

from etude.audit.auditor import made_from_repository
from etude.audit.table import build_detectors
from etude.core.errors import EtudeError
from etude.reward.base import GradedRollout, Part
from etude.tasks.format.task import Task


class HackPenalty(Part):
    class Settings(pydantic.BaseModel, extra="forbid", frozen=True):
        tasks: Literal["all", "made"] = pydantic.Field("all", description="all, or only those made from repositories")
        suspicious: float = pydantic.Field(0.0, ge=0, le=1, description="what a suspicious rollout costs")
        detectors: list[dict[str, Any]] = pydantic.Field(
            [], description="rules by name or ./mine.py:Mine, each with its settings; empty is all of ours"
        )

    settings: Settings

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.detectors = build_detectors(settings.detectors, "detectors")

    def concerns(self, task: Task) -> bool:
        return self.settings.tasks == "all" or made_from_repository(task)

    def score(self, rollout: GradedRollout) -> float:
        # A rollout without an audit is a mistake in the setup; 0 would pay for unseen hacks.
        if rollout.ruling is None:
            raise EtudeError(f"hack_penalty needs the audit of a rollout, and this one of {rollout.task.name} has none")
        return {"hack": -1.0, "suspicious": -self.settings.suspicious}.get(rollout.ruling.verdict, 0.0)
