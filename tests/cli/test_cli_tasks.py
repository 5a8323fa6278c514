"""The commands about tasks, in a real sandbox."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from etude.cli.main import app
from etude.forge.gates.attacks.table import ATTACKS
from etude.forge.katas.task_source import write_katas


def etude(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


def answer(*arguments: object, code: int = 0) -> dict[str, Any]:
    finished = etude(*arguments, "--json")
    assert finished.exit_code == code, finished.stderr
    found: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    (found,) = write_katas(tmp_path_factory.mktemp("tasks"), count=1, seed=3, levels=(1,))
    return found


def test_katas_are_written_and_found_fit(tmp_path: Path) -> None:
    assert answer("tasks", "katas", tmp_path / "katas", "--count", 2, "--levels", "1")["tasks"] == 2
    report = answer("tasks", "check", tmp_path / "katas")
    assert report == {"ok": True, "checked": 2, "valid": 2, "problems": {}}


def test_a_task_whose_tests_are_gone_is_unfit(task: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(task, broken)
    for test in (broken / "tests").glob("test_*.py"):
        test.unlink()
    finished = etude("tasks", "check", broken, task)
    assert finished.exit_code == 1
    assert "Traceback" not in finished.stderr
    assert "1 of 2 tasks are fit" in finished.stdout
    finished = etude("tasks", "check", broken, "--json")
    found = json.loads(finished.stdout.splitlines()[-1])
    assert (found["checked"], found["valid"], list(found["problems"])) == (1, 0, [str(broken)])
    assert any("unknown-test-id" in line for line in found["problems"][str(broken)])


def test_an_attempt_is_shown_saved_and_graded_again(task: Path, tmp_path: Path) -> None:
    shown = etude("rollout", task, "--policy", "reference", "--save", tmp_path / "rollouts")
    assert shown.exit_code == 0, shown.stderr
    assert "solved; reward 1" in shown.stdout and "turn 1" in shown.stdout
    again = answer("regrade", tmp_path / "rollouts")
    assert (again["graded"], again["changed"]) == (1, 0)
    assert again["rollouts"][0]["after"] is True
    exported = answer("export", tmp_path / "rollouts", "--out", tmp_path / "atif")
    (document,) = (tmp_path / "atif").glob("*/trajectory.json")
    assert exported["exported"] == 1 and json.loads(document.read_text())["schema_version"] == "ATIF-v1.8"


@pytest.mark.parametrize("policy", ["null", "stub", f"cheat:{min(ATTACKS)}"])
def test_doing_nothing_bluffing_and_cheating_are_failed_attempts(task: Path, policy: str) -> None:
    found = answer("rollout", task, "--policy", policy)
    assert found["passed"] is False and found["reward"] <= 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["rollout", "nowhere"], "there is no task directory nowhere"),
        (["rollout", "nowhere", "harness.sistem=x"], "did you mean harness.system"),
        (["regrade", "nowhere"], "there is no folder nowhere"),
        (["export", "nowhere", "--out", "out"], "there is no folder nowhere"),
        (["tasks", "import", "nowhere", "--repo", ".", "--out", "out"], "nowhere is no file of rows"),
        (["tasks", "katas", "out", "--split", "secret"], "splits train, held_out, unseen"),
        (["tasks", "check", "nowhere"], "there is no task directory nowhere"),
        (["sandbox", "bench", "--sandbox", "cloud"], "no sandbox backend 'cloud'"),
    ],
)
def test_a_mistake_is_one_sentence(arguments: list[str], sentence: str) -> None:
    finished = etude(*arguments)
    assert finished.exit_code == 2
    assert sentence in finished.stderr and finished.stderr.count("\n") == 1


def test_an_engine_without_its_tokenizer_is_refused(task: Path) -> None:
    finished = etude("rollout", task, "--policy", "unix:/nowhere")
    assert finished.exit_code == 2 and "needs the tokenizer" in finished.stderr
