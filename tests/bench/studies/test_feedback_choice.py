"""Settings of feedback are chosen by a rule, and arms run side by side, each behind what it needs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.learning import feedback_choice
from benchmarks.learning.feedback_choice import (
    ALONE,
    CANDIDATES,
    STUDY,
    Step,
    apart,
    choose,
    chosen,
    judge,
    run_all,
    take_chosen,
)


def arm(text: float, file: float, passed: float) -> dict[str, Any]:
    """Six steps, of which the first two are not looked at."""
    row = {"text_not_found": text, "no_such_file": file, "pass_rate": passed}
    return {"steps": [{"text_not_found": 9.0, "no_such_file": 9.0, "pass_rate": 0.0}] * 2 + [row] * 4}


def test_the_lowest_worse_ratio_wins_where_the_pass_rate_is_kept() -> None:
    runs = {ALONE: arm(0.2, 0.8, 0.7), "a": arm(0.1, 0.2, 0.69), "b": arm(0.02, 0.72, 0.7), "c": arm(0.01, 0.01, 0.66)}
    found = judge(runs)
    assert found["a"] == pytest.approx({"text_not_found": 0.5, "no_such_file": 0.25, "gain": -0.01})
    assert choose(found) == "a"  # b's paths are hardly better, c passes less
    assert choose({name: found[name] for name in ("b", "c")}) == "b"
    assert choose({"c": found["c"], "d": found["c"] | {"gain": -0.035}}) == "d"  # none is near: the least harm


def test_a_choice_is_made_once_of_what_has_results(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nothing can be chosen"):
        chosen(tmp_path)
    name = list(CANDIDATES)[1]
    for each, run in ((ALONE, arm(0.2, 0.8, 0.7)), (name, arm(0.1, 0.2, 0.7))):
        (tmp_path / f"choice-{each}.json").write_text(json.dumps(run))
    assert chosen(tmp_path) == name
    (tmp_path / f"choice-{ALONE}.json").unlink()
    assert chosen(tmp_path) == name
    made = apart(tmp_path, name) / STUDY / "results/feedback-0.json"
    made.parent.mkdir(parents=True)
    made.write_text("{}")
    take_chosen(tmp_path)
    assert (tmp_path / STUDY / "results/feedback-0.json").read_text() == "{}"


def test_steps_wait_for_what_they_stand_behind_and_are_not_run_twice(tmp_path: Path) -> None:
    said: list[str] = []

    def step(name: str, *after: str, source: str = "", minutes: float = 0.0) -> Step:
        file = tmp_path / name
        words = [sys.executable, "-c", source or f"open({str(file)!r}, 'a').write('x')"]
        return Step(name, lambda: words, file.is_file, minutes, after)

    broken = step("broken", source="raise SystemExit(3)")
    long, last = step("long", minutes=60.0), step("last", "one", "broken")
    steps = [last, step("one"), broken, long]
    assert not run_all(steps, tmp_path, [set(), set()], 60.0, said.append)
    assert said.index("last: begun") > max(i for i, text in enumerate(said) if text.startswith(("one: d", "broken: f")))
    assert said[-1] == "left: long; failed: broken" and (tmp_path / "last").read_text() == "x"
    said.clear()
    assert run_all([last, step("one")], tmp_path, [set()], 60.0, said.append)
    assert (tmp_path / "one").read_text() == "x" and said == ["left: none; failed: none"]


def test_a_step_that_outlasts_the_deadline_is_ended(tmp_path: Path) -> None:
    said: list[str] = []
    slow = Step("slow", lambda: [sys.executable, "-c", "import time; time.sleep(60)"], lambda: False, 0.0)
    assert not run_all([slow], tmp_path, [set()], 1.0, said.append)
    assert "slow: ended at the deadline" in said


def test_the_plan_makes_models_first_and_compares_on_other_seeds(tmp_path: Path) -> None:
    parsed = feedback_choice.argparse.Namespace(
        out=tmp_path, runs=tmp_path, device="cpu", change=[], steps=50, jobs=1, minutes=1.0, at_once=False
    )
    steps = {step.name: step for step in feedback_choice.plan(parsed)}
    assert steps["feedback-1"].after == ("base-1", *(f"choice-{name}" for name in (ALONE, *CANDIDATES)))
    assert steps["rl-1"].after == ("base-1",) and not any(step.is_done() for step in steps.values())
    parsed.at_once = True
    steps = {step.name: step for step in feedback_choice.plan(parsed)}
    assert all(steps[f"feedback-1-{name}"].after == ("base-1",) for name in CANDIDATES)
    assert feedback_choice.CHOICE_SEED not in feedback_choice.SEEDS
