"""Algorithms against their formulas in float64, and the batch that is made of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from etude.core.errors import EtudeError
from etude.core.rl_settings import RLSettings
from etude.learn.streams import Floats, Item, Sampled
from etude.rl.algorithms.base import BatchShape
from etude.rl.algorithms.table import build_algorithm
from etude.rl.batches import prepare
from etude.rl.groups import Rollout, RolloutGroup, Slot, Trace, pack, unpack

PLAN = BatchShape(groups=4, group=5, longest=100)
REWARDS = [0.0, 1.0, 0.25, 1.0, -0.5]


def rollout(rng: np.random.Generator, reward: float, lengths: Sequence[int] = (20,), **facts: Any) -> Rollout:
    traces = []
    for length in lengths:
        sampled_T = rng.random(length) < 0.4
        sampled_T[0], sampled_T[-1] = False, True
        logprob_T = np.where(sampled_T, -rng.random(length), 0).astype(np.float32)
        version_T2 = np.where(sampled_T[:, None], rng.integers(0, 9, (length, 2)), -1).astype(np.int32)
        traces.append(Trace(rng.integers(0, 300, length).astype(np.int32), sampled_T, logprob_T, version_T2))
    known = {"parts": {"tests": reward}, "passed": reward == 1, "stop": "finish", "turns": 2, "malformed": 0}
    known |= {"tool_errors": 1, "tokens": sum(lengths), "temperature": 0.8, "seconds": 0.5}
    return Rollout(**(known | {"reward": reward} | facts), traces=tuple(traces))


def members(seed: int = 0, rewards: Sequence[float] = REWARDS) -> list[Rollout]:
    rng = np.random.default_rng(seed)
    return [rollout(rng, reward, (10 + 7 * i, 5)) for i, reward in enumerate(rewards)]


def formulas(use: str, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r = np.array(REWARDS, np.float64)
    n = len(r)
    if use == "dr_grpo":
        return r - r.mean(), np.full(n, 1 / (4 * 5 * 100))
    if use == "grpo":
        return (r - r.mean()) / (r.std() + 1e-4), 1 / (4 * 5 * lengths)
    leave_one_out = np.array([np.delete(r, i).mean() for i in range(n)])
    return r - leave_one_out, np.full(n, 1 / (4 * 5 * 100))


@pytest.mark.parametrize("use", ["dr_grpo", "grpo", "rloo"])
def test_streams_are_the_published_formulas(use: str) -> None:
    rollouts = members()
    lengths = np.array([sum(t.sampled_T.sum() for t in r.traces) for r in rollouts], np.float64)
    advantages, weights = formulas(use, lengths)
    written = build_algorithm({"use": use}).items(rollouts, REWARDS, PLAN)
    for place, (source, items) in enumerate(zip(rollouts, written, strict=True)):
        assert len(items) == len(source.traces)
        for trace, item in zip(source.traces, items, strict=True):
            (stream,) = item.streams
            assert isinstance(stream.target, Sampled) and stream.head == "main" and item.temperature == 0.8
            np.testing.assert_array_equal(item.tokens_T, trace.ids_T)
            np.testing.assert_array_equal(stream.target.logprob_T, trace.logprob_T)
            np.testing.assert_allclose(stream.weight_T, trace.sampled_T * weights[place], rtol=1e-6)
            np.testing.assert_allclose(stream.target.advantage_T, trace.sampled_T * advantages[place], rtol=1e-5)


@pytest.mark.parametrize("use", ["dr_grpo", "grpo", "rloo"])
@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1 + 0.2])
def test_a_group_without_variance_costs_no_forward(use: str, reward: float) -> None:
    rollouts = members(rewards=[reward] * 5)
    for items in build_algorithm({"use": use}).items(rollouts, [reward] * 5, PLAN):
        assert [item.forward_tokens for item in items] == [0] * len(items)


def test_the_constant_of_dr_grpo_can_be_set() -> None:
    found = build_algorithm({"use": "dr_grpo", "tokens": 7}).weights([1, 50], PLAN)
    assert found == [1 / (4 * 5 * 7)] * 2


def test_an_algorithm_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from etude.rl.algorithms.base import Algorithm\n\n\n"
        "class Mine(Algorithm):\n"
        "    def advantages(self, rewards):\n"
        "        return [reward - max(rewards) for reward in rewards]\n\n\n"
        "class NotOne:\n"
        "    from pydantic import BaseModel as Settings\n\n"
        "    def __init__(self, settings):\n"
        "        pass\n"
    )
    assert build_algorithm({"use": f"{tmp_path}/mine.py:Mine"}).advantages([1.0, 3.0]) == [-2.0, 0.0]
    with pytest.raises(EtudeError, match="is not an algorithm"):
        build_algorithm({"use": f"{tmp_path}/mine.py:NotOne"})
    with pytest.raises(EtudeError, match="no algorithm is called 'grop'; did you mean grpo"):
        build_algorithm({"use": "grop"})
    with pytest.raises(EtudeError, match=r"unknown key rl\.algorithm\.eps"):
        build_algorithm({"use": "rloo", "eps": 1})


def test_rollouts_survive_packing_exactly() -> None:
    for source in members(3):
        again = unpack(pack(source))
        assert replace(again, traces=()).__dict__ == replace(source, traces=()).__dict__
        for one, other in zip(source.traces, again.traces, strict=True):
            for name in ("ids_T", "sampled_T", "logprob_T", "version_T2"):
                assert getattr(one, name).dtype == getattr(other, name).dtype
                np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    for damaged in (b"", b"\xff" * 40, pack(source)[:-3], pack(source)[:5]):
        with pytest.raises(EtudeError, match="cannot be read"):
            unpack(damaged)


class Reference:
    """A learner whose frozen weights give every token the same probability."""

    async def score(self, items: Sequence[Item], weights: str = "live") -> list[Floats]:
        assert weights == "frozen"
        return [np.full(len(item.tokens_T), -0.75, np.float32) for item in items]


def group(rollouts: Sequence[Rollout], number: int = 0) -> RolloutGroup:
    return RolloutGroup(number, 0, [Slot("ready", rollout=each) for each in rollouts])


def test_k1_against_the_reference_is_taken_from_the_reward() -> None:
    settings = RLSettings(kl=0.3)
    rollouts = members(1)
    prepared = asyncio.run(prepare([group(rollouts)], build_algorithm({"use": "dr_grpo"}), PLAN, settings, Reference()))
    k1 = np.array([sum((t.logprob_T.astype(np.float64) + 0.75)[t.sampled_T].sum() for t in r.traces) for r in rollouts])
    shaped = np.array(REWARDS) - 0.3 * k1
    wanted = shaped - shaped.mean()
    items = iter(prepared.batch.items)
    for place, source in enumerate(rollouts):
        for trace in source.traces:
            target = next(items).streams[0].target
            assert isinstance(target, Sampled)
            np.testing.assert_allclose(target.advantage_T, trace.sampled_T * wanted[place], rtol=1e-4, atol=1e-6)
    assert prepared.reference_kl == pytest.approx(k1.mean(), rel=1e-5)


def test_groups_that_teach_nothing_and_rollouts_that_a_limit_stopped_are_left_out() -> None:
    algorithm = build_algorithm({"use": "dr_grpo"})
    varied, flat = members(1), members(2, [1.0] * 5)
    varied[0] = replace(varied[0], stop="tokens")
    kept = asyncio.run(prepare([group(varied), group(flat, 1)], algorithm, PLAN, RLSettings(), Reference()))
    assert (kept.zero_variance, kept.masked) == (1, 0)
    assert len(kept.batch.items) == 10 and all(item.forward_tokens for item in kept.batch.items)
    assert kept.trained_tokens == sum(each.sampled_tokens for each in varied)
    assert (kept.batch.correction.kind, kept.batch.correction.high) == ("truncate", 2.0)
    masked = asyncio.run(prepare([group(varied)], algorithm, PLAN, RLSettings(overlong="mask"), Reference()))
    assert (masked.masked, len(masked.batch.items)) == (1, 8)
    target, plain = masked.batch.items[0].streams[0].target, kept.batch.items[2].streams[0].target
    assert isinstance(target, Sampled) and isinstance(plain, Sampled)
    np.testing.assert_array_equal(target.advantage_T, plain.advantage_T)  # it still counts in the mean
