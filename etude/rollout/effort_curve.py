"""Effort curves: tokens by difficulty and by the level that was stated, with pass rates and the rate of parallel calls.

An agent that has learnt effort spends little where a task is easy or little was asked for, and more where it helps.
Knows scored rollouts; writes nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean, median

from etude.harness.metrics import measure
from etude.rollout.rollout import Scored


@dataclass(frozen=True)
class CurvePoint:
    """Rollouts of one difficulty at one level of effort."""

    difficulty: int  # the task's own level; 0 where it has none
    effort: str
    rollouts: int
    pass_rate: float
    mean_tokens: float  # sampled
    median_tokens: float
    mean_turns: float
    parallel_rate: float  # turns with several calls among those with any


def effort_curve(rollouts: Iterable[Scored]) -> list[CurvePoint]:
    """One point for each difficulty and level that occurs, in order of both."""
    found: dict[tuple[int, str], list[Scored]] = defaultdict(list)
    for scored in rollouts:
        found[scored.task.facts.level or 0, scored.trajectory.terms.effort].append(scored)
    points = []
    for (difficulty, effort), members in sorted(found.items()):
        tokens = [scored.trajectory.sampled_tokens for scored in members]
        counts = measure(scored.trajectory for scored in members)
        points.append(
            CurvePoint(
                difficulty=difficulty,
                effort=effort,
                rollouts=len(members),
                pass_rate=fmean(scored.passed for scored in members),
                mean_tokens=fmean(tokens),
                median_tokens=median(tokens),
                mean_turns=counts.turns / len(members),
                parallel_rate=counts.parallel_rate,
            )
        )
    return points
