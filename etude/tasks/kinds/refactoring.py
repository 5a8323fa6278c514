"""Tasks that give something another name or place: a change of code, of which the repository's tests are part."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from etude.tasks.format.config import Refactor
from etude.tasks.format.task import Task
from etude.tasks.grading.grader import GradeJob, grade_by_tests
from etude.tasks.grading.verdict import MOST_TEXT, Grade
from etude.tasks.kinds.base import Finding, OutcomeKind
from etude.tasks.kinds.code_change import lint_tests
from etude.tasks.kinds.refactoring_leftovers import left_behind

LEFT: Final = "what stayed behind"  # the grader's own question, beside the task's tests


class Refactoring(OutcomeKind):
    facts = "refactor"

    async def grade(self, job: GradeJob) -> Grade:
        found = await grade_by_tests(job)
        # Tests of a refactoring share a process with what they test, and can be told from changed ones: that they
        # passed is not enough.
        files = {each.path: each.data for each in job.submission.files}
        # In a thread: a large project takes a while to read.
        read = partial(left_behind, job.task, _asked(job.task), files)
        if found.passed and (left := await asyncio.to_thread(read)):
            return replace(
                found, passed=False, kind="tests", reason=left[0], details={LEFT: "; ".join(left)[:MOST_TEXT]}
            )
        return found

    def lint(self, task: Task) -> Iterator[Finding]:
        return lint_tests(task)

    def submitted_tests(self, task: Task) -> set[str]:
        # The agent edits them along; what lies in tests/ is laid over them.
        return {path for path in task.tests if path.endswith(".py")}

    def moved_files(self, task: Task) -> dict[str, str]:
        asked = _asked(task)
        return {asked.new: asked.old} if asked.kind == "move" else {}

    def subjects(self, task: Task) -> Sequence[str]:
        return [*super().subjects(task), _asked(task).symbol or _asked(task).old]

    def describe(self, task: Task) -> tuple[str, str]:
        asked = _asked(task)
        return asked.new, f"{asked.old} is {asked.new} now."


def _asked(task: Task) -> Refactor:
    assert task.facts.refactor is not None
    return task.facts.refactor


KIND = Refactoring()
