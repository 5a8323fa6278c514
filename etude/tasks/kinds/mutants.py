"""Tasks whose outcome is a file of tests: it has to pass with the code as it is, and to fail with mistakes in it.

Each run has a sandbox of its own, over the task's workspace, with nothing of the agent's but that file. The code runs
as it is under two hash seeds and orders, then in other words (`rewording`), which no test may notice, then so with each
mistake; the files on the disk are the same each time, only what is imported differs. Once enough were noticed, some
runs are made again: a test that fails now and then is no test. The agent's tests say themselves how they came out, and
could say anything; but to gain by it they would have to know which run is which.
"""

from __future__ import annotations

import ast
import hashlib
import json
import math
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from etude.core.settings import GraderSettings
from etude.sandbox.base import CommandResult, Layer, SandboxLimits
from etude.sandbox.hosts import StoringHost
from etude.tasks.environment.layers import installation, task_layers, task_variables
from etude.tasks.environment.services import ROOM, ServiceFailure, as_told
from etude.tasks.environment.suite_run import encoded, start_suite
from etude.tasks.format.task import Task
from etude.tasks.grading.equivalent_rewrites import reworded
from etude.tasks.grading.submission import Submission
from etude.tasks.grading.verdict import FAILED, MOST_TEXT, STATUSES, Grade, Kind
from etude.tasks.sandbox_side.start_services import NOT_UP, SECONDS

FOLDER: Final = "mutants"  # of tests/
MAX_OUTPUT: Final = 8 << 20  # bytes of lines
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
        name, _, place = rest.partition("/")
        if first == FOLDER and place:
            found.setdefault(name, {})[place] = task.tests[path]
    return dict(sorted(found.items()))


def wanted(task: Task) -> int:
    """How many mistakes have to be noticed."""
    asked = task.facts.testing or task.facts.documentation
    assert asked is not None
    return math.ceil(asked.share * len(mutants(task)) - 1e-9)


async def grade_tests(
    task: Task,
    host: StoringHost,
    changes: Submission,
    settings: GraderSettings,
    *,
    rng: random.Random | None = None,
    quick: bool = False,
) -> Grade:
    """Grades the file of tests among these changes. `quick` stops once it cannot pass any more."""
    testing = task.facts.testing
    assert testing is not None
    refused = tuple((each.path, each.why) for each in changes.refused)
    text = next((each.data for each in changes.carried if each.path == testing.file), None)
    if text is None:
        return Grade(False, "tests", f"there is no {testing.file}", {testing.file: "missing"}, refused=refused)
    found = await grade_file(task, host, testing.file, text, settings, rng=rng, quick=quick)
    return replace(found, refused=refused)


async def grade_file(
    task: Task,
    host: StoringHost,
    file: str,
    text: bytes,
    settings: GraderSettings,
    *,
    rng: random.Random | None = None,
    quick: bool = False,
    unread: str = "",
) -> Grade:
    """Grades these tests, which lie in `file` while they run, by the task's mistakes. What has a file name that starts
    with `unread` cannot read the code."""
    started = time.monotonic()
    bench = _Bench(task, host, file, text, settings, rng or random.SystemRandom(), unread)
    tests, kind, reason = await bench.judge(quick)
    return Grade(
        passed=kind == "passed",
        kind=kind,
        reason=reason,
        tests=tests,
        details=bench.details,
        checked=len(bench.mutants),
        backend=host.capabilities.backend,
        seconds=time.monotonic() - started,
    )


class _Bench:
    """Where one file of tests is tried."""

    def __init__(
        self,
        task: Task,
        host: StoringHost,
        file: str,
        text: bytes,
        settings: GraderSettings,
        rng: random.Random,
        unread: str,
    ) -> None:
        self.task, self.host, self.rng, self.unread = task, host, rng, unread
        self.file, self.text = file, text
        self.mutants = mutants(task)
        paths = sorted({path for files in self.mutants.values() for path in files})
        self.code = {path: task.workspace[path] for path in paths}
        self.seconds = min(settings.seconds, task.config.verifier.timeout_sec)
        memory, disk = settings.memory_mb << 20, settings.disk_mb << 20
        self.layers: list[Layer] = task_layers(task, host)
        layout = installation(task, host)
        self.options, self.services = layout.options, layout.services
        processes = settings.processes + ROOM * len(self.services)
        self.limits = SandboxLimits(memory=memory, disk=disk, processes=processes, cpu_seconds=math.ceil(self.seconds))
        self.details: dict[str, str] = {}

    async def judge(self, quick: bool) -> tuple[dict[str, str], Kind, str]:
        """The outcome of each run, and what they come to."""
        tests = dict.fromkeys(["as it is", "in another order", "in other words", *self.mutants], "missing")
        for name, code, shuffled in (
            ("as it is", self.code, False),
            ("in another order", self.code, True),
            ("in other words", self._reworded(), False),
        ):
            run = await self._run(code, shuffled)
            tests[name] = "passed" if run.fine else "failed"
            if not run.fine:
                return tests, *self._blame(name, run)
        need = wanted(self.task)
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
        """Once more, so that dice do not pass."""
        for name in noticed:
            if not await self._notices(name):
                tests[name] = "failed"
                return tests, "tests", "a mistake is noticed once and then not: the tests do not always say the same"
        run = await self._run(self._reworded(), shuffled=True)
        if not run.fine:
            tests["in other words"] = "failed"
            return tests, *self._blame("in other words", run)
        return tests, "passed", ""

    async def _notices(self, name: str) -> bool:
        """Whether a test fails. One that never ends, or takes its process with it, has told nothing."""
        run = await self._run(self._reworded(self.mutants[name]), False, until_failure=True)
        return bool(run.failing)

    def _reworded(self, mistake: Mapping[str, bytes] | None = None) -> dict[str, bytes]:
        """Whole or with a mistake: who only sees that these are other words cannot tell the two apart."""
        code = {**self.code, **(mistake or {})}
        return {path: reworded(data.decode("utf-8-sig"), self.rng).encode() for path, data in code.items()}

    def _blame(self, name: str, run: _Run) -> tuple[Kind, str]:
        kind, why = run.why_not()
        self.details[name] = why[:MOST_TEXT]
        return kind, f"with the code {name}: {why}"

    async def _run(self, code: Mapping[str, bytes], shuffled: bool, until_failure: bool = False) -> _Run:
        installed = self.task.facts.environment
        assert installed is not None
        job = {
            "files": encoded({self.file: self.text}),
            "code": {path: data.decode("utf-8-sig") for path, data in code.items()},
            "unread": self.unread,
            "variants": None,
            "places": [self.file],
            "tests": None,
            "options": self.options,
            "paths": installed.paths,
            "order": self.rng.randrange(1 << 30) if shuffled else None,
            "trace": None,
            "services": as_told(self.services),
            "most_failures": 1 if until_failure else 1_000_000,
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
            self.seconds = min(self.seconds, 3 * result.seconds + PATIENCE)
        return run


def _read(result: CommandResult) -> _Run:
    outcomes: dict[str, str] = {}
    texts: dict[str, str] = {}
    ready = ended = False
    for line in result.stdout.splitlines():
        try:
            name, status, text = json.loads(line)
        except (ValueError, TypeError):
            continue
        if status == "ready":
            ready = True
        elif status == "done":
            ended = True
        elif isinstance(name, str) and status in STATUSES:
            outcomes[name], texts[name] = status, str(text)[:MOST_TEXT]
    if result.code == NOT_UP and not ready:
        said = result.stderr.decode(errors="replace").strip().splitlines()
        raise ServiceFailure(said[-1][:500] if said else "a service did not come up")
    return _Run(outcomes, texts, ended and not result.timed_out, result)


def bluffs(task: Task) -> dict[str, bytes]:
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
