"""What all kinds of outcome have in common: how a task's sandbox starts, what is collected, graded, linted and checked.

The base class is the usual kind, files of the workspace that the task's own tests grade; a kind is a subclass of it
that says what differs, in a file of its own whose `KIND` the `table` finds. Knows no policy and no rollout.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from etude.core.settings import GraderSettings
from etude.sandbox.base import WORKSPACE, Egress, Layer, Sandbox
from etude.sandbox.hosts import StoringHost
from etude.tasks.environment.layers import task_layers, task_variables
from etude.tasks.environment.network import task_network
from etude.tasks.format.task import CONFIG, Task
from etude.tasks.grading.grader import GradeJob, grade_by_tests
from etude.tasks.grading.submission import Submission, SubmissionLimits, collect, submission_of
from etude.tasks.grading.verdict import Grade
from etude.tasks.kinds.stubs import STUBS, plausible_stub, stub, stub_values

FACTS = f"{CONFIG}: metadata.etude"
HASH_SEEDS = 3  # that the reference is graded under, and once more warm, as in training
FEW_HASH_SEEDS = 2  # for a repository's tests, whose interpreter always starts anew

Severity = Literal["error", "warning", "note"]
Expected = Literal["accepted", "rejected"]


@dataclass(frozen=True)
class Finding:
    """Something wrong with a task: an error makes it unusable or unfair, a warning weakens it."""

    rule: str
    severity: Severity
    file: str  # in the task directory, with the key or line where one is known
    message: str

    def __str__(self) -> str:
        return f"{self.severity} {self.rule}: {self.file}: {self.message}"


@dataclass(frozen=True)
class SandboxStart:
    """What the agent's sandbox starts over, and where."""

    layers: Sequence[Layer]
    env: Mapping[str, str]
    workdir: str = WORKSPACE
    network: Egress | Literal[False] = False  # what may be reached through the proxy


@dataclass(frozen=True)
class KnownAttempt:
    """A submission whose grade is known beforehand."""

    name: str  # reference, null, stub None
    expected: Expected
    submission: Submission = field(default_factory=Submission)
    answer: str = ""
    hash_seed: int | None = None
    quick: bool = False
    complaints: Callable[[Grade], Iterable[str]] = lambda grade: ()  # what else is wrong, by its grade
    decisive: bool = False  # where it comes out otherwise, the submissions after it show nothing


class OutcomeKind:
    facts: ClassVar[str] = ""  # the table of [metadata.etude] that tasks of this kind have
    order: ClassVar[int] = 0  # who is asked first whether a task is its own
    reads_answer: ClassVar[bool] = False  # the agent's last message is graded, and not only its files

    def owns(self, task: Task) -> bool:
        """Whether a task is of this kind."""
        return bool(self.facts) and getattr(task.facts, self.facts, None) is not None

    async def start(self, task: Task, host: StoringHost) -> SandboxStart:
        """Where the agent works."""
        return SandboxStart(task_layers(task, host), task_variables(task), network=task_network(task))

    async def collect(
        self, task: Task, sandbox: Sandbox, workdir: str = WORKSPACE, limits: SubmissionLimits | None = None
    ) -> Submission:
        """What the agent left behind, as far as it may reach the grader."""
        return await collect(task, sandbox, limits)

    async def grade(self, job: GradeJob) -> Grade:
        """Whether the submission solves the task. The caller fills in what was refused, the backend and the seconds."""
        return await grade_by_tests(job)

    def lint(self, task: Task) -> Iterator[Finding]:
        """What is wrong with a task of this kind, found without running anything."""
        yield from ()

    def reference(self, task: Task) -> KnownAttempt | None:
        """What solves the task; None where the task does not have it as files."""
        solution = submission_of(task, task.reference)
        return KnownAttempt("reference", "accepted", solution) if solution.files else None

    async def known_attempts(
        self, task: Task, host: StoringHost, settings: GraderSettings, guesses: Sequence[str]
    ) -> AsyncIterator[KnownAttempt]:
        """What `check` grades: the reference, doing nothing, stubs. None where something is missing that lint names."""
        if task.facts.suite is None or not (task.facts.fail_to_pass or task.facts.held_out) or not len(task.solution):
            return
        solution = submission_of(task, task.reference)
        refused = [f"{each.path} of the solution is refused: {each.why}" for each in solution.refused]
        installed = task.facts.environment is not None
        for seed in range(FEW_HASH_SEEDS) if installed else [*range(HASH_SEEDS), None]:
            name = "reference" if seed is None else f"reference, hash seed {seed}"
            yield KnownAttempt(name, "accepted", solution, hash_seed=seed, complaints=lambda grade: refused)
        yield KnownAttempt("null", "rejected", complaints=lambda grade: _wrong_before(task, grade))
        for name, files in self.stubs(task).items():
            yield KnownAttempt(name, "rejected", submission_of(task, files), quick=True)

    def stubs(self, task: Task) -> dict[str, dict[str, bytes | None]]:
        """Files that only look like a solution, each of which has to be rejected."""
        made = {f"stub {value}": stub(task, value) for value in stub_values(task, STUBS)}
        return {name: files for name, files in made.items() if files}

    def stub(self, task: Task, rng: random.Random) -> Mapping[str, bytes | None]:
        """One of the files that somebody would write who has no idea."""
        return plausible_stub(task, rng)

    def accepted_answers(self, task: Task) -> Sequence[str]:
        """What is right to say, where the task asks a question."""
        return ()

    def subjects(self, task: Task) -> Sequence[str]:
        """What the task is about, as path:name: tasks about the same are on one side of a split."""
        return task.facts.deleted

    def submitted_tests(self, task: Task) -> set[str]:
        """Tests that are part of the work, so that changes to them may reach the grader."""
        return set()

    def moved_files(self, task: Task) -> dict[str, str]:
        """For a file of the solution, where it was in the workspace, where that is elsewhere."""
        return {}

    def describe(self, task: Task) -> tuple[str, str]:
        """What is to be written, and what to say once it is."""
        names = " and ".join(symbol.partition(":")[2] for symbol in task.facts.deleted) or "the missing part"
        return names, f"Restored {names}."


def _wrong_before(task: Task, grade: Grade) -> Iterator[str]:
    """Tests that do not behave on the untouched workspace as the task says."""
    facts = task.facts
    passing = [name for name in facts.fail_to_pass if grade.tests.get(name) == "passed"]
    failing = [name for name in facts.pass_to_pass if grade.tests.get(name, "passed") != "passed"]
    if passing:
        yield f"{', '.join(passing[:3])} should fail before the work is done"
    if failing:
        yield f"{', '.join(failing[:3])} should pass before the work is done"
    # Of a test with many parameters only some are graded (`test_plan.required_ids`): the others say nothing.
    held_out = [grade.tests[name] for name in facts.held_out if name in grade.tests]
    if held_out and all(outcome == "passed" for outcome in held_out):
        yield "every held-out test passes before the work is done"
