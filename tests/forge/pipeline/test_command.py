"""`etude tasks make`: what it answers, and mistakes as one sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from etude.cli.main import app
from etude.forge.pipeline import command
from etude.forge.pipeline.journal import Journal, JournalEntry


def test_the_answer_counts_what_was_tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def made(spec: str, out: Path, count: int, *rest: Any, **options: Any) -> dict[str, Any]:
        assert (spec, count, rest[0], rest[1]) == ("shop", 2, 7, ["deletion", "bug"])
        journal = Journal(out, {"seed": rest[0]})
        journal.add(JournalEntry("a", "bug", "constant", 1.0, reason="no test notices"))
        journal.add(JournalEntry("b", "deletion", "bodies", 3.0, "shop-b"))
        return command.facts(journal, out, 4.0) | {"repo": spec, "version": "1"}

    monkeypatch.setattr(command, "make_from", made)
    arguments = ["tasks", "make", "shop", "--count", "2", "--seed", "7", "--from", "deletion, bug"]
    found = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path), "--json"])
    answer = json.loads(found.stdout.splitlines()[-1])
    assert answer["tried"] == 2 and answer["valid"] == 1 and answer["rejected"] == {"no test notices": 1}
    assert answer["tasks"] == [str(tmp_path / "shop-b")] and answer["spent"] == 4.0
    shown = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "again")])
    assert "1 tasks of 2 candidates (50%)" in shown.stdout and "no test notices" in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--from", "magic"], "there is no source of tasks called 'magic'; known: deletion, bug, commit"),
        (["--registers", "loud"], "there is no prompt style of tasks called 'loud'; known: terse, plain, detailed"),
        (["--from", ""], "name at least one source of tasks"),
    ],
)
def test_a_mistake_is_one_sentence(
    etude: Callable[..., Any], tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    finished = etude("tasks", "make", "shop", "--out", tmp_path / "out", "--store", tmp_path / "store", *arguments)
    assert finished.returncode == 2 and sentence in finished.stderr and "Traceback" not in finished.stderr
