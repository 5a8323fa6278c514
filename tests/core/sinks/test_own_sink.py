"""examples/own_sink.py is what docs/extend/add-a-sink.md shows: loaded as a recipe would, it hears of a run's rows."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from etude.core.errors import EtudeError
from etude.core.run import Run
from etude.core.sinks.feed import open_sinks
from etude.core.sinks.table import build_sinks

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "extend" / "add-a-sink.md").read_text()
EXAMPLE = (ROOT / "examples" / "own_sink.py").read_text()


def block(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return str(found)


def test_the_example_is_small_and_the_page_shows_it():
    assert len(EXAMPLE.splitlines()) < 60 and block("python") == EXAMPLE


def test_the_sink_of_the_page_writes_the_rows_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    spec = tomllib.loads(block("toml"))["run"]["sinks"][0]
    for first in (1, 3):  # the second command goes on in the same file
        with Run.open(tmp_path / "run", {"run": {"sinks": [spec]}}, listen=open_sinks) as run:
            for step in (first, first + 1):
                run.log("rl", step, reward=step / 4, pass_rate=0.5, entropy=float("nan"))
            run.log("rl.eval", step, pass_rate=1.0)
    lines = (tmp_path / "run" / "rl.csv").read_text().splitlines()
    assert lines == ["step,reward,pass_rate,entropy", "1,0.25,0.5,", "2,0.5,0.5,", "3,0.75,0.5,", "4,1.0,0.5,"]


def test_its_settings_are_checked(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    with pytest.raises(EtudeError, match=r"run\.sinks\[0\]\.colums; did you mean run\.sinks\[0\]\.columns"):
        build_sinks([{"use": "./examples/own_sink.py:Spreadsheet", "colums": []}])
