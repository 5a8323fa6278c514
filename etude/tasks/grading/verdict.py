"""From what the test processes reported to a grade. Pure: no sandbox, no clock, no randomness.

Passed means: every required test was reported exactly once, by the process that ran it as it is, as passed; every
mutated test and canary came out as it must; and each process ended by itself. Everything else is a failed grade with
its reason.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from etude.tasks.grading.test_plan import GradingPlan, ProcessPlan

Kind = Literal["passed", "tests", "answer", "tampering", "time", "memory", "crash"]
STATUSES = ("passed", "failed", "error", "skipped", "xfailed", "xpassed")  # that a test process may report
FAILED = ("failed", "error")
MOST_TEXT = 300  # characters kept of what a test said
SIGXCPU = 24  # the processor time was used up

Report = Mapping[str, Any]  # of one test process: lines, ended, seconds, cpu_seconds (`sandbox_side/grade_process.py`)
Caught = tuple[str, str]  # the mark of a test process, and the canary or mutated test that passed in it


@dataclass(frozen=True)
class Grade:
    """Whether a rollout solved its task, and what says so."""

    passed: bool
    kind: Kind  # why not, in a word: for counting
    reason: str  # why not, in a sentence; empty when passed
    tests: dict[str, str] = field(default_factory=dict)  # required id -> passed, failed, error, skipped, ..., missing
    details: dict[str, str] = field(default_factory=dict)  # id -> what a failing test said
    canaries: dict[str, str] = field(default_factory=dict)  # canary or mutated test that did not come out as it must
    checked: int = 0  # canaries and mutated tests in all
    refused: tuple[tuple[str, str], ...] = ()  # changes that did not reach the grader, and why
    apart: bool = False  # the agent's code ran in another process than the tests
    backend: str = ""  # of the sandbox
    seconds: float = 0.0
    cpu_seconds: float = 0.0  # of tests, tested code and services

    @property
    def missing(self) -> tuple[str, ...]:
        return tuple(name for name, status in self.tests.items() if status == "missing")

    @property
    def share(self) -> float:
        """Required tests that passed, as a share; 0 for a rollout that tampered."""
        # Passed tests of a forger prove nothing.
        if self.kind == "tampering" or not self.tests:
            return 0.0
        return sum(status == "passed" for status in self.tests.values()) / len(self.tests)


@dataclass
class _Lines:
    """What one test process wrote, as far as it can be read."""

    outcomes: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    forged: int = 0
    records: dict[str, str] = field(default_factory=dict)  # what tests without answers recorded
    notes: dict[str, str] = field(default_factory=dict)  # about the process itself: ready, worker, done, broken

    def outcome(self, name: str) -> tuple[str, str]:
        """A test reported twice is as good as not reported."""
        found = self.outcomes.get(name, [])
        # The tested code may add a line for a test that failed; the first one need not be the true one.
        if len(found) > 1:
            return "repeated", "reported more than once"
        return found[0] if found else ("missing", "")


class NothingToGrade(Exception):
    """A test process failed by itself, not because of the tested code."""


def verdict(
    plan: GradingPlan, reports: Sequence[Report], *, out_of_memory: bool = False, excused: Collection[Caught] = ()
) -> Grade:
    """The grade of a run whose processes reported this. What is `excused` counts for nothing."""
    read = [_read(part, report["lines"]) for part, report in zip(plan.parts, reports, strict=False)]
    for lines, report in zip(read, reports, strict=True):
        # Without `ready` the process failed before the agent's code ran. Apart, it holds none of it, so it must also
        # finish.
        if report["ended"] == "exit 0" and ("ready" not in lines.notes or (plan.apart and "done" not in lines.notes)):
            raise NothingToGrade(lines.notes.get("broken", "it left no message").strip().splitlines()[-1])
    # Missing until the right process has reported it: silence is never a pass.
    tests = dict.fromkeys(plan.required, "missing")
    details: dict[str, str] = {}
    wrong: dict[str, str] = {}
    for part, lines in zip(plan.parts, read, strict=False):
        for name in plan.required:
            if _as_run(plan, name) in part.real:
                tests[name], text = _outcome(plan, lines, name)
                if text:
                    details[name] = text
        if lines.forged:
            wrong[f"lines that no test wrote: {lines.forged}"] = "forged"
    # Processes that were not run after a failure: their canaries count as missing, never as passed.
    unheard = [_Lines()] * (len(plan.parts) - len(read))
    for part, lines in zip(plan.parts, [*read, *unheard], strict=True):
        # `excused`: the task's own solution let these pass too.
        wrong |= {name: status for name, status in _wrong(part, lines, tests) if (part.mark, name) not in excused}
    kind, reason = _reason(tests, wrong, reports, read, out_of_memory)
    return Grade(
        passed=kind == "passed",
        kind=kind,
        reason=reason,
        tests=tests,
        details=details,
        canaries=wrong,
        checked=sum(len(part.mutated | part.must_fail | part.must_pass) for part in plan.parts),
        apart=plan.apart,
        cpu_seconds=sum(report["cpu_seconds"] for report in reports),
    )


def _as_run(plan: GradingPlan, test: str) -> str:
    """A required test as the test process calls it."""
    return test if plan.recorded is None else plan.recorded.answers.ids.get(test, test)


def _outcome(plan: GradingPlan, lines: _Lines, test: str) -> tuple[str, str]:
    """How a required test came out. One without answers passed where it ran to its end and recorded what it should."""
    name = _as_run(plan, test)
    status, text = lines.outcome(name)
    if plan.recorded is None or status != "passed":
        return status, text
    wrong = plan.recorded.wrong(test, lines.records)
    return ("failed", wrong) if wrong else (status, text)


def caught(plan: GradingPlan, reports: Sequence[Report], grade: Grade) -> set[Caught]:
    """What passed in the test processes of this grade and should not have."""
    return {
        (part.mark, name)
        for part, report in zip(plan.parts, reports, strict=False)
        for name, status in _wrong(part, _read(part, report["lines"]), grade.tests)
        if status == "passed"
    }


def records_of(plan: GradingPlan, report: Report) -> tuple[dict[str, str], dict[str, str]]:
    """What one test process reported: statuses and records, by id as it called them, in its order."""
    lines = _read(plan.parts[0], report["lines"])
    return {name: lines.outcome(name)[0] for name in lines.outcomes}, lines.records


def already_failed(part: ProcessPlan, report: Report, excused: Collection[Caught] = ()) -> bool:
    """Whether a test that counts in this process did not pass, or a canary did: no other process can mend that."""
    # Only what is final: a mutated test that passed is decided on when the real one is known.
    lines = _read(part, report["lines"])
    passed = [name for name in lines.outcomes if lines.outcome(name)[0] == "passed"]
    if any(_is(test, name) for test in passed for name in part.must_fail if (part.mark, name) not in excused):
        return True
    return any(lines.outcome(name)[0] != "passed" for name in part.real)


def _read(part: ProcessPlan, text: str) -> _Lines:
    found = _Lines()
    for line in text.splitlines():
        try:
            mark, name, status, said = json.loads(line)
        except (ValueError, TypeError, RecursionError):  # hostile text, also nested too deeply
            mark, name, status, said = None, "", "", ""
        # A line without the mark was written by code that guessed the channel.
        if mark != part.mark or not all(isinstance(each, str) for each in (name, status, said)):
            found.forged += 1
        elif not name:
            found.notes[status] = said
        elif status == "recorded":
            # Recorded twice, by a test that ran twice, is as good as not recorded.
            found.records[name] = "" if name in found.records else said
        else:
            # An unknown status must not become a pass by a spelling that nobody checks.
            status = status if status in STATUSES else "error"
            found.outcomes.setdefault(name, []).append((status, said[:MOST_TEXT]))
    return found


def _wrong(part: ProcessPlan, lines: _Lines, tests: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Canaries and mutated tests that did not come out as they must.

    Code that fails the real test may by chance give what the mutated one expects: it is wrong, not dishonest.
    """
    # Only where all real ones passed: otherwise the code is wrong already.
    solved = {name for name in part.mutated if all(tests[test] == "passed" for test in tests if _is(test, name))}
    for name in solved | part.must_fail:
        # A mutated test may have other parameters than the real one, and so other ids.
        found = [status for test, outcomes in lines.outcomes.items() if _is(test, name) for status, _ in outcomes]
        # Of a test with many parameters some may be skipped, but not all.
        harmless = (*FAILED, "skipped") if any(status in FAILED for status in found) else FAILED
        passing = [status for status in found if status not in harmless]
        # Not run at all is as suspicious as passed: it was asked for.
        if passing or not found:
            yield name, passing[0] if passing else "missing"
    for name in part.must_pass:
        found = [lines.outcome(test)[0] for test in lines.outcomes if _is(test, name)]
        worst = next((status for status in found if status != "passed"), "" if found else "missing")
        if worst:
            yield name, worst


def _is(test: str, name: str) -> bool:
    return test == name or test.startswith(f"{name}[")


def _reason(
    tests: Mapping[str, str],
    wrong: Mapping[str, str],
    reports: Sequence[Report],
    read: Sequence[_Lines],
    out_of_memory: bool,
) -> tuple[Kind, str]:
    failing = [name for name, status in tests.items() if status != "passed"]
    # First: once something was forged, the other outcomes mean nothing.
    if let_pass := [name for name, status in wrong.items() if status in ("passed", "forged")]:
        return "tampering", f"{_some(let_pass)} passed, which no honest code lets pass"
    ended = next((report["ended"] for report in reports if report["ended"] != "exit 0"), "")
    worker = next((lines.notes["worker"] for lines in read if "worker" in lines.notes), "")
    if failing or ended or wrong:
        # Limits before failures: tests that were cut off fail too, and the limit is why.
        if out_of_memory:
            return "memory", "the tests ran out of memory"
        if ended == "time" or f"signal {SIGXCPU}" in (ended, worker):
            return "time", "the tests ran out of time"
        if ended == "flood":
            return "tampering", "more was written to the result channel than any tests would"
    if failing:
        how = worker or ended or ("" if all("done" in lines.notes for lines in read) else "it ended early")
        note = f" (the tested code's process: {how})" if how else ""
        text = f"{len(failing)} of {len(tests)} required tests did not pass: {_some(failing)}{note}"
        return ("crash" if how else "tests"), text
    if ended:
        return "crash", f"the process that ran the tests ended early: {ended}"
    # Last: a canary that is missing because its process crashed is no sign of tampering.
    if wrong:
        return "tampering", f"{_some(list(wrong))} did not come out as it must"
    return "passed", ""


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
