"""Tasks whose outcome is a file of tests, graded by the mistakes in the code that it notices (`mutants`)."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import AsyncIterator, Iterator, Sequence

from etude.core.settings import GraderSettings
from etude.sandbox.hosts import StoringHost
from etude.tasks.format.config import Testing
from etude.tasks.format.task import Task
from etude.tasks.grading.grader import GradeJob
from etude.tasks.grading.verdict import Grade
from etude.tasks.kinds.base import FACTS, Finding, KnownAttempt, OutcomeKind
from etude.tasks.kinds.mutants import grade_file, lint_mutants, mutant_attempts, mutants


class TestWriting(OutcomeKind):
    facts = "testing"

    async def grade(self, job: GradeJob) -> Grade:
        file = _asked(job.task).file
        text = next((each.data for each in job.submission.files if each.path == file), None)
        if text is None:
            return Grade(False, "tests", f"there is no {file}", {file: "missing"})
        return await grade_file(job, file, text)

    def lint(self, task: Task) -> Iterator[Finding]:
        file = _asked(task).file
        if file in task.workspace or task.facts.allowed_paths != [file]:
            message = f"{file} must not be there yet, and be all that allowed_paths has"
            yield Finding("testing-file", "error", f"{FACTS}.testing", message)
        yield from lint_mutants(task, "testing", "tests")

    async def known_attempts(
        self, task: Task, host: StoringHost, settings: GraderSettings, guesses: Sequence[str]
    ) -> AsyncIterator[KnownAttempt]:
        if not any(self.lint(task)):
            for each in mutant_attempts(task, _asked(task).file, false_tests(task)):
                yield each

    def submitted_tests(self, task: Task) -> set[str]:
        return {_asked(task).file}

    def describe(self, task: Task) -> tuple[str, str]:
        return "the tests", "Wrote the tests."


def _asked(task: Task) -> Testing:
    assert task.facts.testing is not None
    return task.facts.testing


def false_tests(task: Task) -> dict[str, bytes]:
    """Files of tests that say nothing about what the code does: each has to be rejected."""
    paths = sorted({path for files in mutants(task).values() for path in files})
    texts = {path: task.workspace[path] for path in paths}
    read = [f"    assert open({path!r}, 'rb').read() == {data!r}" for path, data in texts.items()]
    trees = {path: hashlib.sha256(ast.dump(ast.parse(data)).encode()).hexdigest() for path, data in texts.items()}
    dump = "hashlib.sha256(ast.dump(ast.parse(open({!r}, 'rb').read())).encode()).hexdigest()"
    parsed = [f"    assert {dump.format(path)} == {digest!r}" for path, digest in trees.items()]
    return {
        "an empty file": b"",
        "a test that always passes": b"def test_all():\n    assert True\n",
        "a test that always fails": b"def test_all():\n    assert False\n",
        "a test of the text": "\n".join(["def test_text():", *read, ""]).encode(),
        "a test of the tree": "\n".join(["import ast", "import hashlib", "", "def test_tree():", *parsed, ""]).encode(),
    }


KIND = TestWriting()
