"""The draw of packages: a command that somebody ended says nothing about a package."""

from __future__ import annotations

import importlib
import subprocess
from pathlib import Path
from typing import Any

import pytest

packages: Any = importlib.import_module("benchmarks.yield.debian_packages")


def test_a_command_that_was_ended_is_no_result(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def answering(code: int, said: str) -> None:
        done = subprocess.CompletedProcess([], code, said, "half a line of progress")
        monkeypatch.setattr(packages.subprocess, "run", lambda *_, **__: done)

    answering(-15, "")
    rows = []
    with packages.told():
        rows.append(packages.install("shop", packages.ROOT))
    assert rows == [] and "env install shop" in capsys.readouterr().out
    answering(1, '{"ok": false, "reason": "only 2 tests pass"}')
    assert packages.install("shop", packages.ROOT)["reason"] == "only 2 tests pass"


def test_what_ended_calls_took_counts_against_a_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def ended(*_: str, seconds: float) -> None:
        raise packages.EndedBySignal("ended", {"wall": 100.0, "processor": 40.0})

    monkeypatch.setattr(packages, "command", ended)
    for _ in range(2):
        with packages.told():
            packages.make("shop", tmp_path / "store", tmp_path / "tasks", 600.0)
    monkeypatch.setattr(packages, "command", lambda *_, **__: ({"ok": True}, {"wall": 50.0, "processor": 30.0}))
    row = packages.make("shop", tmp_path / "store", tmp_path / "tasks", 600.0)
    # The children of a killed command are not counted, so the wall's time stands for them.
    assert row["make_seconds"] == {"wall": 250.0, "processor": 230.0}
