"""Grounds to grade on: one host with a warm grader for all tests of a process, and small tasks made by hand."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from etude.core.settings import GraderSettings
from etude.sandbox.hosts import StoringHost
from etude.tasks.check import CheckReport, check
from etude.tasks.format.config import Config, Facts
from etude.tasks.format.file_tree import Files
from etude.tasks.format.task import SOLUTION, TESTS, WORKSPACE, Task
from etude.tasks.grade import grade
from etude.tasks.grading.submission import submission_of
from etude.tasks.grading.verdict import Grade

QUICK = GraderSettings(seconds=30, cpu_seconds=1, memory_mb=192, disk_mb=16)


class Grounds:
    """A host, and the loop that it lives in."""

    def __init__(self, loop: asyncio.AbstractEventLoop, host: StoringHost) -> None:
        self.run, self.host = loop.run_until_complete, host

    def grade(self, task: Task, files: dict[str, bytes | None] | None = None, **options: Any) -> Grade:
        """The grade of a task with these files, or with its solution."""
        changed = dict(task.solution) if files is None else files
        settings = options.pop("settings", QUICK)
        return self.run(grade(task, self.host, submission_of(task, changed), settings, **options))

    def check(self, task: Task, settings: GraderSettings) -> tuple[CheckReport, dict[str, Grade]]:
        """What `check` says, and the grades that it took, by the names of the attempts: they cost much."""
        grades: list[Grade] = []

        async def recorded(*given: Any, **named: Any) -> Grade:
            grades.append(await grade(*given, **named))
            return grades[-1]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("etude.tasks.check.grade", recorded)
            report = self.run(check(task, self.host, settings))
        return report, dict(zip((trial.answer for trial in report.trials), grades, strict=True))


@pytest.fixture(scope="session")
def grounds(sandboxes: tuple[asyncio.AbstractEventLoop, StoringHost]) -> Grounds:
    return Grounds(*sandboxes)


def small_task(
    tests: dict[str, str],
    solution: dict[str, str],
    workspace: dict[str, str] | None = None,
    *,
    fail_to_pass: list[str],
    pass_to_pass: list[str] | None = None,
    held_out: list[str] | None = None,
    **facts: Any,
) -> Task:
    """A task in memory; its workspace is the solution's files, empty, unless given."""
    before = workspace if workspace is not None else dict.fromkeys(solution, "")
    files = {
        **{f"{WORKSPACE}/{path}": text.encode() for path, text in before.items()},
        **{f"{TESTS}/{path}": text.encode() for path, text in tests.items()},
        **{f"{SOLUTION}/{path}": text.encode() for path, text in solution.items()},
    }
    given = {"suite": "unittest", "allowed_paths": ["**/*.py"], **facts}
    known = Facts(fail_to_pass=fail_to_pass, pass_to_pass=pass_to_pass or [], held_out=held_out or [], **given)
    return Task("small", "Do it.", Config(), known, Files(files))


@pytest.fixture(scope="session")
def make_task() -> Any:
    return small_task


@pytest.fixture(scope="session")
def benchmarks() -> Path:
    return Path(__file__).parents[2] / "benchmarks"
