"""Numerics and staleness: what is measured, and what stops a run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from etude.core.errors import EtudeError
from etude.core.policy import Context, Sample, Sampling, Version
from etude.core.rl_settings import RLSettings
from etude.learn.streams import Floats, Item
from etude.rl.groups import Rollout, Trace
from etude.rl.metrics import describe, staleness
from etude.rl.probe import LENGTH, PROMPT, Probe


class Pair:
    """An engine and a learner whose probabilities differ by a known amount."""

    def __init__(self, apart: Sequence[float], version: Version) -> None:
        self.apart, self.version = apart, version
        self.contexts: list[tuple[int, ...]] = []
        self.scored: list[Item] = []

    async def sample(self, context: Context, sampling: Sampling) -> Sample:
        assert context.ids is not None and sampling.stop_ids == () and (sampling.top_p, sampling.top_k) == (1.0, 0)
        self.contexts.append(context.ids)
        n = sampling.max_tokens
        return Sample("", "length", tuple(range(n)), tuple(-1.0 - i / n for i in range(n)), (self.version,) * n)

    async def score(self, items: Sequence[Item], weights: str = "live") -> list[Floats]:
        assert weights == "live"
        self.scored += items
        answers = []
        for item, context in zip(items, self.contexts, strict=True):
            n = len(item.tokens_T) - len(context)
            wanted = [-1.0 - i / n + self.apart[i % len(self.apart)] for i in range(n)]
            answers.append(np.array([0.0] * len(context) + wanted, np.float32))
        return answers


def test_the_probe_measures_mean_and_max_over_enough_tokens() -> None:
    settings = RLSettings(probe_tokens=300, probe_mean=1.0, probe_max=1.0, temperature=0.7)
    pair = Pair([0.0, 0.5], Version(2, 9))
    probe = Probe(list(range(100)), settings, block_tokens=16)
    found = asyncio.run(probe.run(pair, pair, Version(2, 9)))
    assert found.tokens >= 300 and found.version == Version(2, 9)
    assert found.mean == pytest.approx(0.25, abs=1e-6) and found.max == pytest.approx(0.5, abs=1e-6)
    assert {item.temperature for item in pair.scored} == {0.7}
    assert all(len(context) <= PROMPT for context in pair.contexts)
    assert len(pair.contexts) == -(-300 // LENGTH) == len(set(pair.contexts))


@pytest.mark.parametrize("apart", [[0.0, 2e-5], [0.0] * (LENGTH - 1) + [-2e-3], [float("nan")]])
def test_past_the_bounds_the_run_stops(apart: list[float]) -> None:
    settings = RLSettings(probe_mean=1e-5 if len(apart) == 2 else 1.0)
    pair = Pair(apart, Version(0, 4))
    with pytest.raises(EtudeError, match=r"engine and learner disagree at version 0\.4"):
        asyncio.run(Probe([1, 2, 3], settings, 16).run(pair, pair, Version(0, 4)))


def test_a_probe_of_two_versions_is_a_bug() -> None:
    pair = Pair([0.0], Version(0, 5))
    with pytest.raises(RuntimeError, match=r"was sampled by version 0\.5"):
        asyncio.run(Probe([1, 2, 3], RLSettings(), 16).run(pair, pair, Version(0, 4)))


def rollout(versions: Sequence[tuple[int, int]]) -> Rollout:
    count = len(versions)
    sampled_T = np.array([lineage >= 0 for lineage, _ in versions])
    trace = Trace(
        np.arange(count, dtype=np.int32), sampled_T, np.zeros(count, np.float32), np.array(versions, np.int32)
    )
    facts = {"turns": 2, "malformed": 1, "tool_errors": 3, "tokens": count, "temperature": 1.0, "seconds": 2.0}
    return Rollout(reward=0.5, parts={"tests": 1.0}, passed=True, stop="finish", **facts, traces=(trace,))


def test_staleness_is_counted_token_by_token() -> None:
    found = staleness([rollout([(-1, -1), (0, 7), (0, 7), (0, 8), (-1, -1), (0, 9)])], 9, {})
    shares = {"staleness_share_0": 0.25, "staleness_share_1": 0.25, "staleness_share_2": 0.5}
    assert found == {"staleness_mean": 1.25, "staleness_max": 2, **shares}


def test_tokens_of_an_abandoned_branch_are_as_far_away_as_both_ways_together() -> None:
    # lineage 0 came to step 12 and died; lineage 1 went on from step 10 and is at 11 now
    found = staleness([rollout([(0, 9), (0, 12), (1, 10), (1, 11)])], 11, {0: 10})
    ages = [11 - 9, (11 - 10) + (12 - 10), 11 - 10, 0]
    shares = {f"staleness_share_{age}": 0.25 for age in ages}
    assert found == {"staleness_mean": sum(ages) / 4, "staleness_max": 3, **shares}


def test_a_step_is_described() -> None:
    one = rollout([(-1, -1), (0, 1), (0, 1)])
    two = replace(one, reward=0.0, passed=False, stop="tokens", parts={"tests": 0.0})
    found = describe([one, two])
    assert found["reward"] == 0.25 and found["pass_rate"] == 0.5 and found["reward_tests"] == 0.5
    assert found["stop_finish"] == found["stop_tokens"] == 1
    assert found["sampled_tokens"] == 4 and found["rollout_tokens"] == 3 and found["malformed"] == 0.5
    assert describe([]) == {}


class Off:
    """A learner that agrees with the engine up to a position, and from there on is off by a little."""

    def __init__(self, first: int, apart: float) -> None:
        self.first, self.apart = first, apart
        self.items: list[Item] = []

    async def score(self, items: Sequence[Item], weights: str = "live") -> list[Floats]:
        self.items += items
        return [np.where(np.arange(len(i.tokens_T)) < self.first, -1, self.apart - 1).astype(np.float32) for i in items]


def long_rollout(length: int, versions: Sequence[tuple[int, int]]) -> Rollout:
    """Every other token is sampled; the versions each have an equal share of them, in order."""
    sampled_T = np.arange(length) % 2 == 1
    share = np.repeat(np.array(versions, np.int32), -(-length // len(versions)), axis=0)[:length]
    trace = Trace(
        np.arange(length, dtype=np.int32),
        sampled_T,
        np.where(sampled_T, -1, 0).astype(np.float32),
        np.where(sampled_T[:, None], share, -1),
    )
    return replace(rollout([(0, 0)]), traces=(trace,))


def test_real_tokens_show_what_is_wrong_at_long_positions_only() -> None:
    settings = RLSettings(probe_real_tokens=2000)
    probe, rollouts = Probe([1, 2, 3], settings, 16), [long_rollout(600, [(0, 4)]), long_rollout(100, [(0, 4)])]
    fine = asyncio.run(probe.check_real(rollouts, Off(9999, 0), Version(0, 4)))
    assert fine.tokens == 350 and fine.by_position == {0: 0.0, 128: 0.0, 256: 0.0, 512: 0.0}
    # 4e-5 from position 512 on: the mean over all 350 tokens is within 1e-5, that of the bin is not
    with pytest.raises(EtudeError, match=r"real rollouts: its mean 4e-05 is past rl\.probe_mean = 1e-05.* from 512 on"):
        asyncio.run(probe.check_real(rollouts, Off(512, 4e-5), Version(0, 4)))
    with pytest.raises(EtudeError, match=r"p99 0\.0005 is past rl\.probe_p99 = 0\.0001 and its k3 .*probe_k3"):
        bounds = RLSettings(probe_real_tokens=2000, probe_mean=1.0, probe_p99=1e-4, probe_k3=1e-9)
        asyncio.run(Probe([1, 2, 3], bounds, 16).check_real(rollouts, Off(128, 5e-4), Version(0, 4)))


def test_tokens_behind_a_swap_of_weights_are_drift_and_no_numerics() -> None:
    learner = Off(0, 0.5)  # off everywhere: whatever is compared raises
    rollouts = [long_rollout(400, [(0, 3), (0, 4)])]
    probe = Probe([1, 2, 3], RLSettings(), 16)
    assert asyncio.run(probe.check_real(rollouts, learner, Version(0, 4))).row() == {"real_tokens": 0}
    assert not learner.items
    # before the swap they are of version 3 alone
    with pytest.raises(EtudeError, match="on 100 tokens of real rollouts"):
        asyncio.run(probe.check_real(rollouts, learner, Version(0, 3)))
    # however long it is, one segment is looked at; more only while there is room
    several = [long_rollout(3000, [(0, 4)]), long_rollout(500, [(0, 4)])]
    assert asyncio.run(probe.check_real(several, Off(9999, 0), Version(0, 4))).tokens == 1500
