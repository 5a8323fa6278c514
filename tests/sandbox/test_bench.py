"""The measurement itself: it works on every backend and says honestly whether the bars are met."""

from __future__ import annotations

import dataclasses
import json

import pytest

from etude.sandbox.bench import BARS, Spread, Workspace, bench


@pytest.mark.parametrize("backend", ["local", "plain"])
def test_figures_are_measured_and_are_json(backend: str) -> None:
    figures = bench(backend, rounds=2, workspace=Workspace(40, 40_000, 8, 800))
    assert figures.backend["isolated"] == (backend == "local")
    answer = json.loads(json.dumps(figures.to_json()))
    for name in ("start", "close", "run", "run_shell", "read_write", "diff", "reset", "snapshot", "fork", "fork_full"):
        assert 0 < answer[name]["p50"] <= answer[name]["p95"]
    assert answer["starts_per_second"] > 0
    assert answer["bars"] == BARS


def test_one_missed_bar_is_a_failure() -> None:
    figures = bench(rounds=2, workspace=Workspace(4, 400, 2, 80))
    met = dataclasses.replace(figures, start=Spread(25, 99), reset=Spread(5, 99), fork=Spread(80, 99))
    assert met.passed
    assert not dataclasses.replace(met, reset=Spread(5.1, 5.1)).passed
