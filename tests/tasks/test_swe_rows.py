"""Rows of other people's data sets: a small history of our own, written down the way those data sets do."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from etude.core.errors import EtudeError
from etude.tasks.format.config import Installed
from etude.tasks.format.swe_rows import read_rows, task_of, tree_at
from etude.tasks.format.task import Task

RIGHT = "def total(items):\n    return sum(items)\n"
WRONG = "def total(items):\n    return sum(items[1:])\n"
TEST = "from shop.cart import total\n\n\ndef test_total():\n    assert total([1, 2]) == 3\n"


def git(folder: Path, *argv: str) -> str:
    who = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    done = subprocess.run(["git", *who, *argv], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def history(tmp_path: Path) -> dict[str, Any]:
    """A checkout with a clean commit, the diff that breaks it, and the diff that adds a test."""
    root = tmp_path / "checkout"
    for path, text in {
        "shop/__init__.py": "",
        "shop/cart.py": RIGHT,
        "tests/conftest.py": "",
        "tests/data/prices.txt": "1\n",
        "tests/test_old.py": "def test_old():\n    pass\n",
        "docs/index.md": "words\n",
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    git(root, "init", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "clean")
    clean = git(root, "rev-parse", "HEAD")
    (root / "shop/cart.py").write_text(WRONG)
    bug = git(root, "diff") + "\n"
    git(root, "commit", "-qam", "bug")
    broken = git(root, "rev-parse", "HEAD")
    (root / "tests/test_cart.py").write_text(TEST)
    git(root, "add", "-N", "tests/test_cart.py")
    test = git(root, "diff") + "\n"
    (root / "tests/test_cart.py").unlink()
    git(root, "reset", "-q")
    (root / "shop/cart.py").write_text(RIGHT)
    fix = git(root, "diff") + "\n"
    return {"root": root, "clean": clean, "broken": broken, "bug": bug, "test": test, "fix": fix}


def bench_row(history: dict[str, Any]) -> dict[str, Any]:
    return {
        "instance_id": "acme__shop-12",
        "repo": "acme/shop",
        "base_commit": history["broken"],
        "patch": history["fix"],
        "test_patch": history["test"],
        "problem_statement": "total forgets the first item",
        "hints_text": "",
        "version": "1.0",
        "FAIL_TO_PASS": json.dumps(["tests/test_cart.py::test_total"]),
        "PASS_TO_PASS": json.dumps(["tests/test_old.py::test_old", "tests/test_old.py::test_cut[a, b"]),
    }


def test_a_row_of_swe_bench_asks_for_its_patch_and_keeps_its_tests_to_itself(
    history: dict[str, Any], tmp_path: Path
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps(bench_row(history)) + "\n")
    (row,) = read_rows(rows)
    installed = Installed(digest="ab" * 32)
    task = task_of(row, tree_at(history["root"], row.commit), installed)
    assert task.instruction == "total forgets the first item\n"
    assert task.workspace.text("shop/cart.py") == WRONG and "tests/test_cart.py" not in task.workspace
    assert task.solution.text("shop/cart.py") == RIGHT
    assert task.tests.text("tests/test_cart.py") == TEST and "tests/data/prices.txt" in task.tests
    assert "docs/index.md" not in task.tests and "shop/cart.py" not in task.tests
    assert task.facts.fail_to_pass == ["tests/test_cart.py::test_total"]
    assert task.facts.pass_to_pass == ["tests/test_old.py::test_old"]  # an id that was cut off names no test
    assert task.allows("shop/cart.py") and not task.allows("tests/test_cart.py")
    assert b"sweb.eval.x86_64.acme_1776_shop-12" in task.files["environment/Dockerfile"]
    task.save(tmp_path / "task")
    assert Task.load(tmp_path / "task").facts == task.facts


def test_a_row_of_swe_smith_has_its_bug_planted_and_asks_to_undo_it(history: dict[str, Any], tmp_path: Path) -> None:
    row = bench_row(history) | {
        "instance_id": f"acme__shop.{history['clean'][:8]}.func_pm_op_change__1a2b3c4d",
        "repo": f"swesmith/acme__shop.{history['clean'][:8]}",
        "patch": history["bug"],
        "test_patch": "",
        "image_name": "swesmith.x86_64.acme_1776_shop",
        "FAIL_TO_PASS": ["tests/test_old.py::test_old"],
        "PASS_TO_PASS": [],
        "problem_statement": "",
    }
    (tmp_path / "rows.json").write_text(json.dumps({row["instance_id"]: row}))
    (found,) = read_rows(tmp_path / "rows.json")
    task = task_of(found, tree_at(history["root"], found.commit))
    assert task.workspace.text("shop/cart.py") == WRONG
    assert task.solution.text("shop/cart.py") == RIGHT
    assert "tests of this repository fail" in task.instruction
    assert task.files["environment/Dockerfile"].startswith(b"FROM swesmith.x86_64.acme_1776_shop\n")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"patch": "nothing"}, "acme__shop-12: the patch changes no file"),
        ({"instance_id": "../up"}, "row 1: instance_id"),
        ({"FAIL_TO_PASS": "not json"}, "row 1: FAIL_TO_PASS"),
        ({"FAIL_TO_PASS": ["tests/test_cart.py::test_x[cut"]}, "no whole test id"),
        ({"base_commit": "0" * 40}, "git cannot read"),
    ],
)
def test_a_row_that_makes_no_task_says_why(
    history: dict[str, Any], tmp_path: Path, change: dict[str, Any], sentence: str
) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps(bench_row(history) | change))
    with pytest.raises(EtudeError, match=sentence):
        for row in read_rows(tmp_path / "rows.jsonl"):
            task_of(row, tree_at(history["root"], row.commit))
