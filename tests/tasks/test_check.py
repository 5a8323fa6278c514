"""Checking tasks without a model: good ones pass, and every way to be unfit is named."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from etude.core.settings import GraderSettings
from etude.forge.katas.task_source import katas
from etude.tasks.check import PATIENCE, CheckReport, check
from etude.tasks.format.task import Task
from etude.tasks.grade import grade
from etude.tasks.grading.verdict import Grade
from etude.tasks.kinds.base import _wrong_before
from etude.tasks.kinds.stubs import stub

TEST = "import unittest\nfrom shop import f\n\n\nclass T(unittest.TestCase):\n"
GOOD = TEST + "    def test_a(self):\n        self.assertEqual(f(2), 4)\n"
GOOD += "    def test_b(self):\n        self.assertEqual(f(3), 9)\n"
F = "def f(x):\n    return x * x\n"
BROKEN = "def f(x):\n    raise NotImplementedError\n"
IDS = ["test_shop.T.test_a", "test_shop.T.test_b"]


def checked(grounds: Any, task: Task) -> CheckReport:
    return grounds.run(check(task, grounds.host))


@pytest.fixture
def briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """One run of the reference in a new interpreter, and one stub."""
    monkeypatch.setattr("etude.tasks.kinds.base.HASH_SEEDS", 1)
    monkeypatch.setattr("etude.tasks.kinds.base.STUBS", ("None",))


def wrong(report: CheckReport) -> list[str]:
    return [str(trial) for trial in report.trials if not trial.ok]


def test_a_kata_is_fit(grounds: Any) -> None:
    report = checked(grounds, next(katas("train", 1, seed=6)))
    assert report.ok, (report.findings, wrong(report))
    names = [trial.answer for trial in report.trials]
    assert names[:5] == [*(f"reference, hash seed {seed}" for seed in range(3)), "reference", "null"]
    assert any(name.startswith("stub") for name in names)


@pytest.mark.usefixtures("briefly")
def test_a_solution_that_fails_or_is_not_allowed_is_named(grounds: Any, make_task: Any) -> None:
    four = {"shop.py": "def f(x):\n    return 4\n"}
    bad = make_task({"test_shop.py": GOOD}, four, {"shop.py": BROKEN}, fail_to_pass=IDS)
    assert "WRONG: reference, hash seed 0 is rejected: 1 of 2 required tests" in wrong(checked(grounds, bad))[0]
    facts = {"fail_to_pass": IDS, "allowed_paths": ["other.py"]}
    kept = make_task({"test_shop.py": GOOD}, {"shop.py": F}, {"shop.py": BROKEN}, **facts)
    assert "shop.py of the solution is refused" in wrong(checked(grounds, kept))[0]


@pytest.mark.usefixtures("briefly")
def test_tests_that_tell_nothing_are_named(grounds: Any, make_task: Any) -> None:
    lazy = TEST + "    def test_a(self):\n        pass\n    def test_b(self):\n        self.assertTrue(f)\n"
    report = checked(grounds, make_task({"test_shop.py": lazy}, {"shop.py": F}, {"shop.py": BROKEN}, fail_to_pass=IDS))
    assert any("null is accepted" in line and "should fail before" in line for line in wrong(report))
    assert any("stub None is accepted" in line for line in wrong(report))
    facts = {"fail_to_pass": IDS[:1], "pass_to_pass": IDS[1:]}
    both = make_task({"test_shop.py": GOOD}, {"shop.py": F}, {"shop.py": BROKEN}, **facts)
    assert any("test_b should pass before" in line for line in wrong(checked(grounds, both)))


def test_a_solution_that_depends_on_the_hash_order_is_named(grounds: Any, make_task: Any) -> None:
    flaky = "def f(x):\n    return x * x if hash('a') % 2 == hash('b') % 2 else 0\n"
    task = make_task({"test_shop.py": GOOD}, {"shop.py": flaky}, {"shop.py": BROKEN}, fail_to_pass=IDS)
    answers = {trial.answer: trial.passed for trial in checked(grounds, task).trials[:3]}
    assert set(answers.values()) == {True, False}


def test_a_task_that_cannot_be_tried_says_why(grounds: Any, make_task: Any) -> None:
    task = make_task({"test_shop.py": GOOD}, {"shop.py": F}, {"shop.py": BROKEN}, fail_to_pass=IDS)
    for changes, rule in (({"suite": None}, "missing-facts"), ({"fail_to_pass": []}, "no-fail-to-pass")):
        report = checked(grounds, dataclasses.replace(task, facts=task.facts.model_copy(update=changes)))
        assert not report.ok
        assert rule in {finding.rule for finding in report.findings}


def test_stubs_replace_what_the_solution_changes_and_nothing_else(make_task: Any) -> None:
    before = "def kept(x):\n    return x\n\n\ndef f(x):\n    pass\n"
    after = before.replace("pass", "return x * x")
    task = make_task({}, {"shop.py": after, "data.txt": "x"}, {"shop.py": before}, fail_to_pass=["a.b.c"])
    assert stub(task, "0") == {"shop.py": b"def kept(x):\n    return x\n\ndef f(x):\n    return 0"}


@pytest.mark.usefixtures("briefly")
def test_stubs_get_no_more_time_than_twice_the_reference(
    grounds: Any, make_task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds: dict[str, float] = {}

    async def recorded(task: Any, host: Any, submission: Any, settings: Any, **options: Any) -> Grade:
        seconds["stub" if options["quick"] else "other"] = settings.seconds
        return dataclasses.replace(await grade(task, host, submission, settings, **options), seconds=1.5)

    monkeypatch.setattr("etude.tasks.check.grade", recorded)
    task = make_task({"test_shop.py": GOOD}, {"shop.py": F}, {"shop.py": BROKEN}, fail_to_pass=IDS)
    assert wrong(checked(grounds, task)) == []
    assert seconds["other"] == GraderSettings().seconds and seconds["stub"] == 2 * 1.5 + PATIENCE


def test_ids_that_are_not_graded_say_nothing_about_a_task(make_task: Any) -> None:
    """Of a test with many parameters only some are graded."""
    many = [f"tests/test_a.py::test_a[{number}]" for number in range(40)]
    task = make_task({}, {"a.py": F}, fail_to_pass=many[:20], held_out=many[20:], suite="pytest")
    graded = dict.fromkeys((*many[:16], *many[20:36]), "failed")
    assert list(_wrong_before(task, Grade(False, "tests", "", graded))) == []
    passing = Grade(False, "tests", "", dict.fromkeys(graded, "passed"))
    assert len(list(_wrong_before(task, passing))) == 2
