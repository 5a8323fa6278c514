"""pass@k, intervals and paired gains against enumeration, simulation and the plain formulas."""

from __future__ import annotations

import itertools
import math
import statistics

import numpy as np
import pytest

from etude.bench.stats import (
    Tally,
    mean_interval,
    mean_pass_at,
    paired_gain,
    pass_at,
    share_interval,
    student_inside,
    student_quantile,
)


@pytest.mark.parametrize("rollouts", [1, 2, 4, 6])
def test_pass_at_k_is_the_share_of_all_choices_of_k_rollouts_that_hold_a_pass(rollouts: int) -> None:
    for passed, k in itertools.product(range(rollouts + 1), range(1, rollouts + 1)):
        results = [True] * passed + [False] * (rollouts - passed)
        choices = [any(choice) for choice in itertools.combinations(results, k)]
        assert pass_at(k, Tally(rollouts, passed)) == pytest.approx(sum(choices) / len(choices), abs=1e-14)


def test_pass_at_k_needs_k_rollouts() -> None:
    assert pass_at(5, Tally(4, 4)) is None
    assert mean_pass_at(5, [Tally(4, 4)]) is None
    assert mean_pass_at(4, []) is None
    found = mean_pass_at(4, [Tally(4, 1), Tally(3, 0), Tally(4, 0)])  # the second has lost a rollout
    assert found is not None
    assert found.mean == 0.5


def test_pass_at_k_of_eight_samples_is_unbiased() -> None:
    rng = np.random.default_rng(0)
    chance = 0.2
    passed = rng.binomial(8, chance, 40_000)
    estimate = np.mean([pass_at(4, Tally(8, int(c))) for c in passed])
    assert estimate == pytest.approx(1 - (1 - chance) ** 4, abs=0.005)


@pytest.mark.parametrize(
    ("freedom", "expected"), [(1, 12.7062047), (2, 4.3026527), (3, 3.1824463), (10, 2.2281389), (99, 1.9842170)]
)
def test_quantiles_of_student_are_those_of_the_tables(freedom: int, expected: float) -> None:
    assert student_quantile(freedom) == pytest.approx(expected, abs=2e-7)


def test_student_agrees_with_its_density_integrated() -> None:
    for freedom in (1, 2, 5, 8):
        constant = math.gamma((freedom + 1) / 2) / math.sqrt(freedom * math.pi) / math.gamma(freedom / 2)
        x = np.linspace(-1.7, 1.7, 200_001)
        density = constant * (1 + x**2 / freedom) ** (-(freedom + 1) / 2)
        assert student_inside(1.7, freedom) == pytest.approx(
            float(np.sum(density[1:] + density[:-1]) * (x[1] - x[0]) / 2), abs=1e-9
        )


def test_the_paired_gain_is_the_t_interval_of_the_differences_of_each_task() -> None:
    rng = np.random.default_rng(1)
    before = [Tally(4, int(c)) for c in rng.integers(0, 5, 30)]
    after = [Tally(4, int(c)) for c in rng.integers(1, 5, 30)]
    for k in (1, 4):
        differences = [pass_at(k, b) - pass_at(k, a) for a, b in zip(before, after, strict=True)]  # type: ignore[operator]
        reach = student_quantile(29) * statistics.stdev(differences) / math.sqrt(30)
        mean = statistics.mean(differences)
        assert paired_gain(k, before, after) == pytest.approx((mean, mean - reach, mean + reach), abs=1e-12)


def test_tasks_that_one_side_lost_are_left_out_of_the_pairs() -> None:
    before = [Tally(4, 0), Tally(0, 0), Tally(4, 2), Tally(4, 4)]
    after = [Tally(4, 4), Tally(4, 4), Tally(0, 0), Tally(4, 4)]
    found = paired_gain(1, before, after)
    assert found is not None
    assert found.mean == 0.5
    assert (found.low, found.high) == (-1.0, 1.0)  # two tasks say very little
    assert paired_gain(1, [Tally(0, 0)], [Tally(1, 1)]) is None
    with pytest.raises(ValueError):
        paired_gain(1, before, after[:-1])


def test_pairing_by_task_is_sharper_than_two_separate_intervals() -> None:
    rng = np.random.default_rng(2)
    hard = rng.random(200)
    before = [Tally(8, int(c)) for c in rng.binomial(8, hard)]
    after = [Tally(8, int(c)) for c in rng.binomial(8, np.minimum(1, hard + 0.1))]
    gain, a, b = paired_gain(1, before, after), mean_pass_at(1, before), mean_pass_at(1, after)
    assert gain is not None and a is not None and b is not None
    assert gain.low > 0
    assert gain.high - gain.low < 0.5 * math.hypot(a.high - a.low, b.high - b.low)


@pytest.mark.parametrize("chance", [0.03, 0.3, 0.66])
def test_intervals_hold_the_truth_as_often_as_they_say(chance: float) -> None:
    """Tasks differ in difficulty (a beta distribution), rollouts of one task share it: 100 tasks of 4."""
    rng = np.random.default_rng(3)
    held, repeats = 0, 1500
    spread = 1.5
    for _ in range(repeats):
        difficulty = rng.beta(chance * spread, (1 - chance) * spread, 100)
        found = mean_pass_at(1, [Tally(4, int(c)) for c in rng.binomial(4, difficulty)])
        assert found is not None
        held += found.low <= chance <= found.high
    assert 0.93 <= held / repeats <= 0.985


def test_intervals_of_gains_hold_the_truth_as_often_as_they_say() -> None:
    rng = np.random.default_rng(4)
    held, repeats = 0, 1500
    for _ in range(repeats):
        hard = rng.beta(0.5, 1.0, 100)
        easier = hard + 0.3 * (1 - hard)  # the expected gain is 0.3 * (1 - 1/3)
        before = [Tally(4, int(c)) for c in rng.binomial(4, hard)]
        after = [Tally(4, int(c)) for c in rng.binomial(4, easier)]
        found = paired_gain(1, before, after)
        assert found is not None
        held += found.low <= 0.2 <= found.high
    assert 0.93 <= held / repeats <= 0.97


def test_all_or_nothing_does_not_pretend_to_be_certain() -> None:
    none, every = share_interval([0.0] * 100), share_interval([1.0] * 100)
    assert none.low == 0
    assert 0.03 < none.high < 0.05
    assert every.high == 1
    assert 0.95 < every.low < 0.97
    assert share_interval([0.5]) == (0.5, 0.0, 1.0)
    assert mean_interval([0.5]) == (0.5, -math.inf, math.inf)
