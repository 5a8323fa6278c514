"""The flagship's script goes on with the second way of a step that failed, in this command or the next."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.flagship import Flagship


def flagship(work: Path, until: float = 1e9) -> Flagship:
    return Flagship(
        argparse.Namespace(
            work=work, out=work / "out", until=until, size="tiny", ladder=None, held_out=None, demos=None, overrides=[]
        )
    )


def test_a_second_way_without_time_waits_for_the_next_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def etude(self: Flagship, name: str, words: Sequence[str], most: float) -> tuple[str, float]:
        ran.append(words[0])
        if words[0] == "first":
            self.until = 0.0  # it took all that the command had
            return "failed", 1.0
        return "done", 1.0

    monkeypatch.setattr(Flagship, "etude", etude)
    ways = [["first"], ["second"]]
    assert not flagship(tmp_path).step("pretrain", ways, 100, 60)
    assert flagship(tmp_path).step("pretrain", ways, 100, 60)
    assert ran == ["first", "second"]


@pytest.mark.parametrize("code", ["raise SystemExit(1)", "pass"])
def test_demonstrations_that_fail_are_made_without_the_ladder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    ran: list[str] = []

    def etude(self: Flagship, name: str, words: Sequence[str], most: float) -> tuple[str, float]:
        ran.append(words[-1])
        return "done", 1.0

    monkeypatch.setattr(Flagship, "etude", etude)
    run = flagship(tmp_path)
    run.beside["demos"] = subprocess.Popen([sys.executable, "-c", code]), 0.0
    assert run.join_demos() and run.state.ok("demos")
    assert ran == ([] if code == "pass" else ["--fresh"])
