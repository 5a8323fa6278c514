"""What passes and failures say: unbiased pass@k, intervals clustered by task, and paired gains.

The rollouts of one task resemble each other, so the task is the unit: each gives one number, and the spread of these
numbers gives the standard error (for the mean of task means this is the sandwich formula clustered by task). Levels
get a score interval with the sample size that this error is worth, so that 0 and 100% have honest intervals too;
gains get Student's t over the differences of each task. All in float64. Knows no rollout and no file.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

LEVEL = 0.95


class Interval(NamedTuple):
    """An estimate and the bounds of its 95% interval."""

    mean: float
    low: float
    high: float


class Tally(NamedTuple):
    """The rollouts of one task: how many count, and how many of them passed."""

    rollouts: int
    passed: int


def pass_at(k: int, tally: Tally) -> float | None:
    """The chance that at least one of k rollouts passes, without bias; None with fewer than k rollouts."""
    rollouts, passed = tally
    if rollouts < k:
        return None
    # The share of all choices of k rollouts that hold a pass; raising the rate to the power k would be biased.
    return 1.0 - math.comb(rollouts - passed, k) / math.comb(rollouts, k)


def mean_pass_at(k: int, tallies: Sequence[Tally]) -> Interval | None:
    """pass@k over tasks, each weighing the same; tasks with fewer than k rollouts are left out. None without any."""
    values = [value for tally in tallies if (value := pass_at(k, tally)) is not None]
    return share_interval(values) if values else None


def paired_gain(k: int, before: Sequence[Tally], after: Sequence[Tally]) -> Interval | None:
    """How much pass@k rose over the same tasks, in the same order; None without a task that both sides have."""
    differences = []
    for old, new in zip(before, after, strict=True):
        was, now = pass_at(k, old), pass_at(k, new)
        if was is not None and now is not None:
            differences.append(now - was)
    if not differences:
        return None
    # How hard a task is appears on both sides and falls out: much sharper than two intervals side by side.
    gain = mean_interval(differences)
    return Interval(gain.mean, max(-1.0, gain.low), min(1.0, gain.high))  # no gain of a share is beyond these


def mean_interval(values: Sequence[float]) -> Interval:
    """Mean of independent numbers with Student's t interval. One number says nothing about its spread."""
    mean, error = _mean_and_error(values)
    if len(values) < 2:
        return Interval(mean, -math.inf, math.inf)
    reach = student_quantile(len(values) - 1) * error
    return Interval(mean, mean - reach, mean + reach)


def share_interval(values: Sequence[float]) -> Interval:
    """Mean of independent numbers from 0 to 1 with a score interval that stays between them."""
    mean, error = _mean_and_error(values)
    count = len(values)
    if count < 2:
        return Interval(mean, 0.0, 1.0)
    # As many independent yes-or-no answers as would have this standard error. Where all tasks agree there is no spread
    # to measure, and each task counts as one answer. Rollouts that differ within tasks make it more than the tasks.
    spread = mean * (1 - mean)
    size = spread / error**2 if error > 0 and spread > 0 else float(count)
    # Wilson with this size: no pass in 100 tasks is 0 to 3.8%, where mean and error alone would claim certainty.
    quantile = student_quantile(count - 1)
    weight = quantile**2 / size
    centre = (mean + weight / 2) / (1 + weight)
    reach = math.sqrt(max(0.0, spread * weight + weight**2 / 4)) / (1 + weight)
    return Interval(mean, min(mean, max(0.0, centre - reach)), max(mean, min(1.0, centre + reach)))


def student_quantile(freedom: int, level: float = LEVEL) -> float:
    """The t that Student's distribution of so many degrees of freedom stays within, to both sides, at this level."""
    low, high = 0.0, 1.0
    while student_inside(high, freedom) < level:
        high *= 2
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        if student_inside(middle, freedom) < level:
            low = middle
        else:
            high = middle
    return high


def student_inside(t: float, freedom: int) -> float:
    """P(|T| < t), by the finite series that whole degrees of freedom have."""
    angle = math.atan2(t, math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term, total = (cosine if odd else 1.0), 0.0
    for index in range(freedom // 2):
        total += term
        term *= cosine**2 * (2 * index + 1 + odd) / (2 * index + 2 + odd)
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


def _mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    if not values:
        raise ValueError("no numbers")
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, math.inf
    squares = math.fsum((value - mean) ** 2 for value in values)
    return mean, math.sqrt(squares / (len(values) - 1) / len(values))
