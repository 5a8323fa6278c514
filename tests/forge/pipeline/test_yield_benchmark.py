"""The draw of packages: a command that somebody ended says nothing about a package."""

from __future__ import annotations

import importlib
import subprocess
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
