"""Hints as streams of a batch: which tokens, which weight, beside the algorithm's or alone; and the whole loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from etude.behaviours.base import Site
from etude.core.errors import EtudeError
from etude.core.recipe import Recipe
from etude.core.rl_settings import FeedbackSettings, RLSettings
from etude.core.run_files import read_metrics
from etude.harness.hinted import Hinted
from etude.learn.streams import Floats, Item, Sampled, Twin
from etude.rl.algorithms.base import BatchShape
from etude.rl.algorithms.table import build_algorithm, check_algorithm
from etude.rl.batches import Prepared, prepare
from etude.rl.feedback import check_feedback, first_of_each_kind, weight_at
from etude.rl.groups import Rollout, RolloutGroup, Slot, Trace

ON = [{"use": "tool_errors"}]
SHAPE = BatchShape(2, 2, 10)


def rollout(reward: float, hints: int = 0, sites: int | None = None, experts: bool = False) -> Rollout:
    """Twenty tokens with turns at 5 to 8 and 12 to 16; a hint for each of the first `hints`."""
    sampled_T = np.zeros(20, bool)
    sampled_T[5:8] = sampled_T[12:16] = True
    routes = np.zeros((20, 1, 2), np.int16) if experts else None
    trace = Trace(np.arange(20, dtype=np.int32), sampled_T, np.full(20, -1.0, np.float32), np.zeros((20, 2)), routes)
    places = [Hinted(0, 0, 4, (90, 91), 5, 8), Hinted(1, 0, 11, (92,), 12, 16)][:hints]
    where = tuple(Site(i, "tool_errors.malformed", "Write.") for i in range(hints if sites is None else sites))
    return Rollout(
        reward=reward,
        parts={},
        passed=False,
        stop="finish",
        turns=2,
        malformed=0,
        tool_errors=0,
        tokens=20,
        temperature=0.9,
        seconds=0.0,
        traces=(trace,),
        sites=where,
        hints=tuple(places),
    )


class NoReference:
    async def score(self, items: Sequence[Item], weights: str = "live") -> list[Floats]:
        raise AssertionError("nobody asked for a reference")


def prepared(
    rollouts: list[Rollout], step: int = 0, rl: RLSettings | None = None, use: str = "dr_grpo", **feedback: Any
) -> Prepared:
    settings = replace(rl or RLSettings(), feedback=FeedbackSettings(**{"behaviours": ON, **feedback}))
    group = RolloutGroup(0, 0, [Slot("ready", each) for each in rollouts])
    algorithm = build_algorithm({"use": use})
    return asyncio.run(prepare([group], algorithm, SHAPE, settings, NoReference(), step))


def test_a_hint_is_a_stream_beside_the_policy_gradient_of_the_same_tokens() -> None:
    found = prepared([rollout(1.0, hints=2), rollout(0.0)], weight=3.0)
    first, second = found.batch.items
    assert [type(stream.target) for stream in first.streams] == [Sampled, Twin, Twin]
    assert [type(stream.target) for stream in second.streams] == [Sampled]
    early, late = first.streams[1:]
    assert np.flatnonzero(early.weight_T).tolist() == [5, 6, 7]
    assert early.weight_T[5] == pytest.approx(3.0 / (2 * 2 * 10))
    assert isinstance(early.target, Twin) and isinstance(late.target, Twin)
    assert early.target.tokens_U.tolist() == [0, 1, 2, 3, 90, 91, 5, 6, 7]
    assert early.target.align_T[5:8].tolist() == [6, 7, 8]
    assert late.target.tokens_U.tolist() == [*range(11), 92, 12, 13, 14, 15]
    assert found.trained_tokens == 14  # of the policy gradient
    counts = {"sites": 2, "dropped": 0, "capped": 0, "hinted": 2, "tokens": 7}
    assert found.feedback == {f"feedback_{name}": value for name, value in counts.items()}


def test_groups_without_signal_and_masked_rollouts_are_taught_too() -> None:
    """And nothing behind the last hinted turn is computed for them."""
    found = prepared([rollout(1.0, hints=1), rollout(1.0, hints=0, sites=1)])
    (item,) = found.batch.items
    assert item.tokens_T.tolist() == list(range(8)) and [type(s.target) for s in item.streams] == [Twin]
    assert (found.zero_variance, found.trained_tokens, item.temperature) == (1, 0, 0.9)
    assert found.feedback["feedback_dropped"] == 1  # a site whose hint no template would take
    overlong = replace(rollout(1.0, hints=1), stop="tokens")
    masked = prepared([overlong, rollout(0.0)], rl=RLSettings(overlong="mask"))
    assert masked.masked == 1 and sum(len(item.streams) for item in masked.batch.items) == 2


def test_settings_reach_the_twin() -> None:
    how: dict[str, Any] = {"direction": "jsd", "beta": 0.3, "support": "top", "top": 7, "teacher": "frozen"}
    how |= {"trust": 0.2, "clip": 0.5, "ratio": 0.0, "filter": False, "cap": 1}
    found = prepared([rollout(1.0, hints=2), rollout(0.0)], **how)
    (twin,) = [stream.target for stream in found.batch.items[0].streams if isinstance(stream.target, Twin)]
    assert (twin.divergence, twin.beta, twin.support, twin.weights) == ("jsd", 0.3, 7, "frozen")
    assert (twin.trust, twin.clip, twin.logprob_T, twin.lowers) == (0.2, 0.5, None, False)
    assert found.feedback["feedback_capped"] == 1


def test_an_error_made_again_and_again_leaves_a_hint_for_the_one_behind_it() -> None:
    kinds = ("no_such_file", "no_such_file", "no_such_file", "text_not_found")
    sites = tuple(Site(i, f"tool_errors.{kind}", "Mend.") for i, kind in enumerate(kinds))
    places = tuple(Hinted(i, 0, 4 + 3 * i, (90,), 5 + 3 * i, 7 + 3 * i) for i in range(4))
    told = replace(rollout(1.0), sites=sites, hints=places)
    assert [hint.site for hint in first_of_each_kind(told, 1)] == [0]
    assert [hint.site for hint in first_of_each_kind(told, 2)] == [0, 3]
    assert [hint.site for hint in first_of_each_kind(told, 3)] == [0, 1, 3]
    assert first_of_each_kind(told, 9) == list(places)


@pytest.mark.parametrize("routing", ["free", "replay"])
def test_a_teacher_chooses_its_experts_unless_told_otherwise(routing: str) -> None:
    found = prepared([rollout(1.0, hints=1, experts=True), rollout(0.0, experts=True)], routing=routing)
    (twin,) = [stream.target for stream in found.batch.items[0].streams if isinstance(stream.target, Twin)]
    if routing == "free":
        assert twin.experts_UBK is None
    else:
        assert twin.experts_UBK is not None and twin.plausible == RLSettings().plausible
        assert twin.experts_UBK[:, 0, 0].tolist() == [0, 0, 0, 0, -1, -1, 0, 0, 0]


def test_without_behaviours_nothing_is_added() -> None:
    found = prepared([rollout(1.0, hints=2), rollout(0.0)], behaviours=[])
    assert [len(item.streams) for item in found.batch.items] == [1, 1] and found.feedback == {}


def test_the_weight_warms_up_holds_and_decays() -> None:
    settings = FeedbackSettings(weight=2.0, warmup=3, hold=10, decay=5)
    assert [weight_at(settings, step) for step in (0, 1, 3, 10, 12, 15, 99)] == [0.5, 1.0, 2.0, 2.0, 1.2, 0.0, 0.0]
    assert prepared([rollout(1.0, hints=1)] * 2, step=99, weight=2.0, hold=10, decay=5).batch.items == []


def test_a_teacher_that_nobody_keeps_is_refused() -> None:
    with pytest.raises(EtudeError, match=r"rl\.optim\.ema"):
        check_feedback(FeedbackSettings(behaviours=ON, teacher="ema"), ema=0.0)
    check_feedback(FeedbackSettings(behaviours=ON, teacher="ema"), ema=0.9)
    with pytest.raises(EtudeError, match=r"rl\.feedback\.behaviours would teach nothing"):
        check_algorithm(build_algorithm({"use": "rloo"}), RLSettings(feedback=FeedbackSettings(ON, context="errors")))
    # sdpo says itself what its teacher reads, whatever else a recipe has for others
    check_algorithm(build_algorithm({"use": "sdpo"}), RLSettings(feedback=FeedbackSettings(ON)))
    with pytest.raises(EtudeError, match="reverse"):
        check_feedback(FeedbackSettings(behaviours=ON, support="sampled"), ema=0.0)


@pytest.mark.parametrize(
    ("use", "how"),
    [("sdpo", ("reverse", 20, "ema")), ("sdft", ("forward", "full", "ema")), ("opsd", ("jsd", "full", "frozen"))],
)
def test_self_distillation_is_the_same_streams_without_a_policy_gradient(use: str, how: tuple[Any, ...]) -> None:
    whole = replace(rollout(1.0), sites=(Site(1, "privileged.errors", "x"),), hints=(Hinted(0, 0, 4, (90,), 5, 20),))
    found = prepared([whole, rollout(0.0)], use=use, behaviours=[])
    assert found.zero_variance == 0 and prepared([whole, rollout(1.0)], use=use, behaviours=[]).zero_variance == 1
    (item,) = found.batch.items
    (stream,) = item.streams
    assert isinstance(stream.target, Twin)
    assert (stream.target.divergence, stream.target.support, stream.target.weights) == how
    assert np.flatnonzero(stream.weight_T).tolist() == [5, 6, 7, 12, 13, 14, 15]  # every sampled token of the rollout
    assert stream.target.tokens_U.tolist() == [0, 1, 2, 3, 90, *range(5, 20)]


def test_the_loop_teaches_from_hints_though_all_rewards_are_equal(
    toy_model: Path, toy_recipe: Callable[..., Recipe], tmp_path: Path, train_run: Callable[..., dict[str, Any]]
) -> None:
    """The toy breaks the format all the time, and no task is solved: without feedback no weight would move."""
    recipe = toy_recipe(
        "reward.parts=[{use='tests'}]",
        "rl.eval_every=0",
        "rl.steps=2",
        "rl.feedback.behaviours=[{use='tool_errors'}]",
        "rl.feedback.filter=false",
    )
    path = tmp_path / "run"
    facts = train_run(path, recipe, toy_model)
    rows = [row for row in read_metrics(path) if row["stage"] == "rl"]
    assert len(rows) == 2
    assert facts["feedback_tokens"] == sum(row["feedback_tokens"] for row in rows) > 0 == facts["trained_tokens"]
    for row in rows:
        assert row["zero_variance"] == 2 and row["feedback_sites"] > 0 and row["feedback_dropped"] == 0
        assert row["feedback_hinted"] > 0 and row["twin_kl"] > 0 and row["grad_norm"] > 0
        assert row["behaviour_tool_errors.malformed"] > 0
