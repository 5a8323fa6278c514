"""Figures that only some runs have: held-out loss by source, summaries, effort, behaviours, feedback."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from etude.bench.report import agent_figures, figures
from etude.bench.result import BenchResult, Counts, TaskRow, save_result
from etude.bench.run_data import read_run
from etude.core import recipe as recipes
from etude.core.run import Run

TITLE = re.compile(r"<h3>(.*?)</h3>")


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Path]:
    def write(settings: list[str], *rows: tuple[str, dict[str, float]]) -> Path:
        with Run.open(tmp_path / "run", recipes.to_dict(recipes.load("nano", settings))) as run:
            for step, (stage, row) in enumerate(rows, start=1):
                run.log(stage, step, **row)
        return tmp_path / "run"

    return write


def test_a_run_without_them_has_none(written: Callable[..., Path]) -> None:
    data = read_run(written([], ("rl", {"rollouts": 4, "reward": 0.5})))
    assert [figure for figure in agent_figures.figures_of_the_agent(data) if figure] == []


def test_a_run_with_them_has_one_of_each(written: Callable[..., Path]) -> None:
    effort = {"effort_low_tokens": 40.0, "effort_high_tokens": 90.0, "effort_low_pass_rate": 0.2}
    feedback = {"twin_kl": 0.07, "twins": 9, "twins_filtered": 2}
    kinds = {f"behaviour_kind_{place}": 0.1 * place for place in range(1, 8)}
    habits = {"parallel_calls": 0.25, "tool_mix": 1.8, "edit_rate": 0.9}
    rows = [("rl", {"rollouts": 4, "summaries": 1.5} | effort | habits | feedback | kinds), ("rl", {"rollouts": 4})]
    data = read_run(written(["harness.effort={low=1, high=1}"], *rows))
    page = str(figures.learning(data))
    assert TITLE.findall(page) == [
        *("Summaries", "Tokens by stated effort", "Pass rate by stated effort"),
        *("Calls made together", "Mix of tools", "Rollouts that changed files", "Behaviours"),
        *("Feedback: how far a hint moves the model", "Feedback: hinted turns"),
    ]
    assert "kind 7" in page and "kind 3" in page and "kind 2" not in page
    assert "2 rarer kinds are not drawn" in page


def test_a_step_in_which_nothing_happened_is_zero_and_not_missing(written: Callable[..., Path]) -> None:
    data = read_run(written([], ("rl", {"rollouts": 4, "summaries": 1.5}), ("rl", {"rollouts": 4})))
    assert agent_figures._counted(data, "summaries") == [(1.0, 1.5), (2.0, 0.0)]
    assert agent_figures._counted(data, "behaviour_malformed") == []


def test_continued_pretraining_shows_the_held_out_loss_of_each_source(written: Callable[..., Path]) -> None:
    losses = {"held_out_loss": 2.1, "held_out_loss_stdlib": 2.4, "held_out_loss_records": 1.25}
    page = str(figures.before_learning(read_run(written([], ("pretrain", losses)))))
    assert TITLE.findall(page) == ["Pretraining loss"]
    for said in ("held out 2.1", "held out, stdlib 2.4", "held out, records 1.25"):
        assert said in re.sub(r"<[^>]+>", "", page)


def test_tokens_of_the_benchmark_are_shown_by_difficulty_where_there_is_more_than_one(
    written: Callable[..., Path],
) -> None:
    run = written([], ("sft", {"loss": 1.0}))
    easy = TaskRow("a", "1", "held_out", "f", 1, [True, None], [30, None])
    hard = TaskRow("b", "2", "held_out", "f", 3, [False, True], [80, 120])
    result = BenchResult("m", 2, 0, 1.0, "local", 1.0, [easy, hard], {"held_out": Counts()})
    assert agent_figures._by_level(result) == [(1.0, 30.0), (3.0, 100.0)]
    for name, tasks, drawn in (("sft", [easy, hard], True), ("sft", [easy, replace(easy, name="c")], False)):
        save_result(replace(result, tasks=tasks), run / "bench" / f"{name}.json")
        assert ("Tokens by difficulty" in str(figures.learning(read_run(run)))) is drawn
