"""What a new user meets in the first hour: sentences instead of dead ends, and commands that can be repeated."""

from __future__ import annotations

import io
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from rich.console import Console
from typer.testing import CliRunner

from etude.cli import chat_client
from etude.cli.main import app
from etude.cli.status import bench_command
from etude.core import recipe as recipes
from etude.core.errors import EtudeError
from etude.core.progress import track
from etude.core.run import Run
from etude.pipeline.execute import unfinished
from etude.pipeline.find_model import BASES, find_model
from etude.rl.metrics import FIRST, NoPasses
from etude.rollout import view
from etude.rollout.listing import list_rollouts

Command = Any


def last_object(answer: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    return found


def test_the_repo_recipe_asks_for_a_model_instead_of_planning_to_pretrain_one(etude: Command, tmp_path: Path):
    refused = etude("rl", "repo")
    assert refused.returncode == 2 and "rl.model=..." in refused.stderr and "hub" in refused.stderr
    assert etude("rl", "repo", "--dry-run").returncode == 2
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    refused = etude("rl", "repo", "rl.model=model")
    assert refused.returncode == 2 and "rl.tasks.path" in refused.stderr and "rl.model=..." not in refused.stderr


def test_a_device_that_is_not_there_is_refused_before_the_corpus_is_built(etude: Command, tiny: Path, tmp_path: Path):
    for command in ("pretrain", "run"):
        refused = etude(command, tiny, "run.device=meta:7:7")
        assert refused.returncode == 2 and "run.device" in refused.stderr and "etude doctor" in refused.stderr
    assert not (tmp_path / "runs").exists()
    assert etude("pretrain", tiny, "run.device=cuda", "--dry-run").returncode == 0  # a plan needs no GPU


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("cluster.kind=ray", "pip install 'etude[ray]'"),
        ("cluster.weights=s3://bucket/x", "pip install 'etude[weights]'"),
    ],
)
def test_libraries_that_a_cluster_needs_are_asked_for_before_the_corpus_is_built(
    monkeypatch: pytest.MonkeyPatch, tiny: Path, tmp_path: Path, setting: str, said: str
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("etude.cluster.start.find_spec", lambda name: None)
    refused = CliRunner().invoke(app, ["rl", str(tiny), setting])
    assert refused.exit_code == 2 and said in refused.output, refused.output
    assert not (tmp_path / "runs").exists()
    assert CliRunner().invoke(app, ["rl", str(tiny), setting, "--dry-run"]).exit_code == 0  # a plan needs neither


def test_vllm_is_refused_before_the_first_stage_where_it_cannot_work(tiny: Path, tmp_path: Path):
    vllm = ["rl", str(tiny), "cluster.engine=vllm", "--run", str(tmp_path / "run")]
    refused = CliRunner().invoke(app, [*vllm, "--dry-run"])
    assert refused.exit_code == 2 and "needs cluster.weights" in refused.output
    weights = f"cluster.weights={tmp_path}"
    refused = CliRunner().invoke(app, [*vllm, weights, "rl.eval_every=0", "cluster.vllm_python=nowhere/python"])
    assert refused.exit_code == 2 and "no program here" in refused.output and not (tmp_path / "run").exists()


def test_an_unknown_checkpoint_of_a_run_is_answered_with_those_that_it_has(tmp_path: Path):
    (tmp_path / "run" / "checkpoints" / "sft-0000028").mkdir(parents=True)
    with pytest.raises(EtudeError, match=r"no model or run at .*sft-0000423; .* has sft-0000028"):
        find_model(tmp_path / "run" / "checkpoints" / "sft-0000423")


def test_the_next_command_measures_on_the_tasks_that_a_run_was_trained_for():
    made = {"rl": {"tasks": {"use": "made", "path": "tasks/my shop"}}}
    wanted = "etude bench runs/shop --tasks 'tasks/my shop' --split held_out --save runs/shop/bench/rl.json"
    assert bench_command(Path("runs/shop"), made) == wanted
    for tasks in ({"use": "katas"}, {"use": "questions", "path": "questions.jsonl"}):
        assert bench_command(Path("runs/shop"), {"rl": {"tasks": tasks}}) == "etude bench runs/shop"


def test_studies_elsewhere_are_a_sentence_and_no_empty_table(tmp_path: Path):
    said = CliRunner().invoke(app, ["study", "list", "--studies", str(tmp_path)]).output
    assert "no studies of size cpu" in said and "--studies FOLDER" in said


def test_outputs_that_cannot_be_written_are_one_sentence(etude: Command, tmp_path: Path):
    (tmp_path / "file").write_text("")
    katas = etude("tasks", "katas", "file", "--count", 1)
    assert katas.returncode == 2 and "a part of this path is a file" in katas.stderr
    assert etude("tasks", "katas", "tasks", "--count", 1).returncode == 0
    task = next(path for path in (tmp_path / "tasks").iterdir())
    assert etude("rollout", task, "--save", "saved").returncode == 0
    exported = etude("export", "saved", "--out", "/proc/x")
    assert exported.returncode == 2 and "choose a folder that exists" in exported.stderr
    assert "make room" not in katas.stderr + exported.stderr


def test_rollouts_are_listed_filtered_and_shown(etude: Command, tmp_path: Path):
    assert etude("tasks", "katas", "tasks", "--count", 2, "--levels", 1).returncode == 0
    first, second = sorted((tmp_path / "tasks").iterdir())
    assert etude("rollout", first, "--save", "saved").returncode == 0
    assert etude("rollout", second, "--policy", "null", "--save", "saved").returncode == 0
    listed = etude("rollouts", "saved")
    assert listed.returncode == 0 and "1 of 2 passed" in listed.stdout
    failed = last_object(etude("rollouts", "saved", "--only", "failed", "--json"))
    assert [row["task"] for row in failed["rollouts"]] == [second.name]
    assert last_object(etude("rollouts", "saved", "--task", "nothing", "--json"))["rollouts"] == []
    shown = etude("rollouts", "saved", first.name)
    assert "turn 1" in shown.stdout and "stopped: finish" in shown.stdout and "solved; reward 1" in shown.stdout
    assert "0 of 1" in etude("rollouts", "saved", "--by-task").stdout
    assert etude("rollouts", "saved", "nope").returncode == 2
    (tmp_path / "saved" / "broken").mkdir()
    (tmp_path / "saved" / "broken" / "outcome.json").write_text("[1")
    assert len(list_rollouts(tmp_path / "saved")) == 2


def test_a_run_can_act_on_a_task_and_its_rollout_is_kept(etude: Command, tiny_run: Path, tmp_path: Path):
    assert etude("tasks", "katas", "tasks", "--count", 1, "--levels", 1).returncode == 0
    task = next((tmp_path / "tasks").iterdir())
    settings = ["harness.limits.sampled_tokens=8", "harness.spec=none", "engine.max_length=2048"]
    done = etude("rollout", task, "--policy", tiny_run, *settings, "--json")
    assert done.returncode == 0 and last_object(done)["passed"] is False, done.stderr
    kept = etude("chat", tiny_run, "--dir", task, "--save", "saved", *settings)
    assert kept.returncode == 0 and "saved: saved/" in kept.stdout
    assert len(list_rollouts(tmp_path / "saved")) == 1


def test_text_is_continued_by_the_pretrained_model_and_tasks_are_done_by_the_last_one(tiny_run: Path):
    assert find_model(tiny_run, BASES).name.startswith("pretrain-")
    assert find_model(tiny_run).name.startswith("sft-")


def test_status_says_state_and_the_next_command(etude: Command, tiny_run: Path, tmp_path: Path):
    shutil.copytree(tiny_run, tmp_path / "run")
    done = etude("status", "run")
    assert done.returncode == 0 and "next: etude rl run/recipe.toml --run run" in done.stdout
    assert "loss" in done.stdout and "grad_norm" not in done.stdout and "starts" not in done.stdout
    assert "grad_norm" in etude("status", "run", "--all").stdout
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    del facts["stages"]["sft"]["finished"]
    (tmp_path / "run" / "run.json").write_text(json.dumps(facts))
    stopped = etude("status", "run")
    assert "stopped" in stopped.stdout and "next: etude resume run" in stopped.stdout


def test_status_fits_a_terminal_of_80_columns_and_its_commands_can_be_copied(
    etude: Command, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "80")
    run = "runs/of-a-long-name-such-as-people-give"
    shutil.copytree(tiny_run, tmp_path / run)
    facts = json.loads((tmp_path / run / "run.json").read_text())
    facts["stages"] |= {"rl": facts["stages"]["sft"]}
    (tmp_path / run / "run.json").write_text(json.dumps(facts))
    recipe = tomllib.loads((tmp_path / run / "recipe.toml").read_text())
    recipe["rl"]["tasks"] = {"use": "folder", "path": "tasks/of a repository"}
    (tmp_path / run / "recipe.toml").write_text(tomli_w.dumps(recipe))
    bench = f"etude bench {run} --tasks 'tasks/of a repository' --split held_out --save {run}/bench/rl.json"
    for report, wanted in (
        ("", [bench, f"etude report {run}"]),
        ("report", [f"open {run}/report.html", f"etude chat {run}"]),
    ):
        if report:
            facts["stages"] |= {report: facts["stages"]["sft"]}
            (tmp_path / run / "run.json").write_text(json.dumps(facts))
        said = etude("status", run).stdout
        assert max(map(len, said.splitlines())) <= 80, said
        lines = said[said.index("next: ") + 6 :].replace("\\\n", " ").splitlines()
        assert [shlex.split(line) for line in lines] == [shlex.split(command) for command in wanted]


def test_ctrl_c_names_the_command_that_was_typed(tiny: Path, tmp_path: Path):
    """A stage runs in a process of its own, whose command is nobody's business."""
    command = [sys.executable, "-m", "etude", "run", str(tiny), "pretrain.steps=100000", "--run", "mine"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path.cwd())}
    child = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    metrics = tmp_path / "mine" / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not metrics.exists() and time.monotonic() < deadline and child.poll() is None:
        time.sleep(0.1)
    os.killpg(child.pid, signal.SIGINT)
    said = child.communicate(timeout=120)[1]
    assert child.returncode == 130, said
    told = [line for line in said.splitlines() if "to continue" in line]
    assert told == [f"interrupted; to continue: etude run {tiny} pretrain.steps=100000 --run mine"]
    assert "--stage" not in said and "stage 2 of 8: pretrain" in said
    facts = json.loads((tmp_path / "mine" / "run.json").read_text())
    assert all(lineage["machine"]["command"][:2] == ["etude", "run"] for lineage in facts["lineages"])
    assert not any("--stage" in lineage["machine"]["command"] for lineage in facts["lineages"])


def test_resume_goes_on_to_what_was_asked_for_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for command in (["etude", "run", "nano"], ["etude", "resume", "run"]):
        monkeypatch.setattr(sys, "argv", command)
        with Run.open(tmp_path / "run", recipes.to_dict(recipes.load("nano"))) as run:
            run.begin("corpus", ())
    assert unfinished(tmp_path / "run") == "report"


def test_training_without_a_pass_says_so_and_what_helps():
    heard = NoPasses(Path("runs/mine"))
    assert heard.heard([0] * (FIRST - 1)) == ""
    said = heard.heard([0])
    assert f"first {FIRST} groups" in said and "etude rollouts runs/mine --only failed" in said
    assert heard.heard([0] * (FIRST - 1)) == "" and "groups" in heard.heard([0])  # again when it has doubled
    assert heard.heard([1]) == "" and heard.heard([0] * 1000) == ""
    stream = io.StringIO()
    with track("reinforcement learning", 10, "steps", stream=stream) as bar:
        bar.say(said)
    assert stream.getvalue() == f"{said}\n"


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"tests": 1.0, "honest": 0.0}, "tests 1, no hack found"),
        ({"tests": 1.0, "hack_penalty": -1.0}, "hack penalty -1"),
        ({"tests": 1.0, "diff_size": 0.5}, "diff size 0.5"),
    ],
)
def test_a_penalty_of_nothing_does_not_read_as_a_hack(parts: dict[str, float], says: str):
    assert says in view._verdict(True, "", 1.0, parts).plain


@pytest.mark.parametrize(
    ("chunks", "says"),
    [
        ([{"delta": {"content": "hello"}, "finish_reason": "stop"}], "hello"),
        ([{"delta": {}, "finish_reason": "stop"}], "ended its turn without any"),
        ([{"delta": {}, "finish_reason": "length"}], "cut off at the limit"),
        ([{"delta": {"tool_calls": [{"function": {"name": "read"}}]}, "finish_reason": "tool_calls"}], "called read"),
    ],
)
def test_an_answer_without_text_says_why(chunks: list[Any], says: str, monkeypatch: pytest.MonkeyPatch):
    import asyncio

    async def choices(*_: Any) -> AsyncIterator[dict[str, Any]]:
        for chunk in chunks:
            yield chunk

    monkeypatch.setattr(chat_client, "_choices", choices)
    console = Console(file=io.StringIO(), width=200)
    asyncio.run(chat_client._answer("http://x", {}, console))
    assert says in console.file.getvalue()  # type: ignore[attr-defined]
