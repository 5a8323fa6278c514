"""`etude bench` on a folder of tasks with any policy: what it prints, and what it refuses before the first rollout."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from etude.bench.result import load_result, summarise
from etude.cli.bench import _recipe, _show_tasks
from etude.core import recipe as recipes

Command = Any


@pytest.fixture
def katas(etude: Command, tmp_path: Path) -> Path:
    assert etude("tasks", "katas", "tasks", "--count", 2, "--levels", 1).returncode == 0
    return tmp_path / "tasks"


def test_a_folder_and_a_policy_are_one_command(etude: Command, katas: Path):
    done = etude("bench", "--tasks", katas, "--policy", "null", "bench.samples=2", "--save", "null.json")
    assert done.returncode == 0, done.stderr
    solved = etude("bench", "--tasks", katas, "--policy", "reference", "bench.samples=2", "--against", "null.json")
    assert solved.returncode == 0, solved.stderr
    shown = solved.stdout
    assert "100.0%" in shown and "2 rollouts each" in shown and "2 of 2" in shown
    assert "+100.0 points" in shown and "in pass@1, in pairs" in shown
    # The figures of the first hour: no percent of tokens, no pass@4 of two samples, no flags for scripts.
    assert "None" not in shown and "pass@4" not in shown and "True" not in shown
    tokens = next(line for line in shown.splitlines() if line.startswith("tokens"))
    assert "%" not in tokens and "written in a rollout" in tokens


def test_a_gain_between_different_agents_is_not_of_the_model_alone(etude: Command, katas: Path, tmp_path: Path):
    words = ("bench", "--tasks", katas, "--policy", "null", "bench.samples=1")
    assert etude(*words, "--save", "a.json").returncode == 0
    same = etude(*words, "--against", "a.json")
    assert same.returncode == 0 and "warning" not in same.stdout
    other = etude(*words, "harness.limits.turns=3", "--against", "a.json")
    assert "warning: the gain is not of the model alone: limits.turns " in other.stdout
    older = json.loads((tmp_path / "a.json").read_text())
    del older["agent"]
    (tmp_path / "older.json").write_text(json.dumps(older))
    assert "does not say what the agent acted with" in etude(*words, "--against", "older.json").stdout


def test_what_is_wrong_is_said_before_the_first_rollout(
    etude: Command, katas: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("a benchmark began")

    assert etude("bench", "--tasks", katas, "--policy", "null", "bench.samples=1", "--save", "a.json").returncode == 0
    monkeypatch.setattr("etude.bench.runner.bench_scripted", never)
    missing = etude("bench", "--tasks", katas, "--policy", "null", "--against", "nope.json")
    assert missing.returncode == 2 and "nope.json" in missing.stderr
    other = json.loads((tmp_path / "a.json").read_text())
    other["tasks"] = other["tasks"][:1]
    (tmp_path / "other.json").write_text(json.dumps(other))
    unpaired = etude("bench", "--tasks", katas, "--policy", "null", "--against", "other.json")
    assert unpaired.returncode == 2 and "not of the same tasks (1 tasks there, 2 here)" in unpaired.stderr
    unwritable = etude("bench", "--tasks", katas, "--policy", "null", "--save", "/proc/x/y.json")
    assert unwritable.returncode == 2 and "make room" not in unwritable.stderr
    nothing = etude("bench", "bench.samples=2")
    assert nothing.returncode == 2 and "say what to benchmark" in nothing.stderr
    unknown = etude("bench", "--tasks", katas, "--policy", "refrence")
    assert unknown.returncode == 2 and "refrence" in unknown.stderr


def test_a_benchmark_of_training_tasks_is_not_called_held_out(
    etude: Command, katas: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert etude("bench", "--tasks", katas, "--policy", "null", "bench.samples=1", "--save", "a.json").returncode == 0
    result = load_result(tmp_path / "a.json")
    assert result.trained_on is None  # of a script nobody asks
    for trained, says in ((0, "2 held-out tasks"), (1, "trained on 1 of these 2 tasks"), (2, "2 training tasks")):
        found = dataclasses.replace(result, trained_on=trained)
        _show_tasks({"model": "runs/mine", **summarise(found)}, found, None)
        shown = capsys.readouterr().out
        assert says in shown and ("held-out tasks" in shown) == (trained == 0)


def test_a_model_without_a_run_takes_the_named_recipe_or_defaults_that_fit(tiny_run: Path, tmp_path: Path):
    model = shutil.copytree(next((tiny_run / "checkpoints").glob("sft-*")), tmp_path / "model")
    named = _recipe("", str(model), "repo", ["bench.samples=3"], None, "")
    assert named.harness.limits.context_tokens == recipes.load("repo").harness.limits.context_tokens
    assert named.bench.samples == 3
    bare = _recipe(str(model), "", "", [], None, "")
    assert bare.engine.max_length >= bare.harness.limits.context_tokens
    positions = json.loads((model / "config.json").read_text())["max_position_embeddings"]
    assert bare.harness.limits.context_tokens <= positions < recipes.load(None).harness.limits.context_tokens
    assert _recipe(str(model), "", "", ["engine.max_length=77"], None, "").engine.max_length == 77
