"""A benchmark from before a run existed becomes part of its results."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from etude.bench.result import BenchResult, TaskRow, save_result
from etude.bench.run_results import add_before, write_results
from etude.core.errors import EtudeError
from etude.core.run import Run


def result(passed: bool) -> BenchResult:
    rows = [TaskRow(f"task-{n}", "digest", "held_out", "kata", 1, [passed] * 2, [5] * 2) for n in range(4)]
    return BenchResult("some", 2, 0, 1.0, "local", 1.0, rows, {})


def test_the_gain_is_over_the_benchmark_that_was_saved_before_the_run_existed(tmp_path: Path):
    run, before = tmp_path / "run", tmp_path / "before.json"
    save_result(result(False), before)
    with Run.open(run, {}) as opened:
        opened.begin("rl")
    save_result(result(True), run / "bench" / "rl.json")
    assert write_results(run)["paired_gain"] is None
    add_before(run, before)
    add_before(run, before)  # the same command again
    assert write_results(run)["paired_gain"][0] == 1.0
    save_result(dataclasses.replace(result(False), model="other"), before)
    with pytest.raises(EtudeError, match="has another benchmark before training"):
        add_before(run, before)
