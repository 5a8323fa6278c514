"""Whether an attempt solved its task: tests run in a fresh sandbox that the agent never touched.

Over the task's own workspace lie only the agent's changes to allowed paths. The tests come from the task, through a
pipe, and are never on a disk there. `inside/` runs them; `plan` draws what is run and `verdict` reads what came of
it. What the agent's code does (fail, hang, crash, lie) is a grade. What the machinery does is a `GraderFailure` or a
`SandboxFailure`, and nobody's score.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import random
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, Literal

from etude.core.errors import EtudeError
from etude.core.settings import GraderSettings
from etude.sandbox.base import WORKSPACE, CommandResult, Layer, RunsApart, Sandbox, SandboxLimits
from etude.sandbox.hosts import StoringHost
from etude.tasks.environment.layers import data_layers, inside_layer, installation, program, task_layers, task_variables
from etude.tasks.environment.services import ROOM, as_told
from etude.tasks.format.task import Task
from etude.tasks.grading.submission import Carried, Submission, carried_files
from etude.tasks.grading.test_plan import TestPlan, draw, header, repository_sources
from etude.tasks.grading.verdict import Broken, Caught, Grade, caught, says_no, verdict
from etude.tasks.kinds.answer import grade_answer
from etude.tasks.kinds.docstrings import grade_documentation
from etude.tasks.kinds.foreign_script import grade_by_script, judged_by_script
from etude.tasks.kinds.mutants import grade_tests
from etude.tasks.sandbox_side.start_services import NOT_UP, SECONDS
from etude.tasks.sandbox_side.test_process import LENGTH
from etude.tasks.sandbox_side.tests_in_memory import FOLDER

RUNNER: Final = "etude.tasks.sandbox_side.grade_process"  # what a host should load before it starts (`preload`)
GRACE: Final = 20.0  # seconds for the runner to report after its own deadline
MAX_REPORT: Final = 32 << 20  # bytes
NO_DATA: Final = (".py", "test.sh", "test.bat", "ids.txt", "Dockerfile")  # of tests/: never on the sandbox's disk

FailureCause = Literal["report", "killed", "deadline", "service"]


class GraderFailure(EtudeError):
    """The grader failed, not the attempt: a rollout becomes Void, never a reward."""

    def __init__(self, cause: FailureCause, message: str) -> None:
        super().__init__(message)
        self.cause: FailureCause = cause


async def grade(
    task: Task,
    host: StoringHost,
    changes: Submission | Sequence[Carried],
    settings: GraderSettings | None = None,
    *,
    rng: random.Random | None = None,
    hash_seed: int | None = None,
    order: int | None = None,
    env: Mapping[str, str] | None = None,
    over: Sequence[Layer] = (),
    quick: bool = False,
    answer: str = "",
) -> Grade:
    """Grades the task with these changes made, each judge in a sandbox of its own; a foreign task by its script.

    A task that asks for an `answer` is graded by the agent's last words alone, one that asks for tests or docstrings
    by what those notice.

    A `hash_seed` starts a new interpreter, which is slower; `order` shuffles a repository's tests, which else run as
    they stand (a kata's are always shuffled); `env` and layers `over` the others add to what the tests find. `quick`
    asks no further judge after one that says no: whether it passed is the same, the rest is incomplete.

    An accusation, and time that was spent waiting, count only where the task's own solution fares better.
    """
    started = time.monotonic()
    settings = settings or GraderSettings()
    changes = changes if isinstance(changes, Submission) else Submission(tuple(changes))
    if task.facts.answer is not None:
        return dataclasses.replace(
            grade_answer(task, answer),
            refused=tuple((each.path, each.why) for each in changes.refused),
            backend=host.capabilities.backend,
            seconds=time.monotonic() - started,
        )
    if task.facts.testing is not None:
        return await grade_tests(task, host, changes, settings, rng=rng, quick=quick)
    if task.facts.documentation is not None:
        return await grade_documentation(task, host, changes, settings, rng=rng, quick=quick)
    if judged_by_script(task):
        return await grade_by_script(task, host, changes, settings)
    plan = draw(task, rng)
    installed = task.facts.environment
    seconds = min(settings.seconds, task.config.verifier.timeout_sec)
    # A repository's own tests may need all of their time; what a kata needs is known.
    cpu_seconds = math.ceil(seconds) if installed else settings.cpu_seconds
    layout = installation(task, host) if installed else None
    options, services = (layout.options, layout.services) if layout else ((), ())
    processes = settings.processes + ROOM * len(services)
    limits = SandboxLimits(memory=settings.memory_mb << 20, disk=settings.disk_mb << 20, processes=processes)
    python = installed.python if installed else settings.python
    warm = hash_seed is None and not python and RUNNER in host.preload
    env = task_variables(task) | ({} if hash_seed is None else {"PYTHONHASHSEED": str(hash_seed)}) | dict(env or {})
    layers = [*task_layers(task, host), *_data_layers(task, host), *([] if warm else [inside_layer(host.store)]), *over]

    async def judged(changes: Submission, excused: Collection[Caught] = ()) -> tuple[Grade, set[Caught]]:
        told = header(plan, task, _files(changes), cpu_seconds=cpu_seconds)
        judges: list[Mapping[str, Any]] = []
        out_of_memory, unplaced = False, []
        deadline = time.monotonic() + seconds
        for part in plan.parts:
            left = deadline - time.monotonic()
            given = {"seconds": max(left, 0.1), "options": options, "order": order, "services": as_told(services)}
            job = _frame(told | given)
            job += _frame({"mark": part.mark, "tests": part.tests, "run": part.run}) + plan.nonce.encode()
            async with await host.start(layers, limits=limits) as sandbox:
                result = await _run(sandbox, job, left + (SECONDS if services else 0.0), warm, python, env)
            report = _report(plan, result)
            deadline += report["serving"]  # the tests have all of their time
            out_of_memory, unplaced = out_of_memory or result.oom, report["refused"]
            judges += [report["judge"]] if report["judge"] else []
            if not judges or judges[-1]["ended"] != "exit 0" or (quick and says_no(part, judges[-1], excused)):
                break  # the others would tell nothing new
        try:
            grade = verdict(plan, judges, out_of_memory=out_of_memory, excused=excused)
        except Broken as error:
            raise GraderFailure("report", f"the tests of {task.name} could not be run: {error}") from error
        refused = [*((each.path, each.why) for each in changes.refused), *map(tuple, unplaced)]
        return dataclasses.replace(grade, refused=tuple(refused)), caught(plan, judges, grade)

    grade, found = await judged(changes)
    late = grade.kind == "time" and time.monotonic() - started >= seconds
    waited = late and grade.cpu_seconds < seconds / 2 and not quick
    if len(task.solution) and (waited or (grade.kind == "tampering" and found)):
        reference, by_reference = await judged(carried_files(task, task.reference))
        if waited and reference.kind == "time":
            raise GraderFailure("deadline", f"the machine is too busy: {task.name}'s own solution ran out of time too")
        # What the reference lets pass as well is no evidence: objects that equal more than they should, for example.
        if excused := found & by_reference:
            grade, _ = await judged(changes, excused)
    return dataclasses.replace(
        grade,
        apart=plan.apart,
        backend=host.capabilities.backend,
        seconds=time.monotonic() - started,
    )


async def _run(
    sandbox: Sandbox, job: bytes, seconds: float, warm: bool, python: str, env: Mapping[str, str]
) -> CommandResult:
    """The runner, forked from a process that has it loaded, or started from its archive."""
    # As -I does, but for the environment, which is ours or the task's.
    cold = [python or sys.executable, "-P", "-s", "-S", "-B", "-c", program(RUNNER)]
    timeout = seconds + GRACE
    if not isinstance(sandbox, RunsApart):
        return await sandbox.run(cold, env=env, stdin=job, timeout=timeout, max_output=MAX_REPORT)
    return await sandbox.run_apart(RUNNER if warm else cold, env=env, stdin=job, timeout=timeout, max_output=MAX_REPORT)


def _report(plan: TestPlan, result: CommandResult) -> dict[str, Any]:
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
    if result.oom:
        return {"refused": [], "serving": 0.0, "judge": None}
    if result.timed_out:
        raise GraderFailure("deadline", f"the grader gave no report within {GRACE:g} s of its deadline")
    why = f"it was ended by signal {-result.code}" if result.code < 0 else f"it ended with {result.code}"
    raise GraderFailure(
        "killed" if result.code < 0 else "report",
        f"the grader gave no report: {why}{': ' + said[-1][:300] if said else ''}",
    )


def _files(changes: Submission) -> dict[str, list[Any] | None]:
    return {
        each.path: None if each.data is None else [base64.b64encode(each.data).decode(), each.executable]
        for each in changes.carried
    }


def _frame(value: Any) -> bytes:
    body = json.dumps(value).encode()
    return LENGTH.pack(len(body)) + body


def _data_layers(task: Task, host: StoringHost) -> list[Layer]:
    """Files beside the tests that are no tests. The tested code can read them too."""
    if task.facts.environment is None:
        return data_layers(task, host, FOLDER, lambda path: path.endswith(NO_DATA))
    sources = {*repository_sources(task), *NO_DATA}
    return data_layers(task, host, WORKSPACE, lambda path: path in sources)  # as they lie in the repository
