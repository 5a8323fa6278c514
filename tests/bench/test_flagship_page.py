"""The flagship's page says what its files say, and no sentence of it is about nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks.flagship_page import page
from etude.bench.result import BenchResult, Counts, TaskRow, save_result
from etude.core.run import Run

MODELS = {"pretrain": 0.5, "extend": 0.75, "sft": 0.6, "rl": 0.63}


def evaluation(work: Path, name: str, passed: Sequence[Sequence[bool]], audited: dict[str, int] | None = None) -> None:
    rows = [
        TaskRow(f"task-{number}", f"{number}", "held_out", "family", 1, list(each), [10] * len(each))
        for number, each in enumerate(passed)
    ]
    counts: dict[str, Counts] = {"held_out": Counts(rollouts=sum(map(len, passed)), turns=10)}
    result = BenchResult("model", len(passed[0]), 1, 1.0, "local", 1.0, rows, counts, audited=audited or {})  # type: ignore[arg-type]
    save_result(result, work / f"eval-{name}.json")


def written(work: Path, audited: dict[str, int] | None = None) -> str:
    work.mkdir()
    steps = {"pretrain": 600.0, "demos": 500.0, "rl": 300.0, "fair": 30.0}
    (work / "state.json").write_text(json.dumps({n: {"status": "done", "seconds": s} for n, s in steps.items()}))
    with Run.open(work / "rl", {}) as run:
        for step, rate in enumerate((0.25, 0.5, 0.75, 1.0)):
            facts = {"source_katas_pass_rate": rate, "source_katas_rollouts": 4, "effort_low_pass_rate": rate}
            facts |= {"behaviour_tool_errors.outside": 0.5, "summaries": 0.1} if step == 0 else {}
            run.log("rl", step, pass_rate=rate, seconds=1.0, verdict_clean=2, **facts)
        run.log("rl.eval", 3, pass_rate=0.5)
    one, all_, none = [True, False], [True, True], [False, False]
    evaluation(work, "sft-katas", [one, one, none] * 2)
    evaluation(work, "fair-katas", [one, one, none] * 2)
    evaluation(work, "rl-katas", [all_, all_, none, one, all_, one])
    evaluation(work, "sft-ladder", [one, none, none, none])
    evaluation(work, "rl-ladder", [all_, one, one, none], audited)
    (work / "base-evals-models.json").write_text(json.dumps(MODELS))
    models = [{"model": value, "codebase": {"bits_per_byte": value}} for value in MODELS.values()]
    (work / "base-evals.json").write_text(json.dumps({"models": models}))
    return "\n".join(page(work)) + "\n"


def test_every_line_of_the_page_says_something(tmp_path: Path) -> None:
    text = written(tmp_path / "out")
    assert [line for line in text.splitlines() if line != line.rstrip()] == []
    limits = text.partition("## What it does not show")[2]
    assert "none" not in limits and "failed" not in limits
    assert "These steps were left out, for want of time or of tasks: `corpus`" in limits
    assert "Fine-tuning went on for 30 s, its start included, and reinforcement learning took\n  300 s" in limits
    assert "did not try the ladder" in limits and "verdicts on these rollouts were not kept" in limits
    assert "16 minutes without the demonstrations" in text


def test_a_bar_that_is_met_by_a_mean_alone_says_so(tmp_path: Path) -> None:
    bars = written(tmp_path / "out").partition("## Bars")[2]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in bars.splitlines() if line.startswith("| ")]
    pass_at_1, best, ladder, forgetting = rows[1:5]
    # In the second of three evaluations nothing passes more often; the best of two rises in the last one alone.
    assert pass_at_1[2].startswith("+33.3 (") and pass_at_1[2].endswith("; in 2 of 3") and pass_at_1[3] == "no"
    assert best[2].endswith("; in 1 of 3") and best[3] == "yes, by its mean only"
    assert ladder[2].startswith("12.5%") and ladder[3] == "no"  # so few tasks
    assert forgetting[2] == "-16.0%"
    text = written(tmp_path / "again")
    assert "After reinforcement learning: +26.0% of pretrain, -16.0% of extend, +5.0% of sft. More is worse." in text


def test_halves_of_training_stand_side_by_side_and_the_audit_is_told(tmp_path: Path) -> None:
    text = written(tmp_path / "out", {"clean": 4, "hack": 1})
    assert "| source | rollouts | pass rate |" in text and "| katas | 4 -> 4 | 0.375 -> 0.875 |" in text
    assert "| low | 0.375 -> 0.875 | none -> none |" in text
    assert "| 1 to 1 | 50.0% | 0.00 |" in text  # of summaries, as well
    assert "| tool_errors.outside | 0.25 -> 0 |" in text  # a step in which nobody did it counts
    assert "the audit calls 1 of 5 rollouts that passed a hack" in text and "not kept" not in text
