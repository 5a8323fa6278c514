"""What a candidate breaks is found by one run of the suite; tests that fail for reasons of their own do not count."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from etude.forge.environments.suite_run import SuiteRun
from etude.forge.languages.python.repository import PythonRepository
from etude.forge.steps import context, trial
from etude.forge.steps.baseline import Baseline
from etude.forge.steps.candidate import Candidate, RemovedCode
from etude.forge.steps.context import MakeContext

Build = Callable[..., PythonRepository]
NAMES = ("one", "two", "three", "child", "clock", *(f"far_{number}" for number in range(8)))
TEXT = "".join(f"def test_{name}():\n    pass\n\n\n" for name in NAMES)
NEAR, (CHILD, CLOCK), FAR = (
    [f"tests/test_a.py::test_{name}" for name in names] for names in (NAMES[:3], NAMES[3:5], NAMES[5:])
)


def context_of(repository: PythonRepository, seconds: float) -> MakeContext:
    """Nothing that would run."""
    base = Baseline(repository.green, (), {}, {}, seconds)
    return MakeContext(repository, base, *cast(Any, (None, None, None)))


def test_a_test_that_never_comes_near_and_passes_when_asked_again_is_left_out(
    build_repository: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`clock` fails by chance; `child` reaches the code in a process of its own, which no trace shows."""
    asked: list[Sequence[str] | None] = []

    async def run(*_: Any, tests: Sequence[str] | None = None, **options: Any) -> SuiteRun:
        asked.append(tests)
        passed = {*FAR} if tests is None else {*FAR, CLOCK}
        every = [*NEAR, CHILD, CLOCK, *FAR] if tests is None else tests
        return SuiteRun({name: "passed" if name in passed else "failed" for name in every}, 0.1, True, "")

    monkeypatch.setattr(context, "run_suite", run)
    repository = build_repository(
        {"src/t.py": "def f():\n    return 1\n", "tests/test_a.py": TEXT},
        {test: {"src/t.py:f"} if test in NEAR else set() for test in (*NEAR, CHILD, CLOCK, *FAR)},
    )
    candidate = Candidate("deletion", "bodies", {"src/t.py": b""}, (RemovedCode("src/t.py", "f", ""),), frozenset(NEAR))
    made = context_of(repository, 0.1)
    for _ in range(2):
        found = asyncio.run(trial.attempt(made, candidate, 60.0))
        assert set(found.broken) == {*NEAR, CHILD} and set(found.kept) == {*FAR}
        assert made.unsteady == {CLOCK}
    assert [sorted(tests or ()) for tests in asked] == [[], sorted([CHILD, CLOCK]), [], [CHILD]]


def test_of_a_slow_suite_only_what_could_notice_runs_unless_all_is_asked_for(
    build_repository: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Sequence[str] | None] = []

    async def run(*_: Any, tests: Sequence[str] | None = None, **options: Any) -> SuiteRun:
        asked.append(tests)
        broken = {*NEAR, CHILD}
        every = [*NEAR, CHILD, CLOCK, *FAR] if tests is None else tests
        return SuiteRun({name: "failed" if name in broken else "passed" for name in every}, 0.1, True, "")

    monkeypatch.setattr(context, "run_suite", run)
    every = (*NEAR, CHILD, CLOCK, *FAR)
    repository = build_repository(
        {"src/t.py": "def f():\n    return 1\n", "tests/test_a.py": TEXT}, {test: set() for test in every}
    )
    candidate = Candidate("deletion", "bodies", {"src/t.py": b""}, (RemovedCode("src/t.py", "f", ""),), frozenset(NEAR))

    def attempt(seconds: float, took: dict[str, float], *, try_all: bool = False) -> trial.Trial:
        asked.clear()
        made = context_of(replace(repository, took=took), seconds)
        return asyncio.run(trial.attempt(made, replace(candidate, try_all=try_all), 60.0))

    found = attempt(60.0, {FAR[0]: 59.0})
    assert asked == [sorted(NEAR)] and not found.whole
    assert set(found.broken) == {*NEAR} and set(found.kept) == {CHILD, CLOCK, *FAR}  # `child` is for the gates to find
    for found in (
        attempt(60.0, {FAR[0]: 59.0}, try_all=True),
        attempt(60.0, {"tests/test_a.py": 59.0}),
        attempt(0.1, {}),
    ):
        assert asked[0] is None and found.whole and set(found.broken) == {*NEAR, CHILD}


def test_a_test_that_waits_for_ever_costs_what_the_slowest_test_would_on_a_busy_machine(
    build_repository: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit of the whole suite would be spent on it, at each candidate that leaves something waiting."""
    given: list[dict[str, Any]] = []

    async def run(*_: Any, **options: Any) -> SuiteRun:
        given.append(options)
        return SuiteRun({}, 10.0, False, "the test test_one does not come to its end", endless="test_one")

    monkeypatch.setattr(context, "run_suite", run)
    repository = build_repository(
        {"src/t.py": "def f():\n    return 1\n", "tests/test_a.py": TEXT}, {test: set() for test in (*NEAR, *FAR)}
    )
    candidate = Candidate("deletion", "bodies", {"src/t.py": b""}, (RemovedCode("src/t.py", "f", ""),), frozenset(NEAR))
    made = context_of(repository, 40.0)
    slow = replace(made, base=replace(made.base, took={NEAR[0]: 3.0, "tests/test_a.py": 30.0}))
    for each in (made, slow):
        with pytest.raises(context.Refused) as refused:
            asyncio.run(trial.attempt(each, candidate, 460.0))
        assert "test_one" in refused.value.detail
    assert [each["test_seconds"] for each in given] == [10.0, 30.0]


def test_a_test_that_waits_for_ever_whatever_is_broken_costs_two_candidates_and_no_more(
    build_repository: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Sequence[str] | None] = []

    async def run(*_: Any, tests: Sequence[str] | None = None, **options: Any) -> SuiteRun:
        asked.append(tests)
        if tests is None or CLOCK in tests:
            return SuiteRun({}, 10.0, False, f"the test {CLOCK} does not come to its end", endless=CLOCK)
        return SuiteRun({name: "failed" if name in NEAR else "passed" for name in tests}, 0.1, True, "")

    monkeypatch.setattr(context, "run_suite", run)
    every = (*NEAR, CHILD, CLOCK, *FAR)
    repository = build_repository(
        {"src/t.py": "def f():\n    return 1\n", "tests/test_a.py": TEXT}, {test: set() for test in every}
    )
    candidate = Candidate("deletion", "bodies", {"src/t.py": b""}, (RemovedCode("src/t.py", "f", ""),), frozenset(NEAR))
    made = context_of(repository, 0.1)
    for _ in range(context.HANGS):
        with pytest.raises(context.Refused, match="does not come to its end"):
            asyncio.run(trial.attempt(made, candidate, 60.0))
    found = asyncio.run(trial.attempt(made, candidate, 60.0))
    assert set(found.broken) == {*NEAR} and CLOCK not in found.kept and set(found.kept) == {CHILD, *FAR}
    assert asked[-1] is not None and set(asked[-1]) == {*NEAR, CHILD, *FAR}
