"""The whole loop with real processes: sandboxes, an engine, a learner."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from safetensors.numpy import load_file

from etude.core import recipe as recipes
from etude.core.errors import EtudeError
from etude.core.progress import LastStep
from etude.core.recipe import Recipe
from etude.core.run import Run
from etude.core.run_files import read_metrics
from etude.forge.katas.task_source import write_katas
from etude.rl.evaluate import Evaluations
from etude.rl.orchestrator import board_path, train
from etude.rollout.store import load_rollout, saved_rollouts

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "rl_kill.py"
MakeRecipe = Callable[..., Recipe]
TrainRun = Callable[..., dict[str, Any]]
NAMED = [
    "reward",
    "reward_Luck",
    "pass_rate",
    "groups",
    "zero_variance",
    "trained_tokens",
    "forward_tokens",
    "sampled_tokens",
    "rollout_tokens",
    "turns",
    "tool_errors",
    "malformed",
    "void",
    "staleness_mean",
    "staleness_max",
    "drift_mean",
    "drift_p99",
    "k1",
    "k2",
    "k3",
    "grad_norm",
    "lr",
    "loss",
    "probe_mean",
    "probe_max",
    "seconds",
    "learner_busy",
    "engine_busy",
    "wait_data",
    "wait_learner",
]


def trained(path: Path) -> dict[int, set[int]]:
    """Step -> groups, of a journal in which nothing was abandoned."""
    found: dict[int, set[int]] = {}
    for number, step in sqlite3.connect(path / "rl" / "journal.db").execute(
        "SELECT number, step FROM changes WHERE state = 'trained'"
    ):
        found.setdefault(step, set()).add(number)
    return found


def nothing_left(path: Path) -> bool:
    places = [board_path(path.resolve()), path / "rl" / "store", path / "rl" / "candidate"]
    return not any(place.exists() for place in places)


def test_the_loop_trains_publishes_probes_evaluates_and_commits(
    toy_model: Path, toy_recipe: MakeRecipe, tmp_path: Path, train_run: TrainRun
) -> None:
    path = tmp_path / "run"
    facts = train_run(path, toy_recipe(), toy_model)
    assert (facts["steps"], facts["groups"], facts["rollouts"], facts["void"]) == (3, 6, 18, 0)
    assert facts["stopped"] is False and 0 < facts["probe_mean"] <= 1e-5 and facts["probe_max"] <= 1e-3
    assert set().union(*trained(path).values()) == set(range(6))
    rows = [row for row in read_metrics(path) if row["stage"] == "rl"]
    assert [row["step"] for row in rows] == [1, 2, 3]
    for row in rows:
        assert not [name for name in NAMED if name not in row]
        assert row["staleness_max"] <= 1 and row["groups"] == 2 and row["grad_norm"] > 0
        assert sum(value for name, value in row.items() if name.startswith("stop_")) == 6
    assert rows[0]["drift_mean"] < 1e-5  # nothing was published between sampling and training
    evals = {row["step"]: row for row in read_metrics(path) if row["stage"] == "rl.eval"}
    assert sorted(evals) == [0, 2, 3] and all(row["rollouts"] == 2 for row in evals.values())
    # of one model each, although the weights moved meanwhile
    assert all(row["first_version"] == row["last_version"] == step for step, row in evals.items())
    assert all(row["pass_at_1"] == row["pass_rate"] for row in evals.values())
    assert [folder.name for folder in sorted((path / "checkpoints").iterdir())] == ["rl-0000002", "rl-0000003"]
    last, before = (load_file(place / "model.safetensors") for place in (path / "checkpoints/rl-0000003", toy_model))
    assert any(not np.array_equal(last[name], before[name]) for name in last)
    best = json.loads((path / "best" / "best.json").read_text())
    assert best["step"] == facts["best_step"] and (path / "best" / "tokenizer.json").exists()
    kept = [load_rollout(folder) for folder in saved_rollouts(path / "rl" / "trajectories")]
    assert 1 <= len(kept) <= 4 and all(attempt.trajectory is not None for attempt in kept)
    assert nothing_left(path)


class Resumed(NamedTuple):
    path: Path
    first: dict[str, Any]  # facts of the command that was stopped
    asked: list[tuple[Any, ...]]  # tasks that its source had given until then
    facts: dict[str, Any]  # of the one that went on


def source_rows(run: Path, table: str) -> list[tuple[Any, ...]]:
    return sqlite3.connect(run / "rl" / "curriculum.db").execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()


@pytest.fixture(scope="module")
def resumed(
    toy_model: Path, toy_recipe: MakeRecipe, train_run: TrainRun, tmp_path_factory: pytest.TempPathFactory
) -> Resumed:
    """A run that was stopped and went on: alternating, with a reference, and with a curriculum for its source."""
    folder = tmp_path_factory.mktemp("resumed")
    write_katas(folder / "tasks", "train", 8, 0, (1,))
    source = f"rl.tasks={{use='curriculum', path='{folder / 'tasks'}', uses=9}}"
    recipe = toy_recipe(source, "rl.concurrent=false", "rl.kl=0.1", "rl.eval_every=4", "rl.steps=4")
    path = folder / "run"
    first = train_run(path, recipe, toy_model, stop_at=1)
    assert first["stopped"] and first["steps"] == 1 and nothing_left(path)
    assert (path / "checkpoints" / "rl-0000001").is_dir()
    asked = source_rows(path, "asked")
    return Resumed(path, first, asked, train_run(path, recipe, toy_model))


def test_a_stopped_run_goes_on_where_it_was_alternating_and_with_a_reference(resumed: Resumed) -> None:
    path, facts = resumed.path, resumed.facts
    assert (facts["steps"], facts["rollouts"], facts["staleness_max"]) == (4, 24, 0)
    assert facts["seconds"] > resumed.first["seconds"]
    steps = trained(path)
    assert sorted(steps) == [1, 2, 3, 4] and all(len(groups) == 2 for groups in steps.values())
    assert set().union(*steps.values()) == set(range(8))
    rows = [row for row in read_metrics(path) if row["stage"] == "rl"]
    assert [(row["lineage"], row["step"]) for row in rows] == [(0, 1), (1, 2), (1, 3), (1, 4)]
    assert rows[0]["reference_kl"] == pytest.approx(0, abs=1e-3)  # the weights are still the reference
    assert all(row["drift_mean"] < 1e-5 for row in rows)
    evals = [(row["lineage"], row["step"]) for row in read_metrics(path) if row["stage"] == "rl.eval"]
    assert evals in ([(0, 0), (1, 4)], [(1, 4)])  # the first may have been under way when the run was stopped


def test_a_curriculum_hears_how_its_tasks_went_and_a_resumed_run_asks_the_same(resumed: Resumed) -> None:
    assert source_rows(resumed.path, "asked")[: len(resumed.asked)] == resumed.asked
    heard = source_rows(resumed.path, "heard")
    assert sorted(step for _, step, _, _ in heard) == [1, 1, 2, 2, 3, 3, 4, 4]
    assert {tried for *_, tried in heard} == {3}


def test_a_run_that_is_stopped_in_the_middle_of_an_evaluation_leaves_nothing(
    toy_model: Path, toy_recipe: MakeRecipe, tmp_path: Path, train_run: TrainRun
) -> None:
    path = tmp_path / "run"
    assert train_run(path, toy_recipe("rl.eval_samples=60"), toy_model, stop_at=1)["stopped"]
    assert not [row for row in read_metrics(path) if row["stage"] == "rl.eval"]
    assert nothing_left(path)


def test_an_evaluation_that_was_under_way_when_its_step_was_saved_is_made_again(
    toy_model: Path, toy_recipe: MakeRecipe, tmp_path: Path, train_run: TrainRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins right before the checkpoint of its step, which so never knows what it found."""
    evaluate = Evaluations._evaluate

    async def slow(self: Evaluations, step: int, *given: Any) -> None:
        await (asyncio.Event().wait() if step == 2 else evaluate(self, step, *given))

    path = tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr(Evaluations, "_evaluate", slow)
        assert train_run(path, toy_recipe(), toy_model, stop_at=2)["stopped"]
    assert not [row for row in read_metrics(path) if row["stage"] == "rl.eval" and row["step"] == 2]
    train_run(path, toy_recipe(), toy_model)
    steps = [row["step"] for row in read_metrics(path) if row["stage"] == "rl.eval"]
    assert [step for step in steps if step] == [2, 3]


def test_the_time_limit_ends_the_stage_with_a_checkpoint(
    toy_model: Path, toy_recipe: MakeRecipe, tmp_path: Path, train_run: TrainRun
) -> None:
    path, recipe = tmp_path / "run", toy_recipe("rl.seconds=0.01", "rl.eval_every=0", "rl.steps=500")
    facts = train_run(path, recipe, toy_model)
    assert facts["steps"] == 0 and not facts["stopped"] and (path / "checkpoints" / "rl-0000000").is_dir()
    assert nothing_left(path)


def test_a_rate_that_decays_is_down_when_the_seconds_are_over(
    toy_model: Path, toy_recipe: MakeRecipe, tmp_path: Path, train_run: TrainRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LastStep, "after", lambda self, steps, spent: 2 if self.most == 1e6 else self.planned)
    keys = ("rl.eval_every=0", "rl.steps=3", "rl.optim.schedule=linear", "rl.optim.final_lr=0.1", "rl.seconds=1e6")
    path, recipe = tmp_path / "run", toy_recipe(*keys)
    train_run(path, recipe, toy_model)
    rates = [row["lr"] / recipe.rl.optim.lr for row in read_metrics(path) if row["stage"] == "rl"]
    assert rates == pytest.approx([0.55, 0.1, 0.1])


def test_engine_and_learner_that_disagree_stop_the_run_and_leave_nothing(
    toy_model: Path, toy_recipe: MakeRecipe, tmp_path: Path, train_run: TrainRun
) -> None:
    path, recipe = tmp_path / "run", toy_recipe("rl.probe_mean=0.0", "rl.eval_every=0")
    with pytest.raises(EtudeError, match="disagree at version"):
        train_run(path, recipe, toy_model)
    assert nothing_left(path)


def test_a_context_that_the_engine_cannot_take_is_refused_before_anything_starts(
    toy_model: Path, toy_recipe: MakeRecipe, tmp_path: Path
) -> None:
    recipe = toy_recipe("harness.limits.context_tokens=5000")
    with (
        Run.open(tmp_path / "run", recipes.to_dict(recipe)) as run,
        pytest.raises(EtudeError, match=r"context_tokens is 5000, more than engine\.max_length = 1024"),
    ):
        asyncio.run(train(run, recipe, toy_model))


@pytest.mark.usefixtures("warm_programs")
def test_three_kills_lose_nothing_repeat_nothing_and_leave_nothing() -> None:
    # More steps than three kills can wait for: a run that ends before the third shows nothing.
    command = [sys.executable, str(SCRIPT), "--kills", "3", "--steps", "30", "--seed", "1", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["ok"] and result["kills"] == 3 and not result["skipped"] and not result["twice"]
