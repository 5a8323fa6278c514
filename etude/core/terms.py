"""A group's terms: what every rollout of a group is told alike, fixed when the group is admitted.

They are drawn from the run's seed and the group's number, so a resumed run draws the same again. Knows the settings of
the harness; neither groups nor prompts.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from etude.core.errors import EtudeError
from etude.core.settings import HarnessSettings


@dataclass(frozen=True)
class Terms:
    """Written to the journal with the group and to every rollout file of it."""

    effort: str = ""  # a level of `harness.effort`; empty: the prompt states none
    edition: int = 0  # of the run's settings that may change while it runs (`live.toml`)


NO_TERMS = Terms()  # of a rollout that belongs to no group
LEVELS = ("low", "medium", "high")  # of effort, least first


def draw_terms(settings: HarnessSettings, seed: int, number: int) -> Terms:
    """What all rollouts of group `number` are told alike."""
    check_effort(settings)
    if not settings.effort:
        return Terms()
    levels = [level for level in LEVELS if level in settings.effort]  # not the order in which the recipe names them
    rng = random.Random(f"terms/{seed}/{number}")
    return Terms(effort=rng.choices(levels, [settings.effort[level] for level in levels])[0])


def usual_terms(settings: HarnessSettings) -> Terms:
    """What a rollout that belongs to no group is told: the middle of the levels that the model knows."""
    check_effort(settings)
    levels = [level for level in LEVELS if settings.effort.get(level)]
    return Terms(effort=levels[len(levels) // 2]) if levels else NO_TERMS


def check_effort(settings: HarnessSettings) -> None:
    """Refuses shares that nothing can be drawn from."""
    if unknown := [level for level in settings.effort if level not in LEVELS]:
        raise EtudeError(f"harness.effort has the level {unknown[0]!r}: the levels are {', '.join(LEVELS)}")
    shares = list(settings.effort.values())
    if shares and not (all(math.isfinite(share) and share >= 0 for share in shares) and sum(shares) > 0):
        raise EtudeError("harness.effort needs shares of at least 0, one of them above")
