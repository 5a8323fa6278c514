"""Whether a task is fit to be used, without a model: the linter's findings, and grades that are known beforehand.

The reference must be accepted each time, whatever the hash order; doing nothing and plausible stubs must not be; and
on the untouched workspace exactly those tests fail that should. Which submissions those are, a task's kind knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from etude.core.errors import EtudeError
from etude.core.settings import GraderSettings
from etude.sandbox.base import SandboxFailure
from etude.sandbox.hosts import StoringHost
from etude.tasks.format.task import Task
from etude.tasks.grade import grade
from etude.tasks.grading.grader import GraderFailure
from etude.tasks.kinds.base import Expected, Finding
from etude.tasks.kinds.table import kind_of
from etude.tasks.lint import lint, lint_directory

PATIENCE: Final = 5.0  # seconds more that a stub may take than the reference twice, as in the gates


@dataclass(frozen=True)
class CheckedAnswer:
    """One known submission, graded."""

    answer: str  # reference, null, stub None
    wanted: Expected
    passed: bool
    reason: str
    complaints: tuple[str, ...] = ()  # what else is wrong

    @property
    def ok(self) -> bool:
        return self.passed == (self.wanted == "accepted") and not self.complaints

    def __str__(self) -> str:
        got = "accepted" if self.passed else "rejected"
        said = "; ".join([*([self.reason] if self.reason and not self.ok else []), *self.complaints])
        return f"{'ok' if self.ok else 'WRONG'}: {self.answer} is {got}" + (f": {said}" if said else "")


@dataclass(frozen=True)
class CheckReport:
    task: str
    findings: tuple[Finding, ...]
    trials: tuple[CheckedAnswer, ...] = ()

    @property
    def ok(self) -> bool:
        """Usable: no finding is an error, and every answer came out as it should."""
        return bool(self.trials) and all(trial.ok for trial in self.trials) and not self.errors

    @property
    def problems(self) -> list[str]:
        """What makes it unusable, a line each."""
        untried = [] if self.trials or self.errors else ["it cannot be tried: it has no suite, tests or solution"]
        return [*map(str, self.errors), *(str(trial) for trial in self.trials if not trial.ok), *untried]

    @property
    def warnings(self) -> list[str]:
        return [str(finding) for finding in self.findings if finding.severity == "warning"]

    @property
    def errors(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == "error"]


async def check_directory(
    directory: Path, host: StoringHost, settings: GraderSettings | None = None, guesses: Sequence[str] = ()
) -> CheckReport:
    """The same for a directory, also one that is no task."""
    findings = lint_directory(directory)
    try:
        return await check(Task.load(directory), host, settings, guesses)
    except (SandboxFailure, GraderFailure):
        raise
    except EtudeError as error:  # about the task: it says itself what to mend
        found = Finding("invalid-task", "error", str(directory), str(error))
        errors = [each for each in findings if each.severity == "error"]
        return CheckReport(directory.name, tuple(findings if errors else [*findings, found]))


async def check(
    task: Task, host: StoringHost, settings: GraderSettings | None = None, guesses: Sequence[str] = ()
) -> CheckReport:
    """Lints a task and tries it. What the machinery does wrong is raised, never held against the task.

    `guesses` are answers to other tasks, which must not be right for one that asks a question.
    """
    settings = settings or GraderSettings()
    trials: list[CheckedAnswer] = []
    reference = 0.0  # the longest that it took
    async for each in kind_of(task).known_attempts(task, host, settings, guesses):
        limits = settings
        if each.quick and reference:
            # A stub that waits for something that never comes would hold the check for the whole limit.
            limits = replace(settings, seconds=min(settings.seconds, 2 * reference + PATIENCE))
        found = await grade(
            task, host, each.submission, limits, answer=each.answer, hash_seed=each.hash_seed, quick=each.quick
        )
        if each.expected == "accepted":
            reference = max(reference, found.seconds)
        complaints = tuple(each.complaints(found))
        trials.append(CheckedAnswer(each.name, each.expected, found.passed, found.reason, complaints))
        if each.decisive and not trials[-1].ok:
            break
    return CheckReport(task.name, tuple(lint(task)), tuple(trials))
