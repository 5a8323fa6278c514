"""What a candidate breaks: the suite run over the changed workspace.

Where a suite is slow and the tests that could notice are quick, only those run: the gates run all of it anyway. A test
that fails without coming near what was changed runs again, and belongs to no task from then on if it passes. Knows
nothing about what the agent will see.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from etude.forge.environments.suite_run import SuiteRun, run_suite
from etude.forge.languages.base import Repository
from etude.forge.steps.candidate import Candidate
from etude.forge.steps.choose_functions import LEAST_PLACES, LEAST_TESTS, MOST_SHARE
from etude.forge.steps.context import MakeContext, Refused

SLOW: Final = 3.0  # seconds of a suite from which on running less of it is worth a doubt
QUICK: Final = 0.6  # share of those seconds


@dataclass(frozen=True)
class Trial:
    """Which of the green tests fail now, and which still pass; or why that is no task."""

    broken: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    output: dict[str, str] = field(default_factory=dict)  # of failing tests
    reason: str = ""
    detail: str = ""
    whole: bool = True  # all tests ran, not only those that could notice


async def attempt(context: MakeContext, candidate: Candidate, timeout: float) -> Trial:
    """Runs the suite with the candidate's changes made. Tests that prove unsteady are noted and do not count."""
    repository, unsteady, seconds = context.repository, context.unsteady, context.base.seconds
    green = [test for test in repository.green if test not in unsteady]
    likely = [test for test in green if test in candidate.expected]
    if not likely:
        return Trial(reason="no test notices")

    async def run(tests: list[str] | None) -> SuiteRun:
        return await run_suite(
            context.host,
            repository.environment,
            context.workspace,
            changes=candidate.changes,
            tests=tests,
            timeout=timeout,
        )

    whole = candidate.try_all or seconds <= SLOW or _seconds(repository, likely) > QUICK * seconds
    ran = await run(None if whole else likely)
    if not ran.complete:
        return Trial(reason="the suite does not come to its end", detail=ran.reason)
    broken = tuple(test for test in (green if whole else likely) if test not in ran.passed)
    if doubtful := [test for test in broken if test not in candidate.expected]:
        unsteady |= (await run(doubtful)).passed.intersection(doubtful)
        broken = tuple(test for test in broken if test not in unsteady)
    kept = tuple(test for test in green if test in ran.passed or (not whole and test not in likely))
    if trouble := _too_few(repository, list(broken)):
        return trouble
    if len(broken) > MOST_SHARE * len(repository.green):
        return Trial(reason="too many tests fail", detail=f"{len(broken)} of {len(repository.green)}")
    return Trial(broken, kept, {test: ran.texts[test] for test in broken if test in ran.texts}, whole=whole)


async def failing(
    context: MakeContext,
    changes: Mapping[str, bytes | None],
    expected: Collection[str] = (),
    gone: Collection[str] = (),
) -> list[str]:
    """Green tests that fail with these changes made, but for those that are `gone` with them. One that was not expected
    to is run again, and no task relies on it from then on if it passes."""
    repository, timeout = context.repository, 5 * context.base.seconds + 30

    async def run(tests: Sequence[str] | None) -> SuiteRun:
        return await run_suite(
            context.host, repository.environment, context.workspace, changes=changes, tests=tests, timeout=timeout
        )

    whole = await run(None)
    if not whole.complete:
        raise Refused("the suite does not come to its end", whole.reason)
    failed = [test for test in repository.green if test not in whole.passed and test not in gone]
    if doubtful := [test for test in failed if test not in expected and test not in context.unsteady]:
        context.unsteady.update((await run(doubtful)).passed.intersection(doubtful))
    return [test for test in failed if test not in context.unsteady]


def _seconds(repository: Repository[Any], tests: list[str]) -> float:
    files = {test.partition("::")[0] for test in tests}
    return sum(repository.took.get(name, 0.0) for name in (*tests, *files))


def _too_few(repository: Repository[Any], broken: list[str]) -> Trial | None:
    if not broken:
        return Trial(reason="no test notices")
    if len(broken) < LEAST_TESTS or len({repository.place(test) for test in broken}) < LEAST_PLACES:
        return Trial(reason="too few tests notice", detail=", ".join(broken[:3]))
    return None
