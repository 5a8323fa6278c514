"""`etude plan` through the command line: its table, its JSON, its page, and its refusals."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from etude.cli.main import app
from etude.core import recipe as recipes
from etude.core.errors import EtudeError
from etude.learn.parallel.layout import Layout
from etude.plan.request import read_layout, read_ranks

PAGE = Path("docs/operate/plan-kimi.md")


def etude(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_a_recipe_is_planned_for_one_rank_and_for_several() -> None:
    done = etude("plan", "nano", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["machine"] == "cpu" and found["precision"] == "float32"
    (plan,) = found["plans"]
    assert plan["ranks"] == 1 and plan["best"][0]["memory"]["peak"] > plan["best"][0]["memory"]["weights"] > 0
    done = etude("plan", "h200", "--model", "qwen3-30b-a3b", "--ranks", "8,16", "--stage", "sft", "--json")
    found = json.loads(done.stdout.splitlines()[-1])
    assert done.exit_code == 0 and [plan["ranks"] for plan in found["plans"]] == [8, 16]
    best = found["plans"][0]["best"][0]
    assert 0 < best["mfu"] < 1 and {flow["purpose"] for flow in best["wires"]} >= {"weights", "gradients"}
    assert all(other["why"] for other in found["plans"][0]["others"])


def test_people_get_a_table_with_reasons() -> None:
    words = ("plan", "h200", "--model", "qwen3-8b", "--layout", "shard=2,context=4", "pretrain.micro_tokens=8192")
    shown = etude(*words, "pretrain.batch_tokens=65536")
    assert shown.exit_code == 0, shown.output
    for word in ("memory of a rank", "moments", "over links", "asked", "why not", "candidates"):
        assert word in shown.stdout, word


def test_reinforcement_learning_is_planned_from_its_own_section() -> None:
    found = json.loads(etude("plan", "nano", "--stage", "rl", "--json").stdout.splitlines()[-1])
    assert found["stage"] == "rl" and found["optimiser"] == "adamw"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nano", "--machine", "h200"], "no machine is called 'h200'"),
        (["nano", "--model", "kimi-k2"], "named shapes:"),
        (["nano", "--ranks", "many"], "give a number of ranks"),
        (["nano", "--ranks", "99999999"], "1 to 65536 ranks"),
        (["nano", "--stage", "corpus"], "no stage that trains"),
        (["nano", "--layout", "shards=2"], "did you mean shard?"),
        (["nano", "--layout", "shard=2,expert=4"], "does not divide"),
        (["nano", "--layout", "shard=2", "--ranks", "4"], "make them agree"),
        (["nano", "--machine", "cpu", "run.compute.precision=fp8"], "does not compute in fp8"),
    ],
)
def test_a_wrong_question_gets_one_sentence(arguments: list[str], said: str) -> None:
    done = etude("plan", *arguments)
    assert done.exit_code == 2 and said in done.output, done.output


def test_a_config_file_is_read_and_a_damaged_one_refused(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text('{"model_type": "qwen3"}')
    assert "not a complete model configuration" in etude("plan", "nano", "--model", tmp_path).output
    file.write_text("[1]")
    assert "does not hold a table" in etude("plan", "nano", "--model", file).output
    file.write_text("{")
    assert "cannot be read as JSON" in etude("plan", "nano", "--model", file).output


def test_layouts_and_numbers_are_read_as_they_are_written() -> None:
    assert read_layout("shard=4, context=2,expert=8") == Layout(8, 1, 4, 8, 2)
    assert read_ranks("64,8,8") == [8, 64]
    with pytest.raises(EtudeError, match="--layout"):
        read_layout("shard=4²")
    with pytest.raises(EtudeError, match="--ranks is '8²'"):
        read_ranks("8²")


def test_the_recipe_says_its_own_layout() -> None:
    ranks = SimpleNamespace(ranks=16, replicate=2, shard=0, expert=4, context=2)
    recipe: Any = SimpleNamespace(cluster=SimpleNamespace(learner=ranks))
    assert Layout.of(recipe.cluster.learner) == Layout(16, 2, 4, 4, 2)  # a shard of 0 takes what is left
    assert Layout.of(recipes.load("nano").cluster.learner) == Layout()


def test_the_page_in_docs_is_what_its_command_writes(tmp_path: Path) -> None:
    text = PAGE.read_text()
    command = next(line for line in text.splitlines() if line.startswith("etude plan "))
    done = etude(*command.split()[1:], "--save", tmp_path / "page.md")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "page.md").read_text() == text, "write docs/operate/plan-kimi.md again by its own command"


def test_planning_needs_no_torch() -> None:
    code = "import sys, etude.plan.page, etude.plan.request; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
