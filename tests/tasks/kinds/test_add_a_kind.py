"""A kind of outcome that this file alone brings: it is linted, checked, graded and attempted like the built-in ones."""

from __future__ import annotations

import dataclasses
import random
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from etude.core.settings import GraderSettings
from etude.policies.scripted import scripted
from etude.rollout.rollout import GradeCache, Scored, build_setup, run_rollout
from etude.sandbox.hosts import StoringHost
from etude.tasks import kinds
from etude.tasks.check import check
from etude.tasks.format.config import Config, Facts
from etude.tasks.format.file_tree import Files
from etude.tasks.format.task import SOLUTION, WORKSPACE, Task
from etude.tasks.grading.grader import GradeJob
from etude.tasks.grading.submission import submission_of
from etude.tasks.grading.verdict import Grade
from etude.tasks.kinds import table
from etude.tasks.kinds.base import FACTS, Finding, KnownAttempt, OutcomeKind
from etude.tasks.kinds.table import KINDS, kind_of
from etude.tasks.lint import lint


class SortedFile(OutcomeKind):
    """The outcome is a file with the workspace's words in order. No test runs and no sandbox is needed to grade it."""

    facts = "sorted_file"

    async def grade(self, job: GradeJob) -> Grade:
        wanted = sorted(job.task.workspace.text("words.txt").split())
        given = next((each.data or b"" for each in job.submission.files if each.path == _file(job.task)), b"")
        if given.decode().split() == wanted:
            return Grade(True, "passed", "", {"order": "passed"})
        return Grade(False, "tests", "the words are not in order", {"order": "failed"})

    def lint(self, task: Task) -> Iterator[Finding]:
        if not task.allows(_file(task)):
            yield Finding("sorted-file", "error", FACTS, f"{_file(task)} may not be written")

    async def known_attempts(
        self, task: Task, host: StoringHost, settings: GraderSettings, guesses: Sequence[str]
    ) -> AsyncIterator[KnownAttempt]:
        yield KnownAttempt("reference", "accepted", submission_of(task, task.reference))
        yield KnownAttempt("null", "rejected")
        yield KnownAttempt("stub", "rejected", submission_of(task, self.stub(task, random.Random(0))))

    def stub(self, task: Task, rng: random.Random) -> Mapping[str, bytes | None]:
        return {_file(task): b"b a\n"}

    def describe(self, task: Task) -> tuple[str, str]:
        return "the words", "Sorted the words."


def _file(task: Task) -> str:
    return str((task.facts.model_extra or {})["sorted_file"]["file"])


@pytest.fixture
def kind() -> Iterator[SortedFile]:
    KINDS.insert(0, made := SortedFile())
    yield made
    KINDS.remove(made)


@pytest.fixture
def task() -> Task:
    files = {
        "task.toml": b"",
        "environment/Dockerfile": b"FROM scratch\n",
        "tests/test.sh": b"",
        "solution/solve.sh": b"",
        f"{WORKSPACE}/words.txt": b"b a c\n",
        f"{SOLUTION}/sorted.txt": b"a b c\n",
    }
    facts = Facts.model_validate({"allowed_paths": ["sorted.txt"], "sorted_file": {"file": "sorted.txt"}})
    return Task("words", "Sort words.txt into sorted.txt.", Config(), facts, Files(files))


def test_it_owns_its_tasks_and_no_others(kind: SortedFile, task: Task) -> None:
    assert kind_of(task) is kind
    other = dataclasses.replace(task, facts=Facts(suite="unittest"))
    assert kind_of(other) is not kind


def test_lint_asks_it_and_knows_its_table(kind: SortedFile, task: Task) -> None:
    assert not [finding for finding in lint(task) if "sorted_file" in finding.message]
    closed = dataclasses.replace(task, facts=task.facts.model_copy(update={"allowed_paths": []}))
    assert "sorted-file" in {finding.rule for finding in lint(closed)}
    KINDS.remove(kind)
    assert "unknown-config-field" in {finding.rule for finding in lint(task)}
    KINDS.insert(0, kind)


def test_check_and_grade_ask_it(grounds: Any, kind: SortedFile, task: Task) -> None:
    report = grounds.run(check(task, grounds.host))
    assert [(trial.answer, trial.ok) for trial in report.trials] == [
        ("reference", True),
        ("null", True),
        ("stub", True),
    ]
    refused = grounds.grade(task, {"sorted.txt": b"a b c", "words.txt": b"a"})
    assert refused.passed and refused.refused == (("words.txt", "the task does not allow it"),) and refused.backend


def test_rollouts_collect_and_grade_through_it(grounds: Any, kind: SortedFile, task: Task) -> None:
    setup = dataclasses.replace(build_setup(), grade_cache=GradeCache())
    passed = {}
    for name in ("reference", "null", "stub"):
        outcome = grounds.run(run_rollout(task, scripted(name, task), grounds.host, setup))
        assert isinstance(outcome, Scored)
        passed[name] = outcome.passed
    assert passed == {"reference": True, "null": False, "stub": False}


def test_one_file_in_the_folder_is_all_that_a_new_kind_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "from etude.tasks.kinds.base import OutcomeKind\n\n\nclass Essay(OutcomeKind):\n    facts = 'essay'\n\n\n"
    (tmp_path / "essay.py").write_text(text + "KIND = Essay()\n")
    monkeypatch.setattr(kinds, "__path__", [*kinds.__path__, str(tmp_path)])
    monkeypatch.setattr(table, "KINDS", table.all_kinds())
    task = Task("t", "Write.", facts=Facts.model_validate({"essay": {"words": 100}}))
    assert type(table.kind_of(task)).__name__ == "Essay"
    assert type(table.kind_of(Task("t", "Do it."))).__name__ == "CodeChange"
    monkeypatch.delitem(sys.modules, "etude.tasks.kinds.essay")
