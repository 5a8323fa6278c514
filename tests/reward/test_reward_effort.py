"""The effort penalty against its formula in exact arithmetic, and the properties it is published with."""

from __future__ import annotations

import math
from decimal import Decimal, getcontext
from itertools import pairwise, product

import pytest

from etude.harness.trajectory import Effort as Counts
from etude.reward.effort import Effort, penalty

getcontext().prec = 60
CASES = list(product((0.0, 1e-9, 0.3, 1.0, 10.0, 1e6), (1e-3, 0.5, 1.0, 20.0), (0.0, 0.5, 1.0, 2.0)))


def exact(x: float, k: float, q: float) -> float:
    x_, k_, q_ = Decimal(x), Decimal(k), Decimal(q)
    if q_ == 1:
        return float((1 + k_ * x_).ln() / k_)
    return float(((1 + k_ * x_) ** (1 - q_) - 1) / (k_ * (1 - q_)))


@pytest.mark.parametrize(("x", "k", "q"), CASES)
def test_penalty_is_the_published_formula(x: float, k: float, q: float) -> None:
    assert penalty(x, k, q) == pytest.approx(exact(x, k, q), rel=1e-13, abs=1e-300)


@pytest.mark.parametrize("off", [1e-3, 1e-6, 1e-9, 1e-12, 1e-15, -1e-9, -1e-15])
def test_penalty_is_smooth_where_q_passes_one(off: float) -> None:
    q = 1 + off
    assert penalty(7.0, 2.0, q) == pytest.approx(exact(7.0, 2.0, q), rel=1e-12)
    assert penalty(7.0, 2.0, q) == pytest.approx(penalty(7.0, 2.0, 1.0), rel=5 * abs(off) + 1e-12)


def test_penalty_starts_at_zero_rises_and_bends_down() -> None:
    for k, q in ((0.5, 0.3), (1.0, 1.0), (3.0, 2.0)):
        values = [penalty(x, k, q) for x in range(50)]
        steps = [b - a for a, b in pairwise(values)]
        assert values[0] == 0
        assert all(step > 0 for step in steps)
        assert all(b < a for a, b in pairwise(steps))


def test_slope_is_the_derivative_that_is_stated() -> None:
    for x, k, q in ((0.5, 1.0, 0.5), (3.0, 2.0, 1.0), (9.0, 0.5, 2.0)):
        h = 1e-5
        slope = (penalty(x + h, k, q) - penalty(x - h, k, q)) / (2 * h)
        assert slope == pytest.approx((1 + k * x) ** -q, rel=1e-7)


def test_limits_of_q() -> None:
    assert penalty(123.0, 4.0, 0.0) == pytest.approx(123.0)  # linear
    assert penalty(1e12, 4.0, 3.0) == pytest.approx(1 / (4.0 * 2.0))  # saturates at 1 / (k (q - 1))
    published = {0.5: (0.83, 4.63, 18.1), 1.0: (0.69, 2.40, 4.62), 2.0: (0.50, 0.91, 0.99)}
    for q, values in published.items():
        assert [penalty(x, 1.0, q) for x in (1, 10, 100)] == pytest.approx(values, abs=0.005 if q != 0.5 else 0.05)


def test_each_of_the_six_counts_has_its_own_weight() -> None:
    names = {"thinking": 3, "call": 5, "output": 7, "final": 11, "calls": 13, "turns": 17}
    counts = Counts(*names.values())
    nothing = dict.fromkeys(names, 0.0)
    for name, count in names.items():
        part = Effort(Effort.Settings(**(nothing | {name: 2.0})))
        assert part.weigh(counts) == 2.0 * count
    every = Effort(Effort.Settings(**dict.fromkeys(names, 1.0)))
    assert every.weigh(counts) == math.fsum(names.values())
