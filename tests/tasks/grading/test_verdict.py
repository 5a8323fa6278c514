"""From reports to grades: every way that what was told can be wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest

from etude.tasks.grading.test_plan import GradingPlan, ProcessPlan
from etude.tasks.grading.verdict import Grade, NothingToGrade, verdict


def part(mark: str, real: str, changed: str, letter: str) -> ProcessPlan:
    canaries = frozenset({f"{letter}.no"}), frozenset({f"{letter}.yes"})
    run = ("t.A", "t.B", f"{letter}.no", f"{letter}.yes")
    return ProcessPlan(mark, {}, run, frozenset({real}), frozenset({changed}), *canaries)


ONE, TWO = part("m1", "t.A", "t.B", "x"), part("m2", "t.B", "t.A", "y")
PLAN = GradingPlan(("t.A", "t.B"), (ONE, TWO), "n", "unittest", apart=False, plain=False)
GOOD = (
    {"t.A": "passed", "t.B": "failed", "x.no": "failed", "x.yes": "passed"},
    {"t.A": "error", "t.B": "passed", "y.no": "error", "y.yes": "passed"},
)


def report(
    mark: str, outcomes: dict[str, str], ended: str = "exit 0", notes: str = "ready done", more: str = ""
) -> Any:
    lines = [[mark, "", note, ""] for note in notes.split()] + [[mark, name, how, ""] for name, how in outcomes.items()]
    written = "".join(json.dumps(line) + "\n" for line in lines) + more
    return {"lines": written, "ended": ended, "seconds": 0.1, "cpu_seconds": 0.05}


def graded(one: dict[str, str] | None = None, two: dict[str, str] | None = None, **options: Any) -> Grade:
    first = {**GOOD[0], **(one or {})}
    second = {**GOOD[1], **(two or {})}
    return verdict(PLAN, [report("m1", first), report("m2", second)], **options)


def test_everything_as_it_must_be_is_passed() -> None:
    found = graded()
    assert (found.passed, found.kind, found.reason, found.missing, found.share) == (True, "passed", "", (), 1.0)
    assert found.checked == 6
    assert found.cpu_seconds == pytest.approx(0.1)


@pytest.mark.parametrize("status", ["failed", "error", "skipped", "xfailed", "xpassed", "PASSED", "anything"])
def test_a_required_test_that_did_not_pass_fails(status: str) -> None:
    found = graded({"t.A": status})
    assert (found.passed, found.kind) == (False, "tests")
    assert found.share == 0.5


def test_a_changed_test_or_canary_that_passed_is_tampering() -> None:
    for one, two in (({"x.no": "passed"}, {}), ({}, {"t.A": "passed"}), ({"t.B": "passed"}, {})):
        found = graded(one, two)
        assert (found.passed, found.kind, found.share) == (False, "tampering", 0.0)


def test_a_changed_test_that_wrong_code_passes_by_chance_is_no_tampering() -> None:
    found = graded({"t.A": "failed"}, {"t.A": "passed"})
    assert (found.passed, found.kind, found.canaries) == (False, "tests", {})


@pytest.mark.parametrize("status", ["skipped", "xfailed", "xpassed"])
def test_a_changed_test_must_fail_outright(status: str) -> None:
    assert graded({"t.B": status}).kind == "tampering"
    assert graded({"x.yes": status}).kind == "tampering"


def test_a_missing_test_or_canary_fails() -> None:
    for name in GOOD[0]:
        first = {key: value for key, value in GOOD[0].items() if key != name}
        found = verdict(PLAN, [report("m1", first), report("m2", GOOD[1])])
        assert not found.passed
        assert found.missing == (("t.A",) if name == "t.A" else ())


def test_a_test_told_twice_fails() -> None:
    again = json.dumps(["m1", "t.A", "passed", ""]) + "\n"
    found = verdict(PLAN, [report("m1", GOOD[0], more=again), report("m2", GOOD[1])])
    assert (found.passed, found.tests["t.A"]) == (False, "repeated")


@pytest.mark.parametrize(
    "line",
    [
        "garbage",
        '["m2", "t.A", "passed", ""]',
        '["m1", "t.A", "passed"]',
        "{}",
        '["m1", 1, "passed", ""]',
        "null",
        "[" * 100_000,  # no parser goes so deep
    ],
    ids=range(7),
)
def test_lines_of_nobody_are_tampering(line: str) -> None:
    found = verdict(PLAN, [report("m1", GOOD[0], more=line + "\n"), report("m2", GOOD[1])])
    assert (found.passed, found.kind) == (False, "tampering")


@pytest.mark.parametrize(
    ("ended", "oom", "kind"),
    [("time", False, "time"), ("signal 24", False, "time"), ("signal 9", True, "memory"), ("signal 9", False, "crash"),
     ("flood", False, "tampering")],
)  # fmt: skip
def test_how_a_judge_ended_is_the_reason(ended: str, oom: bool, kind: str) -> None:
    found = verdict(PLAN, [report("m1", {"x.yes": "passed"}, ended)], out_of_memory=oom)
    assert (found.passed, found.kind) == (False, kind)
    everything = verdict(PLAN, [report("m1", GOOD[0]), report("m2", GOOD[1], ended)], out_of_memory=oom)
    assert not everything.passed  # a result is only one when its process lived to the end


def test_a_judge_that_never_ran_leaves_its_tests_missing() -> None:
    found = verdict(PLAN, [report("m1", GOOD[0])])
    assert (found.passed, found.tests) == (False, {"t.A": "passed", "t.B": "missing"})
    nothing = verdict(PLAN, [])
    assert (nothing.passed, nothing.missing) == (False, ("t.A", "t.B"))


def test_a_judge_that_failed_by_itself_gives_no_grade() -> None:
    with pytest.raises(NothingToGrade, match="it left no message"):
        verdict(PLAN, [report("m1", {}, notes="")])
    apart = GradingPlan(PLAN.required, PLAN.parts, "n", "unittest", apart=True, plain=False)
    with pytest.raises(NothingToGrade):
        verdict(apart, [report("m1", GOOD[0], notes="ready"), report("m2", GOOD[1])])


def test_parameters_may_differ_in_a_changed_test() -> None:
    changed = ProcessPlan("m1", {}, ("t::f",), frozenset(), frozenset({"t::f"}))
    real = ProcessPlan("m2", {}, ("t::f",), frozenset({"t::f[1]"}))
    plan = GradingPlan(("t::f[1]",), (changed, real), "n", "pytest", apart=False, plain=False)
    passed = report("m2", {"t::f[1]": "passed"})
    assert verdict(plan, [report("m1", {"t::f[2]": "failed"}), passed]).passed
    assert verdict(plan, [report("m1", {"t::f[2]": "passed"}), passed]).kind == "tampering"
    assert verdict(plan, [report("m1", {}), passed]).kind == "tampering"
