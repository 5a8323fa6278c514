"""How often a behaviour happened, as a penalty: minus one for each site, at most `most` of them.

    { use = "behaviour", of = { use = "unfinished_todos" }, weight = 0.1 }

Two parts of one behaviour, such as readers that look for different things, need names: `name = "confusing"`.
The behaviour itself is a file in `etude/behaviours/`, or your own.
"""

from __future__ import annotations

from typing import Any

import pydantic

from etude.behaviours.base import Behaviour
from etude.behaviours.table import build_behaviour
from etude.reward.base import GradedRollout, Part


class BehaviourPenalty(Part):
    class Settings(pydantic.BaseModel, extra="forbid", frozen=True):
        of: dict[str, Any] = pydantic.Field(description="the behaviour, such as { use = 'tool_errors' }")
        name: str = pydantic.Field("", description="what metrics call it; empty: what the behaviour is called")
        most: int = pydantic.Field(5, ge=1, description="sites that count; one bad habit must not drown the tests")

    settings: Settings
    behaviour: Behaviour

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self.behaviour = build_behaviour(settings.of, "reward.parts.of")
        self.name = settings.name or str(settings.of["use"]).rpartition(":")[2]

    def score(self, rollout: GradedRollout) -> float:
        sites = rollout.sites.get(self.behaviour)
        count = len(self.behaviour.sites(rollout.trajectory) if sites is None else sites)
        return -float(min(count, self.settings.most))
