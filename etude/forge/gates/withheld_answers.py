"""The gate for answers: a made task's tests lose them, and what they are worth has to make forging hopeless.

A test process that shares its memory with the tested code can be made to report anything, so it must not know what to
report (`tasks/grading/withheld`). What it can still see, an exception where a value is wrong, must not be enough to
find the right one. Tasks whose outcome is something else than a change that values show, a rename for example, keep
changed tests and canaries. Knows no origin.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final

from etude.core.errors import EtudeError
from etude.core.settings import GraderSettings
from etude.forge.environments.environment import Environment
from etude.forge.environments.suite_run import run_variants
from etude.forge.gates.attacks.base import Files
from etude.forge.gates.attacks.oracles import (
    ALL_SIGNS,
    CANDIDATES,
    FEW_CANDIDATES,
    ONE_PASSES,
    unknown_constant,
    with_value,
)
from etude.sandbox.hosts import StoringHost
from etude.sandbox.store.layers import Store, default_store
from etude.tasks.environment.layers import workspace_layer
from etude.tasks.format import config
from etude.tasks.format.task import CONFIG, TESTS, Task
from etude.tasks.grade import grade
from etude.tasks.grading.grader import GradeJob
from etude.tasks.grading.submission import Submission, submission_of
from etude.tasks.grading.withheld.answers import FILE
from etude.tasks.grading.withheld.record import with_answers
from etude.tasks.kinds.code_change import CodeChange
from etude.tasks.kinds.table import kind_of

LEAST_BITS: Final = 20.0  # over the held-out tests: one in a million who guess
WITHHOLDING: Final = ("pytest", "node")  # suites whose tests can lose their answers
TOO_FEW: Final = "too few answers can be withheld"
ORACLE_ACCEPTED: Final = "the tests tell which value is right"
MOST_CONSTANTS: Final = 6  # of the deleted code, each of which costs a grade with each test run a dozen times
MOST_LATE: Final = 2  # oracles of a task that run out of time, behind which no other is tried: tests wait
MOST_GRADED: Final = 5  # values of a constant that visible tests pass with
VISIBLE_SECONDS: Final = 5.0  # more than twice the suite, for the visible tests with one value


def can_withhold(task: Task) -> bool:
    """Whether the values that tests compare are what the task asks for."""
    installed = task.facts.environment is not None and task.facts.suite in WITHHOLDING
    return installed and type(kind_of(task)) is CodeChange


async def withhold(
    task: Task, host: StoringHost, settings: GraderSettings, others: tuple[Submission, ...] = ()
) -> Task:
    """The task with its answers beside its tests. `others` are further right solutions, whose values have to be right
    as well."""
    return await with_answers(GradeJob(task, host, submission_of(task, task.reference), settings), others)


def too_few(task: Task, least: float = LEAST_BITS) -> str:
    """Why the withheld answers are not enough; nothing where they are."""
    found = task.facts.withheld
    if found is None or found.bits >= least:
        return ""
    return f"{found.bits:g} bits in {found.tests} held-out tests, of {least:g}"


async def tells_answers(task: Task, host: StoringHost, settings: GraderSettings) -> bool:
    """Whether code that lacks one constant, and tries several against the tests in its own process, is accepted, and
    visible tests would not have told it as much."""
    if task.facts.suite != "pytest":
        return False  # who asks is written in Python
    late = 0
    async for which, unseen in asked_constants(task, host, settings, FEW_CANDIDATES):
        asking = unknown_constant(task, which, ALL_SIGNS, FEW_CANDIDATES)
        if asking is None:
            continue
        # All the seconds of a grade: one that the gate ended at 30 was accepted by a grade, which has 60.
        found = await grade(task, host, submission_of(task, asking), settings)
        # What visible tests tell is asked last: it takes them with many values, and most oracles are rejected.
        if found.passed and (unseen or not await visible_tests_tell(task, host, settings, which)):
            return True
        late += found.kind == "time"
        if late == MOST_LATE:
            break
    return False


async def secret_constants(task: Task, host: StoringHost, settings: GraderSettings) -> AsyncIterator[int]:
    """The numbers of constants that tests ask for and visible ones do not tell."""
    async for which, unseen in asked_constants(task, host, settings, CANDIDATES):
        if unseen or not await visible_tests_tell(task, host, settings, which):
            yield which


async def asked_constants(
    task: Task, host: StoringHost, settings: GraderSettings, candidates: int
) -> AsyncIterator[tuple[int, bool]]:
    """The numbers of constants of which a wrong value is rejected, and whether visible tests pass with that value."""
    frozen = [unknown_constant(task, which, candidates=candidates) for which in range(MOST_CONSTANTS)]
    wrong = {which: files for which, files in enumerate(frozen) if files is not None}
    unseen = await _pass_visible_tests(task, host, list(wrong.values()))
    for (which, files), passed in zip(wrong.items(), unseen, strict=True):
        # Where a visible test fails, no grade has to say that the constant is asked for.
        if not passed or not await _is_accepted(task, host, settings, files):
            yield which, passed


async def visible_tests_tell(task: Task, host: StoringHost, settings: GraderSettings, which: int) -> bool:
    """Whether every value of a constant that visible tests pass with is right: it may be found out by running them. Of
    `"%d"` and `"%X"` both are, where numbers are small. One wrong value that fails visible tests proves little, since
    another may not."""
    alone = unknown_constant(task, which, ONE_PASSES)
    # All values in one process first: a process for each takes ten times as long.
    if alone is None or (_has_visible_tests(task) and all(await _pass_visible_tests(task, host, [alone], CANDIDATES))):
        return True
    made = [unknown_constant(task, which, with_value(at)) for at in range(CANDIDATES)]
    frozen = [files for files in made if files is not None]
    passed = await _pass_visible_tests(task, host, frozen)
    left = [files for files, good in zip(frozen, passed, strict=True) if good]
    if len(left) < 2:
        return True
    for files in random.Random(f"{task.name} {which}").sample(left, min(len(left), MOST_GRADED)):
        if not await _is_accepted(task, host, settings, files):
            return False
    return True


async def _is_accepted(task: Task, host: StoringHost, settings: GraderSettings, files: Files) -> bool:
    return (await grade(task, host, submission_of(task, files), settings, quick=True)).passed


def _has_visible_tests(task: Task) -> bool:
    return task.facts.environment is not None and bool(task.facts.fail_to_pass)


async def _pass_visible_tests(
    task: Task, host: StoringHost, submissions: Sequence[Files], times: int = 1
) -> list[bool]:
    """Whether visible tests pass with each, in which they may run so many times: one start for all. They do where there
    is none to ask."""
    installed, tests = task.facts.environment, task.facts.fail_to_pass
    if installed is None or not tests or not submissions:
        return [True] * len(submissions)
    environment = _environment(installed.digest, host)
    each = (2 * environment.seconds + VISIBLE_SECONDS) * times
    layer, timeout = workspace_layer(task, host), len(submissions) * each + 30
    runs = await run_variants(host, environment, layer, submissions, tests=tests, each=each, timeout=timeout)
    return [run.complete and run.passed.issuperset(tests) for run in runs]


def _environment(digest: str, host: StoringHost) -> Environment:
    try:
        return Environment.load(digest, host.store)
    except EtudeError:
        return Environment.load(digest, Store(default_store()))


def save_answers(task: Task, folder: Path) -> None:
    """Into the directory that the task was loaded from."""
    (folder / TESTS / FILE).write_bytes(task.tests[FILE])
    (folder / CONFIG).write_bytes(config.write(task.config, task.facts))
