"""Tasks whose outcome is a file as it was: it is compared with the solution's text, and nothing runs.

For tasks that are made by the thousand from code without tests. Another way to write the same is refused, so they are
for practice, and say little in a benchmark. Spaces at the ends of lines do not count.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence

from etude.core.settings import GraderSettings
from etude.sandbox.hosts import StoringHost
from etude.tasks.format.task import Task
from etude.tasks.grading.grader import GradeJob
from etude.tasks.grading.submission import Submission, submission_of
from etude.tasks.grading.verdict import Grade
from etude.tasks.kinds.base import FACTS, Finding, KnownAttempt, OutcomeKind


class Restored(OutcomeKind):
    facts = "restored"

    async def grade(self, job: GradeJob) -> Grade:
        left = {each.path: each.data for each in job.submission.files}
        for path in job.task.solution:
            found = left[path] if path in left else job.task.workspace.get(path)
            if found is None or _lines(found) != _lines(job.task.solution[path]):
                return Grade(False, "tests", f"{path} is not as it was", {path: "failed"})
        return Grade(True, "passed", "", dict.fromkeys(job.task.solution, "passed"))

    def lint(self, task: Task) -> Iterator[Finding]:
        if all(task.workspace.get(path) == task.solution[path] for path in task.solution):
            yield Finding("nothing-to-restore", "error", FACTS, "the workspace is as the solution has it")

    async def known_attempts(
        self, task: Task, host: StoringHost, settings: GraderSettings, guesses: Sequence[str]
    ) -> AsyncIterator[KnownAttempt]:
        yield KnownAttempt("reference", "accepted", submission_of(task, task.reference))
        yield KnownAttempt("null", "rejected", Submission())


def _lines(data: bytes) -> list[bytes]:
    return [line.rstrip() for line in data.rstrip().splitlines()]


KIND = Restored()
