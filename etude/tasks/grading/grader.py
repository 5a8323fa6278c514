"""Grades files by a task's tests, in a fresh sandbox that the agent never touched: plan, run, verdict.

Over the task's own workspace lie only the submitted files. The tests come from the task, through a pipe, and are never
on a disk there. `test_plan` draws what is run, `sandbox_side/` runs it and `verdict` reads what came of it. What the
agent's code does (fail, hang, crash, lie) is a grade. What the machinery does is a `GraderFailure` or a
`SandboxFailure`, and nobody's score.
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
import math
import random
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from etude.core.errors import EtudeError
from etude.core.settings import GraderSettings
from etude.sandbox.base import WORKSPACE, CommandResult, Layer, RunsApart, SandboxLimits
from etude.sandbox.hosts import StoringHost
from etude.tasks.environment.layers import data_layers, inside_layer, installation, program, task_layers, task_variables
from etude.tasks.environment.services import PROCESSES, Service, as_job
from etude.tasks.format.task import Task
from etude.tasks.grading.submission import Submission, submission_of
from etude.tasks.grading.test_plan import GradingPlan, draw, header, repository_sources
from etude.tasks.grading.verdict import Caught, Grade, NothingToGrade, Report, already_failed, caught, verdict
from etude.tasks.grading.withheld.answers import FILE as ANSWERS
from etude.tasks.grading.withheld.answers import refuse_old
from etude.tasks.sandbox_side.start_services import NOT_UP, SECONDS
from etude.tasks.sandbox_side.test_process import LENGTH
from etude.tasks.sandbox_side.tests_in_memory import FOLDER

RUNNER: Final = "etude.tasks.sandbox_side.grade_process"  # what a host should load before it starts (`preload`)
GRACE: Final = 20.0  # seconds for the runner to report after its own deadline
MAX_REPORT: Final = 32 << 20  # bytes
# Of tests/: never on the sandbox's disk.
NO_DATA: Final = (".py", "test.sh", "test.bat", "ids.txt", "Dockerfile", ANSWERS)

FailureCause = Literal["report", "killed", "deadline", "service", "busy"]


class GraderFailure(EtudeError):
    """The grader failed, not the rollout: that becomes Void, never a reward."""

    def __init__(self, cause: FailureCause, message: str) -> None:
        super().__init__(message)
        self.cause: FailureCause = cause


@dataclass(frozen=True)
class GradeJob:
    """What is graded, where, and how that differs from the usual."""

    task: Task
    host: StoringHost
    submission: Submission
    settings: GraderSettings
    answer: str = ""  # the agent's last message
    rng: random.Random | None = None  # what is drawn; None: nobody can foresee it
    hash_seed: int | None = None  # of a new interpreter, which starts more slowly than a warm one
    order: int | None = None  # shuffles a repository's tests, which else run as they stand; a kata's always are
    env: Mapping[str, str] = field(default_factory=dict)  # variables beside the task's own
    over: Sequence[Layer] = ()  # layers over the task's own
    quick: bool = False  # stops once it cannot pass any more: `passed` is the same, the rest is incomplete


async def grade_by_tests(job: GradeJob) -> Grade:
    """Grades the submitted files by the task's tests, each test process in a sandbox of its own.

    An accusation, and time that was spent waiting, count only where the task's own solution fares better.
    """
    started = time.monotonic()
    refuse_old(job.task)
    task, run = job.task, TestRun(job)
    grade, found = await run.grade(job.submission)
    # "time" can also mean processor time, which a busy machine does not use up.
    late = grade.kind == "time" and time.monotonic() - started >= run.seconds
    # Less than half of the wall time on a processor: it waited, for a lock or for the machine.
    waited = late and grade.cpu_seconds < run.seconds / 2 and not job.quick
    # The reference costs a second grading, so it is asked only where its answer can change the outcome.
    if len(task.solution) and (waited or (grade.kind == "tampering" and found)):
        answer = submission_of(task, task.reference)
        # The task's own solution is what was graded where its files are: its grade is known.
        same = answer.files == job.submission.files and not waited
        reference, by_reference = (grade, found) if same else await run.grade(answer)
        if waited and reference.kind == "time":
            raise GraderFailure("busy", f"the machine is too busy: {task.name}'s own solution ran out of time too")
        # What the reference lets pass as well is no evidence: objects that equal more than they should, for example.
        if excused := found & by_reference:
            grade, _ = await run.grade(job.submission, excused)
    return grade


class TestRun:
    """One plan for a task's tests, and where it is run. The same plan grades the submission and the reference."""

    def __init__(self, job: GradeJob, plan: GradingPlan | None = None) -> None:
        task, host, settings = job.task, job.host, job.settings
        self.job, self.task = job, task
        self._reported: dict[Submission, tuple[list[Report], bool, list[list[str]]]] = {}
        self.plan: GradingPlan = plan or draw(task, job.rng)
        installed = task.facts.environment
        self.seconds = min(settings.seconds, task.config.verifier.timeout_sec)
        # A repository's own tests may need all of their time; what a kata needs is known.
        self.cpu_seconds = math.ceil(self.seconds) if installed else settings.cpu_seconds
        self.runner_options: tuple[str, ...] = ()
        self.services: tuple[Service, ...] = ()
        if installed:
            layout = installation(task, host)
            self.runner_options, self.services = layout.options, layout.services
        # A database brings its own processes and threads, which are not the tests' to account for.
        processes = settings.processes + PROCESSES * len(self.services)
        self.limits = SandboxLimits(memory=settings.memory_mb << 20, disk=settings.disk_mb << 20, processes=processes)
        self.python = installed.python if installed else settings.python
        # A hash seed is read when an interpreter starts, so a warm one cannot have another.
        self.warm = job.hash_seed is None and not self.python and RUNNER in host.preload
        seed = {} if job.hash_seed is None else {"PYTHONHASHSEED": str(job.hash_seed)}
        self.env = task_variables(task) | seed | dict(job.env)
        ours = [] if self.warm else [inside_layer(host.store)]
        self.layers = [*task_layers(task, host), *_data_layers(task, host), *ours, *job.over]

    async def grade(self, submission: Submission, excused: Collection[Caught] = ()) -> tuple[Grade, set[Caught]]:
        """The grade of these files, and what passed that should not have."""
        # What is excused changes how reports are read and, unless a run may end early (`quick`), not what they are.
        if self.job.quick or not excused or submission not in self._reported:
            self._reported[submission] = await self.reports(submission, excused)
        reports, out_of_memory, refused = self._reported[submission]
        try:
            # In a thread: what was recorded is hostile, and a search for a pattern may take its whole time limit.
            grade = await asyncio.to_thread(verdict, self.plan, reports, out_of_memory=out_of_memory, excused=excused)
        except NothingToGrade as error:
            raise GraderFailure("report", f"the tests of {self.task.name} could not be run: {error}") from error
        grade = dataclasses.replace(grade, refused=tuple((path, why) for path, why in refused))
        return grade, caught(self.plan, reports, grade)

    async def reports(
        self, submission: Submission, excused: Collection[Caught] = ()
    ) -> tuple[list[Report], bool, list[list[str]]]:
        """What each test process reported; whether memory ran out; files that could not be laid out, and why."""
        files = {
            each.path: None if each.data is None else [base64.b64encode(each.data).decode(), each.executable]
            for each in submission.files
        }
        head = header(self.plan, self.task, files, cpu_seconds=self.cpu_seconds)
        head |= {"options": self.runner_options, "order": self.job.order, "services": as_job(self.services)}
        reports: list[Report] = []
        out_of_memory, refused = False, list[list[str]]()
        deadline = time.monotonic() + self.seconds
        for part in self.plan.parts:
            left = deadline - time.monotonic()
            own = {"mark": part.mark, "tests": part.tests, "run": part.run}
            parts = _frame(head | {"seconds": max(left, 0.1)}) + _frame(own)
            # The nonce comes last in the stream: it is read when all processes that ran the agent's code are dead.
            result = await self._run(parts + self.plan.nonce.encode(), left + (SECONDS if self.services else 0.0))
            report = _report(self.plan, result)
            deadline += report["serving"]  # the tests have all of their time
            out_of_memory, refused = out_of_memory or result.oom, report["refused"]
            reports += [report["tests"]] if report["tests"] else []
            if not reports or reports[-1]["ended"] != "exit 0":
                break  # the others would report nothing new
            if self.job.quick and already_failed(part, reports[-1], excused):
                break
        return reports, out_of_memory, refused

    async def _run(self, job: bytes, seconds: float) -> CommandResult:
        """The runner, forked from a process that has it loaded, or started from its archive."""
        # As -I does, but for the environment, which is ours or the task's.
        cold = [self.python or sys.executable, "-P", "-s", "-S", "-B", "-c", program(RUNNER)]
        # The runner has a deadline of its own and reports at it; only a runner that hangs meets this one.
        timeout = seconds + GRACE
        async with await self.job.host.start(self.layers, limits=self.limits) as sandbox:
            if not isinstance(sandbox, RunsApart):
                return await sandbox.run(cold, env=self.env, stdin=job, timeout=timeout, max_output=MAX_REPORT)
            what = RUNNER if self.warm else cold
            return await sandbox.run_apart(what, env=self.env, stdin=job, timeout=timeout, max_output=MAX_REPORT)


def _report(plan: GradingPlan, result: CommandResult) -> dict[str, Any]:
    """What the runner reported; only what starts with the nonce is a report."""
    nonce = plan.nonce.encode()
    if result.stdout.startswith(nonce):
        try:
            report: dict[str, Any] = json.loads(result.stdout[len(nonce) :])
            return report
        except ValueError:
            raise GraderFailure("report", "the grader's report is cut short") from None
    said = result.stderr.decode(errors="replace").strip().splitlines()
    if result.code == NOT_UP and said:
        raise GraderFailure("service", said[-1][:500])
    # Out of memory the kernel may choose the runner itself: still the tested code's doing, and a score.
    if result.oom:
        return {"refused": [], "serving": 0.0, "tests": None}
    if result.timed_out:
        raise GraderFailure("deadline", f"the grader gave no report within {GRACE:g} s of its deadline")
    why = f"it was ended by signal {-result.code}" if result.code < 0 else f"it ended with {result.code}"
    raise GraderFailure(
        "killed" if result.code < 0 else "report",
        f"the grader gave no report: {why}{': ' + said[-1][:300] if said else ''}",
    )


def _frame(value: Any) -> bytes:
    body = json.dumps(value).encode()
    return LENGTH.pack(len(body)) + body


def _data_layers(task: Task, host: StoringHost) -> list[Layer]:
    """Files beside the tests that are no tests. The tested code can read them too."""
    if task.facts.environment is None:
        return data_layers(task, host, FOLDER, lambda path: path.endswith(NO_DATA))
    sources = {*repository_sources(task), *NO_DATA}
    return data_layers(task, host, WORKSPACE, lambda path: path in sources)  # as they lie in the repository
