"""Who may install, by the name that `etude env install --policy` takes; and what the command says of failing tests."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks.doors.small_repository import write_repository
from etude.cli.env import _model
from etude.cli.main import app
from etude.core.errors import EtudeError
from etude.policies.endpoint.policy import EndpointPolicy

Command = Any


def test_a_hosted_model_answers_with_text_and_has_no_bound_of_ours():
    model = _model("openai:http://127.0.0.1:9/v1?model=some", [])
    assert isinstance(asyncio.run(model.start()), EndpointPolicy)
    assert model.dialect is None and model.installers(None).shown == 12_000  # type: ignore[arg-type]


def test_a_script_cannot_install_and_a_folder_without_a_model_is_said():
    with pytest.raises(EtudeError, match=r"'reference' cannot install: give rules, a run or model"):
        _model("reference", [])
    with pytest.raises(EtudeError, match="nowhere"):
        _model("nowhere/run", [])


@pytest.mark.parametrize("failing", [0, 12])
def test_failing_tests_are_named_with_the_next_command(monkeypatch: pytest.MonkeyPatch, failing: int):
    names = [f"tests/test_a.py::test_{number:02d}" for number in range(failing)]
    found: dict[str, Any] = {
        **{"ok": True, "reason": "", "commands": [], "verified": [], "digest": "d", "notes": [], "cached": False},
        **{"tests": {"passed": 60, "failed": failing}, "failing": names, "repo": "shop", "version": "1"},
    }
    monkeypatch.setattr("etude.forge.install.command.install_repository", lambda *arguments: found)
    said = CliRunner().invoke(app, ["env", "install", "shop"]).output
    assert f"60 tests pass, {failing} fail" in said and "next: etude tasks make shop --out tasks/shop" in said
    assert ("test_09 and 2 more" in said.replace("\n", "")) == bool(failing)


def test_a_failure_of_the_rules_names_what_to_do_next(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    found = {"ok": False, "reason": "no", "commands": [], "verified": [], "notes": [], "cached": False}
    found |= {"repo": "shop", "version": "1"}
    monkeypatch.setattr("etude.forge.install.command.install_repository", lambda *arguments: found)
    monkeypatch.setenv("COLUMNS", "80")
    said = CliRunner().invoke(app, ["env", "install", "shop"])
    assert said.exit_code == 1 and "next: etude env install shop --policy RUN" in said.output
    folder = f"repositories/{'of-a-company/' * 2}price-lists"
    lines = CliRunner().invoke(app, ["env", "install", folder]).output.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[-2:] == [f"next: etude env install {folder} \\", "        --policy RUN"]


def test_a_model_whose_context_is_too_short_to_install_is_told_so_in_one_sentence(
    etude: Command, tiny_run: Path, tmp_path: Path
):
    write_repository(tmp_path / "shop")
    ended = etude(
        "env", "install", "shop", "--policy", tiny_run, "harness.limits.context_tokens=64", "--store", "store"
    )
    assert ended.returncode == 2 and "Traceback" not in ended.stderr
    assert "the model cannot install: the prompt does not fit into limits.context_tokens, which is 64" in ended.stderr
