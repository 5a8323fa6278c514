"""Steps that change nothing: without signal, or with a gradient that is not finite; and what a step's row says."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from etude.core.errors import EtudeError
from etude.core.recipe import Recipe
from etude.core.run import Run
from etude.core.run_files import read_metrics
from etude.core.terms import Terms
from etude.learn.optim import measured_update
from etude.policies.engine_client import EngineClient
from etude.rl.groups import Rollout, Trace
from etude.rl.learner.client import LearnerClient
from etude.rl.metrics import FIRST, NoPasses, bug_alarm, describe, pass_at, staleness
from etude.rl.rollout_environment import RolloutEnvironment
from etude.rollout.rollout import Outcome, Void
from etude.tasks.format.task import Task


def rollout(versions: list[tuple[int, int]], **facts: Any) -> Rollout:
    version_T2 = np.array(versions, np.int32)
    trace = Trace(np.zeros(len(versions), np.int32), version_T2[:, 1] >= 0, np.zeros(len(versions)), version_T2)
    known: dict[str, Any] = {"parts": {}, "reward": 0.0} | facts
    return Rollout(known["reward"], known["parts"], False, "final", 1, 0, 0, 3, 1.0, 0.1, (trace,))


def test_a_part_of_the_reward_is_averaged_over_the_rollouts_that_it_concerns() -> None:
    some = [rollout([(0, 1)], parts={"tests": 1.0, "diff": -0.5}), rollout([(0, 1)], parts={"tests": 0.0})]
    found = describe(some)
    assert found["reward_tests"] == 0.5 and found["reward_diff"] == -0.5


def test_calls_that_failed_by_a_bug_of_ours_are_counted_and_told() -> None:
    some = [replace(rollout([(0, 1)]), errors={"HarnessBug": 2, "Timeout": 1}), rollout([(0, 1)])]
    found = describe(some)
    assert found["harness_bugs"] == 2 and "2 tool calls failed by bugs" in bug_alarm(found)
    assert not bug_alarm(describe(some[1:])) and not bug_alarm({})


def test_a_run_that_goes_on_knows_whether_anything_passed_before(tmp_path: Path) -> None:
    for passed in (0, 1):
        with Run.open(tmp_path / str(passed), {}) as run:
            run.begin("rl")
            run.log("rl.task", 1, task="a", passed=passed, rollouts=4)
            silent = NoPasses(run.path).heard([0] * FIRST)
        assert silent == "" if passed else f"the first {FIRST + 1} groups passed" in silent


def test_a_row_says_how_calls_are_made_which_tools_are_used_and_who_edits() -> None:
    mixed = {"run": {"calls": 2}, "edit": {"calls": 2, "Timeout": 1}}
    works = replace(rollout([(0, 1)]), tools=mixed, parallel_calls=0.5, edited=True)
    found = describe([works, replace(works, parallel_calls=0.0, edited=False), rollout([(0, 1)])])
    assert found["parallel_calls"] == 0.25 and found["tool_mix"] == 1.0  # who called nothing made no calls together
    assert found["edit_rate"] == pytest.approx(1 / 3)
    collapsed = describe([replace(works, tools={"run": {"calls": 9}})])
    assert collapsed["tool_mix"] == 0.0 and math.copysign(1, collapsed["tool_mix"]) == 1
    assert not {"parallel_calls", "tool_mix"} & describe([rollout([(0, 1)])]).keys()


def test_summaries_and_stated_effort_have_columns_only_where_there_are_any() -> None:
    low, high = (replace(rollout([(0, 1)] * tokens), terms=Terms(level)) for tokens, level in ((2, "low"), (6, "high")))
    low = replace(low, passed=True, traces=(*low.traces, replace(low.traces[0], cause="summary")))
    found = describe([low, high])
    assert found["summaries"] == 0.5
    assert (found["effort_low_tokens"], found["effort_high_tokens"]) == (4, 6)
    assert (found["effort_low_pass_rate"], found["effort_high_pass_rate"]) == (1, 0)
    assert not [name for name in describe([rollout([(0, 1)])]) if name.startswith(("summaries", "effort_"))]


def test_steps_that_left_the_weights_as_they_were_make_no_token_older() -> None:
    # version 7 was sampled from until step 10, since 8 and 9 moved nothing
    assert staleness([rollout([(0, 7)])], 9, {}, [8, 9])["staleness_max"] == 0
    found = staleness([rollout([(0, 7), (0, 10)])], 11, {}, [3, 8, 9])
    assert (found["staleness_mean"], found["staleness_max"]) == (1.5, 2)
    assert (found["staleness_share_1"], found["staleness_share_2"]) == (0.5, 0.5)
    # past a fork, too: 12 of the abandoned lineage is two steps from the fork at 10, and 11 moved nothing
    assert staleness([rollout([(0, 12)])], 13, {0: 10}, [11])["staleness_max"] == 4


def test_pass_at_k_is_the_mean_chance_that_k_rollouts_of_a_task_hold_a_pass() -> None:
    outcomes = [("a", True), ("a", False), ("a", False), ("a", False), *[("b", False)] * 4, *[("c", True)] * 4]
    found = pass_at(outcomes)
    assert found == {"pass_at_1": pytest.approx(1.25 / 3), "pass_at_2": pytest.approx(1.5 / 3), "pass_at_4": 2 / 3}
    chances = [any(passed for _, passed in pair) for pair in itertools.combinations(outcomes[:4], 2)]
    assert pass_at(outcomes[:4])["pass_at_2"] == sum(chances) / len(chances)
    assert pass_at([]) == {} and pass_at([("a", True)]) == {"pass_at_1": 1.0}


def test_the_size_of_an_update_is_the_root_mean_square_over_all_entries() -> None:
    torch.manual_seed(0)
    small, large = torch.randn(3, 5), torch.randn(300, 400)
    with measured_update([small, large]) as found:
        small += 0.3
        large.copy_(large - 0.1)
    wanted = math.sqrt((15 * 0.3**2 + 120_000 * 0.1**2) / 120_015)
    assert found.rms == pytest.approx(wanted, rel=1e-4)


def test_steps_without_signal_advance_the_schedule_publish_nothing_and_cost_nothing(
    toy_model: Path,
    toy_recipe: Callable[..., Recipe],
    tmp_path: Path,
    train_run: Callable[..., dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And the log says of a rollout that was spoiled whose failure that was."""
    updates: list[Any] = []
    real, moments = RolloutEnvironment.run_rollout, iter([True])

    async def spoiled(self: RolloutEnvironment, task: Task, *given: Any, **more: Any) -> Outcome:
        if next(moments, False):
            return Void(task, "grader", True, "a bad moment")
        return await real(self, task, *given, **more)

    async def update(self: EngineClient, version: Any) -> dict[str, Any]:
        updates.append(version)
        return {}

    monkeypatch.setattr(RolloutEnvironment, "run_rollout", spoiled)
    monkeypatch.setattr(EngineClient, "update", update)
    # the toy solves nothing, so every reward is 0; a rate that falls shows whether the schedule goes on
    recipe = toy_recipe(
        "reward.parts=[{use='tests'}]", "rl.eval_every=0", "rl.steps=3", "rl.optim.schedule=cosine", "rl.staleness=0"
    )
    path = tmp_path / "run"
    facts = train_run(path, recipe, toy_model)
    assert (facts["steps"], facts["zero_variance"], facts["trained_tokens"]) == (3, 6, 0)
    rows = [row for row in read_metrics(path) if row["stage"] == "rl"]
    rates = [row["lr"] for row in rows]
    assert rates[0] > rates[1] > rates[2] and [row["grad_norm"] for row in rows] == [0, 0, 0]
    assert updates == [] and [row["staleness_max"] for row in rows] == [0, 0, 0]
    assert [row["forward_tokens"] for row in rows] == [0, 0, 0] and all(row["probe_max"] < 1e-3 for row in rows)
    last, before = (load_file(place / "model.safetensors") for place in (path / "checkpoints/rl-0000003", toy_model))
    assert all(np.array_equal(last[name], before[name]) for name in last)
    assert "void (grader)" in (path / "log").read_text() and "a bad moment" in (path / "log").read_text()


def test_a_run_whose_tasks_end_before_its_steps_says_so(
    toy_model: Path, toy_recipe: Callable[..., Recipe], tmp_path: Path, train_run: Callable[..., dict[str, Any]]
) -> None:
    (tmp_path / "q.jsonl").write_text('{"question": "2 + 2?", "answer": "4"}\n' * 3)
    recipe = toy_recipe(f"rl.tasks={{use='questions', path='{tmp_path}/q.jsonl'}}", "rl.eval_every=0", "rl.steps=9")
    facts = train_run(tmp_path / "run", recipe, toy_model)
    assert facts["groups"] == 3 and facts["steps"] < 9 and not facts["stopped"]
    assert f"has no task left: ended at step {facts['steps']} of 9" in (tmp_path / "run" / "log").read_text()


def test_services_that_nobody_can_ask_are_told(
    toy_model: Path,
    toy_recipe: Callable[..., Recipe],
    tmp_path: Path,
    train_run: Callable[..., dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    recipe = toy_recipe("rl.tasks={use='reported_katas', split='train'}", "rl.eval_every=0", "rl.steps=1")
    train_run(tmp_path / "run", recipe, toy_model)
    said = "the agent has no tool that asks them; add { use = 'service' } to harness.tools"
    assert said in (tmp_path / "run" / "log").read_text() and said in capsys.readouterr().err


def test_gradients_that_are_not_finite_stop_the_run(
    toy_model: Path,
    toy_recipe: Callable[..., Recipe],
    tmp_path: Path,
    train_run: Callable[..., dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    published = []

    async def step(self: LearnerClient, *schedule: float) -> dict[str, float]:
        return {"grad_norm": math.nan, "lr": 3e-4, "skipped": 1}

    async def publish(self: LearnerClient, version: Any) -> None:
        published.append(version)

    monkeypatch.setattr(LearnerClient, "step", step)
    monkeypatch.setattr(LearnerClient, "publish", publish)
    recipe = toy_recipe("rl.eval_every=0", "rl.not_finite=2", "rl.steps=5")
    with pytest.raises(EtudeError, match=r"2 steps in a row had a gradient that is not finite \(rl.not_finite = 2\)"):
        train_run(tmp_path / "run", recipe, toy_model)
    rows = [row for row in read_metrics(tmp_path / "run") if row["stage"] == "rl"]
    assert len(rows) == 1 and published == []
    assert rows[0]["entropy"] > 0 and "drift_p50" in rows[0] and "loss_sampled" in rows[0]


def test_a_policy_that_runs_away_from_its_sampler_stops_the_run(
    toy_model: Path,
    toy_recipe: Callable[..., Recipe],
    tmp_path: Path,
    train_run: Callable[..., dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    apart = iter((0.9, 0.1, 0.9, 0.9, 0.9, 0.9))  # one step alone is forgiven
    real = LearnerClient.step

    async def step(self: LearnerClient, *schedule: Any) -> dict[str, float]:
        return await real(self, *schedule) | {"k3": next(apart)}

    monkeypatch.setattr(LearnerClient, "step", step)
    recipe = toy_recipe("rl.eval_every=0", "rl.steps=6")
    with pytest.raises(EtudeError, match=r"too far from the one that sampled \(k3 0.9, rl.drift_k3 = 0.5\)"):
        train_run(tmp_path / "run", recipe, toy_model)
    assert len([row for row in read_metrics(tmp_path / "run") if row["stage"] == "rl"]) == 4
