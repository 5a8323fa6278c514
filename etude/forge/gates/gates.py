"""What a made task has to pass before anybody may use it: cheap questions first, each rejection with its reason.

    lint, not like another task, no leak            without running anything of the repository
    broken                                          exactly the named tests fail in what the agent will see
    reference                                       with the solution everything is green, or all files are, again
    stubs                                           functions that only return something fail; so does an alias
    answers                                         tests lose their answers, which are worth enough to withhold
    grader: reference, null, attacks, an oracle     and the grade that training will give says the same

Of a slow suite the answers come first: they cost less than all of it.

That the suite itself is green, three times under other conditions, is the repository's baseline, found once for all
of its tasks: `green`. Knows no way of making tasks. What the machinery does wrong is raised, never held against a task.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, NoReturn

from etude.core.errors import EtudeError
from etude.core.settings import GraderSettings
from etude.forge.environments.environment import Environment
from etude.forge.environments.suite_run import SuiteRun, run_suite, run_variants
from etude.forge.gates.attacks.base import Files as Changes
from etude.forge.gates.attacks.javascript import script_attacks
from etude.forge.gates.attacks.refactoring import REFACTORING, refactoring_attacks
from etude.forge.gates.withheld_answers import (
    LEAST_BITS,
    ORACLE_ACCEPTED,
    TOO_FEW,
    can_withhold,
    tells_answers,
    too_few,
    withhold,
)
from etude.forge.leaks.audit import audit_leaks
from etude.forge.leaks.deleted_code import Deleted
from etude.sandbox.hosts import StoringHost
from etude.tasks.environment.layers import task_layers, workspace_layer
from etude.tasks.format.file_tree import Files
from etude.tasks.format.task import Task
from etude.tasks.grade import grade
from etude.tasks.grading.grader import NO_DATA, GraderFailure
from etude.tasks.grading.submission import submission_of
from etude.tasks.grading.test_plan import draw
from etude.tasks.grading.verdict import Grade
from etude.tasks.grading.withheld.record import NotRecorded
from etude.tasks.kinds.stubs import stub, stub_values
from etude.tasks.lint import lint

LEAST_BROKEN: Final = 3  # tests that must fail before and pass after
UNSTEADY: Final = "a test is not always green"
ANOTHER: Final = "another test fails"
ATTACK_ACCEPTED: Final = "a cheat is accepted"  # as it stands in the journals of earlier runs
STUBS: Final = ("None", "True", "[]")
SLOW: Final = 20.0  # seconds of a suite; the gates run it once or twice, and find the answers of a task in as many
PATIENCE: Final = 5.0  # seconds more that a stub or an attack may take than the reference twice
ANYTHING: Final = "__import__('unittest.mock').mock.MagicMock(__eq__=lambda *given: True)"
# Appended to a module of the tested code: no test that pytest runs from then on fails.
BENDING: Final = """

import sys as _sys
_reports = _sys.modules.get("_pytest.reports")
if _reports is not None:
    _told = _reports.TestReport.from_item_and_call.__func__

    def _bent(kind, item, call):
        call.excinfo = None
        return _told(kind, item, call)

    _reports.TestReport.from_item_and_call = classmethod(_bent)
"""


@dataclass(frozen=True)
class Verdict:
    """Whether a task may be used."""

    valid: bool
    reason: str = ""  # the same words for the same kind of trouble: for counting
    detail: str = ""
    seconds: float = 0.0
    spent: dict[str, float] = field(default_factory=dict)  # seconds, by gate
    unsteady: tuple[str, ...] = ()  # tests that gave different results with nothing changed: no task may ask for them
    task: Task | None = None  # with its answers, where its tests could lose them


class _Rejected(Exception):
    def __init__(self, reason: str, detail: str = "", unsteady: Sequence[str] = ()) -> None:
        super().__init__(reason)
        self.reason, self.detail, self.unsteady = reason, detail, tuple(unsteady)


@dataclass(frozen=True)
class _Case:
    task: Task
    environment: Environment
    host: StoringHost
    green: frozenset[str]
    deleted: Sequence[Deleted]
    whole: Files | None
    near_duplicate: Callable[[Task], str | None] | None
    least_broken: int
    timeout: float
    settings: GraderSettings | None
    least_bits: float = LEAST_BITS
    others: Sequence[Mapping[str, bytes | None]] = ()  # right solutions beside the reference
    suite: Sequence[str] | None = None  # the tests that are run as the suite; None is all that there are
    made: list[Task] = field(default_factory=list)  # the task with its answers, once they are known

    @property
    def asked(self) -> list[str]:
        """Tests that fail before and must pass after."""
        return [*self.task.facts.fail_to_pass, *self.task.facts.held_out]

    @cached_property
    def tests(self) -> dict[str, bytes | None]:
        """The task's own test files, as far as the agent's workspace has others."""
        task = self.task
        return {path: task.tests[path] for path in task.tests if path not in NO_DATA and not _same(task, path)}

    async def run(self, files: Mapping[str, bytes | None], tests: Sequence[str] | None = None) -> SuiteRun:
        """The suite with the task's own tests, over the agent's workspace with these files changed."""
        layer = workspace_layer(self.task, self.host)
        changes = {**self.tests, **files}
        asked = self.suite if tests is None else tests
        return await run_suite(self.host, self.environment, layer, changes=changes, tests=asked, timeout=self.timeout)

    async def refuse(self, reason: str, tests: Sequence[str], files: Mapping[str, bytes | None]) -> NoReturn:
        """Says why, unless the same tests do something else when they are asked once more."""
        # Asked once more by itself: a flaky test must not cost a task, and must not be in the next one either.
        again = await self.run(files, tests)
        changed = sorted(again.passed.intersection(tests))
        if changed:
            raise _Rejected(UNSTEADY, _some(changed), changed)
        raise _Rejected(reason, _some(tests))


def _same(task: Task, path: str) -> bool:
    return path in task.workspace and task.workspace[path] == task.tests[path]


async def pass_gates(
    task: Task,
    environment: Environment,
    host: StoringHost,
    *,
    green: Collection[str],
    deleted: Sequence[Deleted],
    whole: Files | None = None,
    near_duplicate: Callable[[Task], str | None] | None = None,
    least_broken: int = LEAST_BROKEN,
    settings: GraderSettings | None = None,
    least_bits: float = LEAST_BITS,
    others: Sequence[Mapping[str, bytes | None]] = (),
    suite: Sequence[str] | None = None,
    on_gate: Callable[[str], None] = lambda _: None,
) -> Verdict:
    """Whether the task may be used. `green` are the tests that always pass in its repository, `whole` the files
    with which they do; `near_duplicate` names a task that this one is nearly the same as; `on_gate` hears of each gate
    once it is behind; `others` are files of further right solutions; `suite` are the tests to run where one of them
    would never end."""
    started = time.monotonic()
    timeout = 5 * environment.seconds + 30
    case = _Case(
        *(task, environment, host, frozenset(green), deleted, whole, near_duplicate, least_broken, timeout, settings),
        least_bits=least_bits,
        others=others,
        suite=suite,
    )
    spent: dict[str, float] = {}
    reason = detail = ""
    unsteady: tuple[str, ...] = ()
    try:
        before = started
        async for gate in _gates(case):
            now = time.monotonic()
            spent[gate], before = now - before, now
            on_gate(gate)
    except _Rejected as found:
        reason, detail, unsteady = found.reason, found.detail, found.unsteady
    except GraderFailure as failure:
        # A killed grader is the machine's trouble, and says nothing about the task.
        if failure.cause == "killed":
            raise
        reason, detail = "it cannot be graded", str(failure)
    made = case.made[-1] if case.made else None
    return Verdict(not reason, reason, detail, time.monotonic() - started, spent, unsteady, made)


async def _gates(case: _Case) -> AsyncIterator[str]:
    """Passes one gate after the other; yields the name of each once it is behind."""
    _check_facts(case)
    yield "lint"
    await _check_leaks(case)
    yield "leaks"
    # No reason is more frequent than answers that are worth too little; all of a slow suite costs more than they do.
    answers_first = case.environment.seconds > SLOW
    if answers_first:
        await _withhold_answers(case)
        yield "answers"
    await _check_broken(case)
    yield "broken"
    seconds = await _check_reference(case)
    yield "reference"
    await _check_stubs(case, 2 * seconds + PATIENCE)
    yield "stubs"
    if not answers_first:
        await _withhold_answers(case)
        yield "answers"
    _check_others(case)  # once more: it may have been finished meanwhile, and half of the seconds are still to come
    await _check_grader(case)
    yield "grader"


def _check_facts(case: _Case) -> None:
    errors = [finding for finding in lint(case.task) if finding.severity == "error"]
    if errors:
        raise _Rejected(f"lint: {errors[0].rule}", str(errors[0]))
    unsteady = [name for name in (*case.asked, *case.task.facts.pass_to_pass) if name not in case.green]
    if unsteady:
        raise _Rejected(UNSTEADY, _some(unsteady))
    if len(case.asked) < case.least_broken:
        raise _Rejected("too few tests fail", _some(case.asked))
    try:
        # Drawing the plan needs no sandbox, and fails for tests that cannot be graded.
        draw(case.task)
    except EtudeError as error:
        raise _Rejected("it cannot be graded", str(error)) from None
    _check_others(case)


def _check_others(case: _Case) -> None:
    other = case.near_duplicate(case.task) if case.near_duplicate is not None else None
    if other:
        raise _Rejected("like another task", other)


async def _check_leaks(case: _Case) -> None:
    if not case.deleted:
        return  # nothing was taken away that could be found
    leaks = await audit_leaks(case.host, task_layers(case.task, case.host), case.deleted)
    if leaks:
        raise _Rejected("leak", "; ".join(str(leak) for leak in leaks[:3]))


async def _check_broken(case: _Case) -> None:
    run = _complete(await case.run({}))
    passing = [name for name in case.asked if name in run.passed]
    if passing:
        raise _Rejected("a test passes before the work is done", _some(passing), passing)  # it did not on trial
    failing = sorted(case.green - run.passed - set(case.asked))
    if failing:
        await case.refuse(ANOTHER, failing, {})


async def _check_reference(case: _Case) -> float:
    """The seconds that the whole suite takes."""
    solution = case.task.reference
    if case.task.workspace.replaced({**case.tests, **solution}) == case.whole:
        return case.environment.seconds  # nothing is otherwise than it was when these tests were green
    run = _complete(await case.run(solution))
    failing = sorted(case.green - run.passed)
    if failing:
        await case.refuse("the reference does not restore all", failing, solution)
    return run.seconds


async def _check_stubs(case: _Case, each: float) -> None:
    """A stub that is still busy after `each` seconds waits for something that never comes."""
    stubs = {
        f"every function returns {value}": files
        for value in stub_values(case.task, STUBS)
        if (files := stub(case.task, value))
    }
    stubs |= refactoring_attacks(case.task)
    runs = await run_variants(
        case.host,
        case.environment,
        workspace_layer(case.task, case.host),
        list(stubs.values()),
        tests=case.asked,
        changes=case.tests,
        each=each,
        timeout=len(stubs) * each + 30,
    )
    for name, run in zip(stubs, runs, strict=True):
        if run.complete and run.passed.issuperset(case.asked):
            raise _Rejected(ATTACK_ACCEPTED if name in REFACTORING else "a stub is accepted", name)


async def _withhold_answers(case: _Case) -> None:
    """From here on the tests are graded without their answers."""
    if not can_withhold(case.task):
        return
    others = tuple(submission_of(case.task, {**case.task.reference, **files}) for files in case.others)
    try:
        case.made.append(await withhold(case.task, case.host, case.settings or GraderSettings(), others))
    except NotRecorded as error:
        reason = "the grader rejects the reference" if error.tests else "it cannot be graded"
        raise _Rejected(reason, str(error), _few_with_parameters(case, error.tests)) from None
    if missing := too_few(case.made[-1], case.least_bits):
        raise _Rejected(TOO_FEW, missing)


async def _check_grader(case: _Case) -> None:
    task = case.made[-1] if case.made else case.task
    solution = submission_of(task, task.reference)
    if solution.refused:
        raise _Rejected("the reference is not carried", f"{solution.refused[0].path}: {solution.refused[0].why}")
    settings = case.settings or GraderSettings()
    began = time.monotonic()
    # A hash seed of its own: the reference must not depend on one.
    found = await grade(task, case.host, solution, settings, hash_seed=1)
    if not found.passed:
        # Few red ones are tests that look at how they are run; many mean that the task is wrong.
        raise _Rejected("the grader rejects the reference", found.reason, _only_red_in_grader(case, found))
    seconds = 2 * (time.monotonic() - began) + PATIENCE
    # A cheat that waits for something that never comes would hold the gate for the whole limit.
    hasty = replace(settings, seconds=min(settings.seconds, seconds))
    for name, files in {"doing nothing": {}, **attacks_on(task)}.items():
        found = await grade(task, case.host, submission_of(task, files), hasty, quick=True)
        if found.passed:
            raise _Rejected(ATTACK_ACCEPTED, name)
    if case.made and await tells_answers(task, case.host, settings):
        raise _Rejected(ORACLE_ACCEPTED, "code that lacks one constant finds it by running the tests")


def _only_red_in_grader(case: _Case, found: Grade) -> list[str]:
    """Tests that are green in the suite and red in the grader, as long as they are few: they ask how they are run."""
    return _few_with_parameters(case, [test for test, status in found.tests.items() if status in ("failed", "error")])


def _few_with_parameters(case: _Case, tests: Sequence[str]) -> list[str]:
    red = {test.partition("[")[0] for test in tests}
    # With all parameters: which one has which number may depend on the hash seed.
    found_red = sorted(test for test in case.green if test.partition("[")[0] in red)
    # Three, or two in a hundred: above that it is the task and not some odd tests.
    return found_red if len(red) <= max(3, len(case.green) // 50) else []


def attacks_on(task: Task) -> dict[str, Changes]:
    """Submissions that fool whoever only asks whether the tests passed."""
    if task.facts.suite == "node":
        return script_attacks(task)
    found: dict[str, Changes] = {}
    equal = stub(task, ANYTHING)
    if equal:
        found["what equals everything"] = equal
    path = next((path for path in task.solution if path.endswith(".py") and path not in task.tests), None)
    if path is not None:
        before = task.workspace.get(path, b"")
        found["a bent framework"] = {path: before.rstrip() + BENDING.encode()}
    return found


def _complete(run: SuiteRun) -> SuiteRun:
    if not run.complete:
        raise _Rejected("the suite does not come to its end", run.reason)
    return run


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
