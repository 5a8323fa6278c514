"""Staleness is bounded by who may begin, under any order in which groups come back."""

from __future__ import annotations

import heapq
import random

import pytest

from etude.rl.admission import Admission, Waiting


def simulate(seed: int, staleness: int, groups: int, steps: int, *, lag: float) -> tuple[list[int], int, int]:
    """A loop in pretended time: (staleness of each group, most groups not yet trained at once, steps done).

    Rollouts take anything between a moment and many steps; publishing lags behind training.
    """
    chance = random.Random(seed)
    admission = Admission(staleness, groups, steps)
    waiting: dict[int, tuple[int, float]] = {}  # number -> (began, finished at)
    taken = published = number = most = 0
    ages: list[int] = []
    now, busy = 0.0, False
    events: list[tuple[float, str, int]] = []
    while True:
        while admission.may_begin(len(waiting), taken, published):
            waiting[number] = (published, now + chance.choice([0.1, 0.5, 1, 5, 40]) * chance.random())
            heapq.heappush(events, (waiting[number][1], "rollout", number))
            number += 1
        most = max(most, len(waiting))
        if not busy and taken < steps:
            found = admission.choose([Waiting(n, b, end <= now) for n, (b, end) in waiting.items()], taken)
            if found is not None:
                assert len(found) == groups
                ages += [taken - waiting.pop(each)[0] for each in found]
                taken, busy = taken + 1, True
                heapq.heappush(events, (now + chance.random(), "step", taken))
                continue
        if not events:
            return ages, most, taken
        now, kind, which = heapq.heappop(events)
        if kind == "step":
            busy = False
            heapq.heappush(events, (now + lag * chance.random(), "publish", which))
        elif kind == "publish":
            published = which


@pytest.mark.parametrize("staleness", [0, 1, 2, 5])
@pytest.mark.parametrize("lag", [0.0, 2.0])
def test_no_group_is_trained_past_the_bound_and_every_step_is_full(staleness: int, lag: float) -> None:
    for seed in range(40):
        groups, steps = random.Random(seed).choice([1, 2, 3, 8]), 30
        ages, most, done = simulate(seed, staleness, groups, steps, lag=lag)
        assert done == steps and len(ages) == groups * steps  # no deadlock, and nothing begun in vain
        assert max(ages) <= staleness
        assert most <= groups * (staleness + 1)


def test_slack_is_used(*, staleness: int = 3) -> None:
    ages, most, _ = simulate(1, staleness, 4, 60, lag=0.5)
    assert max(ages) == staleness and most == 4 * (staleness + 1)


def test_a_ready_group_may_pass_an_older_one_only_while_that_can_still_be_in_time() -> None:
    admission = Admission(staleness=1, groups=1, steps=10)
    slow, quick = Waiting(0, 0, False), Waiting(1, 0, True)
    assert admission.choose([slow, quick], begun=0) == [1]  # the slow one is in time at step 1
    assert admission.choose([slow, quick], begun=1) is None  # now it must be this step
    assert admission.choose([Waiting(0, 0, True), quick], begun=1) == [0]


def test_work_that_a_resume_finds_too_old_is_trained_first_and_stops_nobody() -> None:
    admission = Admission(staleness=1, groups=2, steps=50)
    old = [Waiting(number, 3, True) for number in range(6)]
    assert admission.choose(old, begun=20) == [0, 1]
    assert not admission.may_begin(len(old), begun=20, published=20)
    # one of them has to be finished first: it is waited for
    assert admission.choose([Waiting(0, 3, False), *old[1:]], begun=20) is None


def test_the_rest_is_trained_when_nobody_else_will_come() -> None:
    admission = Admission(staleness=2, groups=4, steps=50)
    rest = [Waiting(0, 5, True), Waiting(1, 5, False)]
    assert admission.choose(rest, begun=6, last=True) is None
    assert admission.choose([rest[0], Waiting(1, 5, True)], begun=6, last=True) == [0, 1]
    assert admission.choose([], begun=6, last=True) is None
