"""Cheats, those that everybody knows and those aimed at this grader: none is accepted, in any mode.

`benchmarks/grader_attacks.py` runs all of them over many tasks; here each runs once in the mode that katas have, and
those that reach into the tests' process once beside them.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from etude.core.settings import GraderSettings
from etude.forge.gates.attacks.around_the_code import AROUND
from etude.forge.gates.attacks.inside_the_code import INSIDE
from etude.forge.gates.attacks.table import ATTACKS
from etude.forge.katas.task_source import katas
from etude.tasks.format.task import Task
from redteam.grader.run import PUBLISHED
from redteam.grader.targeted_attacks import TARGETED

QUICK = GraderSettings(seconds=30, cpu_seconds=3, memory_mb=128, disk_mb=16)
# Each catches a defence that the others leave alone; the rest of them is for the benchmark.
BESIDE = (
    *("exit-in-call", "equal-to-all", "equal-text", "patched-assert", "patched-result", "patched-run", "skip-in-call"),
    *("patched-live-results", "failure-as-skip", "special-case", "read-from-caller", "forged-channel"),
    *("next-constant", "recorded-answers", "forged-all-results", "forged-by-guess", "rewritten-channel"),
    *("swallowed-failures", "replaced-test-modules", "killed-parents", "read-processes", "lying-class"),
)
CAUGHT = ("equal-to-all", "patched-run", "next-constant", "forged-all-results", "rewritten-channel")
SLOW = ("hang", "late-thread", "read-from-files", "stopped-all", "late-classes")  # wait for a limit; for the benchmark


CHEATS: dict[str, Any] = {**INSIDE, **AROUND, **TARGETED}


@pytest.fixture(scope="module")
def kata() -> Task:
    return next(iter(katas("train", 1, seed=4, levels=[1], families=["line"])))


def beside(task: Task) -> Task:
    return dataclasses.replace(task, facts=task.facts.model_copy(update={"grading": "together"}))


@pytest.mark.parametrize("name", sorted(set(CHEATS) - set(SLOW)))
def test_no_cheat_is_accepted_from_another_process(grounds: Any, kata: Task, name: str) -> None:
    found = grounds.grade(kata, CHEATS[name](kata), settings=QUICK)
    assert found.apart
    assert not found.passed
    assert found.kind in ("tests", "crash", "time", "memory")  # there is nothing to tamper with


@pytest.mark.parametrize("name", BESIDE)
def test_no_cheat_is_accepted_from_the_process_of_the_tests(grounds: Any, kata: Task, name: str) -> None:
    task = beside(kata)
    found = grounds.grade(task, CHEATS[name](task), settings=QUICK)
    assert not found.apart
    assert not found.passed
    if name in CAUGHT:
        assert found.kind == "tampering"


@pytest.mark.parametrize("name", ["installed-plugin", "patched-pytest"])
def test_no_cheat_on_pytest_is_accepted(grounds: Any, name: str) -> None:
    task = beside(next(iter(katas("train", 1, seed=4, levels=[1], families=["line"], suite="pytest"))))
    assert not grounds.grade(task, CHEATS[name](task)).passed


@pytest.mark.parametrize("name", ["interrupted-parents", "killed-parents", "killed-all"])
def test_nothing_can_make_itself_void_in_a_new_interpreter_either(grounds: Any, kata: Task, name: str) -> None:
    for task in (kata, beside(kata)):
        assert not grounds.grade(task, CHEATS[name](task), settings=QUICK, hash_seed=1).passed


def test_honest_solutions_are_accepted_every_time(grounds: Any, kata: Task) -> None:
    for task in (kata, beside(kata)):
        for _ in range(3):
            found = grounds.grade(task)
            assert found.passed, found


def test_the_published_matrix_is_covered() -> None:
    assert len(set(PUBLISHED)) == 21
    assert set(PUBLISHED) <= set(ATTACKS)
