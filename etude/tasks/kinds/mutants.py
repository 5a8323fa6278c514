"""Grades a file of tests by mutation: it has to pass with the code as it is, and to fail with mistakes in it.

Each run has a sandbox of its own, over the task's workspace, with nothing of the agent's but that file. The code runs
as it is under two hash seeds and orders, then rewritten to do the same (`equivalent_rewrites`), which no test may
notice, then so with each mistake; the files on the disk do the same as what is imported, and have no text. Once
enough were noticed, some runs are made again: a test that fails now and then is no test. The agent's tests say
themselves how they came out, and could say anything; but to gain by it they would have to know which run is which.
"""

from __future__ import annotations

import ast
import json
import math
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from etude.sandbox.base import WORKSPACE, CommandResult, Layer, SandboxLimits
from etude.tasks.environment.layers import installation, task_layers, task_variables
from etude.tasks.environment.services import PROCESSES, ServiceFailure, as_job
from etude.tasks.environment.suite_run import encoded, start_suite
from etude.tasks.format.function_bodies import functions
from etude.tasks.format.task import TESTS, Task
from etude.tasks.grading.equivalent_rewrites import rewritten
from etude.tasks.grading.grader import GradeJob
from etude.tasks.grading.submission import submission_of
from etude.tasks.grading.verdict import FAILED, MOST_TEXT, STATUSES, Grade, Kind
from etude.tasks.kinds.base import FACTS, Finding, KnownAttempt
from etude.tasks.sandbox_side.start_services import NOT_UP, SECONDS

FOLDER: Final = "mutants"  # of tests/
RUNS: Final = ("as it is", "in another order", "in other words")  # before any mistake
LEAST_MUTANTS: Final = 3  # with fewer, a lucky test would do
MAX_OUTPUT: Final = 8 << 20  # bytes of lines
_PROGRAMS: Final = re.compile(rb"\b(subprocess|multiprocessing|popen|pexpect|spawn\w*|os\.(system|exec\w*))\b")
PATIENCE: Final = 20.0  # seconds more than three times the first run that another may take


@dataclass(frozen=True)
class _Run:
    """What came of one run of the agent's tests."""

    outcomes: dict[str, str]
    texts: dict[str, str]
    ended: bool
    result: CommandResult

    @property
    def failing(self) -> list[str]:
        return [name for name, status in self.outcomes.items() if status in FAILED]

    @property
    def fine(self) -> bool:
        return self.ended and not self.failing and "passed" in self.outcomes.values()

    def why_not(self) -> tuple[Kind, str]:
        """What is wrong with a run that should have been fine."""
        if self.failing:
            said = self.texts.get(self.failing[0], "")
            return "tests", f"{self.failing[0]} fails{f': {said}' if said else ''}"
        if self.result.oom:
            return "memory", "the tests run out of memory"
        if self.result.timed_out:
            return "time", "the tests do not come to their end"
        if not self.ended:
            return "crash", f"the tests end their process with {self.result.code}"
        return "tests", "there is no test that passes"


def mutants(task: Task) -> dict[str, dict[str, bytes]]:
    """The files that each mistake changes, by its name."""
    found: dict[str, dict[str, bytes]] = {}
    for path in task.tests:
        first, _, rest = path.partition("/")
        name, _, changed = rest.partition("/")
        if first == FOLDER and changed:
            found.setdefault(name, {})[changed] = task.tests[path]
    return dict(sorted(found.items()))


def needed(task: Task) -> int:
    """How many mistakes have to be noticed."""
    asked = task.facts.testing or task.facts.documentation
    assert asked is not None
    # Without the small number, a product that is whole but for its last bit would be rounded up.
    return math.ceil(asked.share * len(mutants(task)) - 1e-9)


def lint_mutants(task: Task, table: str, needs: str) -> Iterator[Finding]:
    """What every task needs that is graded by mistakes."""
    if task.facts.environment is None:
        yield Finding(f"{table}-environment", "error", f"{FACTS}.{table}", f"needs an environment to run {needs} in")
    found = mutants(task)
    if len(found) < LEAST_MUTANTS:
        message = f"has {len(found)}; {LEAST_MUTANTS} are the least"
        yield Finding("few-mutants", "error", f"{TESTS}/{FOLDER}", message)
    for name, files in found.items():
        if all(task.workspace.get(path) in (None, data) for path, data in files.items()):
            yield Finding("idle-mutant", "error", f"{TESTS}/{FOLDER}/{name}", "changes no file of the workspace")


def mutant_attempts(task: Task, file: str, stubs: Mapping[str, bytes]) -> Iterator[KnownAttempt]:
    """The tests or examples that were there before notice all; such as say nothing are not accepted."""
    missing = [] if file in task.solution else [f"the solution has no {file}"]

    def missed(grade: Grade) -> list[str]:
        return [*missing, *(f"{each} is not noticed" for each in mutants(task) if grade.tests.get(each) != "passed")]

    solution = submission_of(task, task.reference)  # whose grade is of several hash seeds, and of runs made again
    yield KnownAttempt("reference", "accepted", solution, complaints=missed, decisive=True)
    yield KnownAttempt("null", "rejected")
    for name, data in stubs.items():
        yield KnownAttempt(name, "rejected", submission_of(task, {file: data}), quick=True)


def watched_functions(code: Mapping[str, bytes], mistakes: Mapping[str, Mapping[str, bytes]]) -> dict[str, list[str]]:
    """The functions that any of the mistakes changes, by file: a copy of those would notice them all."""
    found: dict[str, list[str]] = {}
    for path, data in code.items():
        before = _shapes(data)
        changed = {name for files in mistakes.values() if path in files for name in _differing(before, files[path])}
        found[path] = sorted(changed)
    return found


def _differing(before: Mapping[str, str], data: bytes) -> set[str]:
    return {name for name, shape in _shapes(data).items() if before.get(name) != shape}


def _shapes(data: bytes) -> dict[str, str]:
    return {name: ast.dump(node) for name, node in functions(ast.parse(data))}


def starts_programs(task: Task) -> bool:
    """Whether tests of this task may start other programs: where those that were there before do, or the code does."""
    code = {path for files in mutants(task).values() for path in files}
    texts = [*(task.workspace[path] for path in code), *(task.solution[path] for path in task.solution)]
    return any(_PROGRAMS.search(text) for text in texts)


async def grade_file(job: GradeJob, file: str, text: bytes, *, unread: str = "") -> Grade:
    """Grades these tests, which lie in `file` while they run, by the task's mistakes. What has a file name that starts
    with `unread`, or else that file, cannot read the code."""
    runs = _MutantRuns(job, file, text, unread)
    tests, kind, reason = await runs.grade(job.quick)
    return Grade(kind == "passed", kind, reason, tests, runs.details, checked=len(runs.mutants))


class _MutantRuns:
    """Runs of one file of tests over the code and its mistakes."""

    def __init__(self, job: GradeJob, file: str, text: bytes, unread: str) -> None:
        task, host, settings = job.task, job.host, job.settings
        self.task, self.host, self.rng = task, host, job.rng or random.SystemRandom()
        self.file, self.text = file, text
        self.unread = unread or f"{WORKSPACE}/{file}"  # how who may not read the code is called while it runs
        self.mutants = mutants(task)
        paths = sorted({path for files in self.mutants.values() for path in files})
        self.code = {path: task.workspace[path] for path in paths}
        self.watched = watched_functions(self.code, self.mutants)
        self.programs = starts_programs(task)
        self.seconds = min(settings.seconds, task.config.verifier.timeout_sec)
        memory, disk = settings.memory_mb << 20, settings.disk_mb << 20
        self.layers: list[Layer] = task_layers(task, host)
        layout = installation(task, host)
        self.options, self.services = layout.options, layout.services
        processes = settings.processes + PROCESSES * len(self.services)
        self.limits = SandboxLimits(memory=memory, disk=disk, processes=processes, cpu_seconds=math.ceil(self.seconds))
        self.details: dict[str, str] = {}

    async def grade(self, quick: bool) -> tuple[dict[str, str], Kind, str]:
        """The outcome of each run, and what they come to."""
        tests = dict.fromkeys([*RUNS, *self.mutants], "missing")
        unharmed = ((self.code, False), (self.code, True), (self._rewritten(), False))
        for name, (code, shuffled) in zip(RUNS, unharmed, strict=True):
            run = await self._run(code, shuffled)
            tests[name] = "passed" if run.fine else "failed"
            # The first run that is not fine ends it: it costs one start instead of a dozen.
            if not run.fine:
                return tests, *self._blame(name, run)
        need = needed(self.task)
        # In random order, so that a quick grade does not always look at the same ones.
        for name in self.rng.sample(list(self.mutants), len(self.mutants)):
            tests[name] = "passed" if await self._notices(name) else "failed"
            missed = sum(status == "failed" for status in tests.values())
            if quick and missed > len(self.mutants) - need:
                break
        noticed = [name for name in self.mutants if tests[name] == "passed"]
        if len(noticed) < need:
            return tests, "tests", f"{len(noticed)} of {len(self.mutants)} mistakes are noticed, {need} have to be"
        return await self._confirm(tests, noticed[:need])

    async def _confirm(self, tests: dict[str, str], noticed: list[str]) -> tuple[dict[str, str], Kind, str]:
        """Once more, so that tests that fail at random do not pass."""
        for name in noticed:
            if not await self._notices(name):
                tests[name] = "failed"
                return tests, "tests", "a mistake is noticed once and then not: the tests do not always say the same"
        run = await self._run(self._rewritten(), shuffled=True)
        if not run.fine:
            tests["in other words"] = "failed"
            return tests, *self._blame("in other words", run)
        return tests, "passed", ""

    async def _notices(self, name: str) -> bool:
        """Whether a test fails. One that never ends, or takes its process with it, has noticed nothing."""
        run = await self._run(self._rewritten(self.mutants[name]), False)
        return bool(run.failing)

    def _rewritten(self, mistake: Mapping[str, bytes] | None = None) -> dict[str, bytes]:
        """Whole or with a mistake: who only sees that the text is another one cannot distinguish the two."""
        code = {**self.code, **(mistake or {})}
        return {path: rewritten(data.decode("utf-8-sig"), self.rng).encode() for path, data in code.items()}

    def _blame(self, name: str, run: _Run) -> tuple[Kind, str]:
        kind, why = run.why_not()
        self.details[name] = why[:MOST_TEXT]
        return kind, f"with the code {name}: {why}"

    async def _run(self, code: Mapping[str, bytes], shuffled: bool) -> _Run:
        installed = self.task.facts.environment
        assert installed is not None
        job = {
            "files": encoded({self.file: self.text}),
            "code": {path: data.decode("utf-8-sig") for path, data in code.items()},
            "unread": self.unread,
            "watched": self.watched,
            "programs": self.programs,
            "variants": None,
            "places": [self.file],
            "tests": None,
            "options": self.options,
            "paths": installed.paths,
            "order": self.rng.randrange(1 << 30) if shuffled else None,
            "trace": None,
            "services": as_job(self.services),
            # The same in every run, as tests can read it: one failure decides each of them.
            "most_failures": 1,
        }
        env = task_variables(self.task) | {"PYTHONHASHSEED": str(self.rng.randrange(1 << 30))}
        result = await start_suite(
            self.host,
            self.layers,
            installed.python,
            job,
            env=env,
            timeout=self.seconds + (SECONDS if self.services else 0.0),
            limits=self.limits,
            max_output=MAX_OUTPUT,
        )
        run = _read(result)
        if run.fine:
            # Mistakes can loop for ever; what three times the first run does not end has noticed nothing.
            self.seconds = min(self.seconds, 3 * result.seconds + PATIENCE)
        return run


def _read(result: CommandResult) -> _Run:
    outcomes: dict[str, str] = {}
    texts: dict[str, str] = {}
    ready = ended = False
    for line in result.stdout.splitlines():
        try:
            name, status, text = json.loads(line)
        except (ValueError, TypeError, RecursionError):
            continue
        if status == "ready":
            ready = True
        elif status == "done":
            ended = True
        elif isinstance(name, str) and status in STATUSES:
            outcomes[name], texts[name] = status, str(text)[:MOST_TEXT]
    # Before `ready` nothing of the agent's ran, so it is the machinery's failure.
    if result.code == NOT_UP and not ready:
        said = result.stderr.decode(errors="replace").strip().splitlines()
        raise ServiceFailure(said[-1][:500] if said else "a service did not come up")
    return _Run(outcomes, texts, ended and not result.timed_out, result)
