"""What a candidate breaks: the suite run over the changed workspace.

Where a suite is slow and the tests that could notice are quick, only those run: the gates run all of it anyway. A test
that fails without coming near what was changed runs again, and belongs to no task from then on if it passes. Knows
nothing about what the agent will see.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from etude.forge.languages.base import Repository
from etude.forge.steps.candidate import Candidate
from etude.forge.steps.choose_functions import most_tests
from etude.forge.steps.context import MakeContext, Refused

SLOW: Final = 3.0  # seconds of a suite from which on running less of it is worth a doubt
QUICK: Final = 0.6  # share of those seconds


@dataclass(frozen=True)
class Trial:
    """Which of the green tests fail now, and which still pass."""

    broken: tuple[str, ...]
    kept: tuple[str, ...]
    output: dict[str, str]  # of failing tests
    whole: bool  # all tests ran, not only those that could notice


async def attempt(context: MakeContext, candidate: Candidate, timeout: float) -> Trial:
    """Runs the suite with the candidate's changes made. Tests that prove unsteady are noted and do not count."""
    repository, unsteady, seconds = context.repository, context.unsteady, context.base.seconds
    green = [test for test in repository.green if test not in unsteady]
    likely = [test for test in green if test in candidate.expected]
    if not likely:
        raise Refused("no test notices")
    # Less of the suite only where that saves much: the doubt about the other tests is left to the gates.
    whole = candidate.try_all or seconds <= SLOW or _seconds(repository, likely) > QUICK * seconds
    ran = await context.run_tests(candidate.changes, None if whole else likely, timeout=timeout)
    broken = [test for test in (green if whole else likely) if test not in ran.passed]
    # Nothing that was changed is near these, so they are asked once more.
    if doubtful := [test for test in broken if test not in candidate.expected]:
        again = await context.run_tests(candidate.changes, doubtful, timeout=timeout, partly=True)
        unsteady |= again.passed.intersection(doubtful)
        broken = [test for test in broken if test not in unsteady]
    kept = tuple(test for test in green if test in ran.passed or (not whole and test not in likely))
    if not broken:
        raise Refused("no test notices")
    places = {repository.place(test) for test in broken}
    if len(broken) < candidate.least_tests or len(places) < candidate.least_places:
        wanted = f"{candidate.least_tests} in {candidate.least_places} test functions are needed"
        raise Refused("too few tests notice", f"{', '.join(broken[:3])}; {wanted}")
    if len(broken) > most_tests(len(repository.green)):
        raise Refused("too many tests fail", f"{len(broken)} of {len(repository.green)}")
    return Trial(tuple(broken), kept, {test: ran.texts[test] for test in broken if test in ran.texts}, whole)


async def failing(
    context: MakeContext,
    changes: Mapping[str, bytes | None],
    expected: Collection[str] = (),
    gone: Collection[str] = (),
) -> list[str]:
    """Green tests that fail with these changes made, but for those that are `gone` with them. One that was not expected
    to is run again, and no task relies on it from then on if it passes."""
    whole = await context.run_tests(changes)
    failed = [test for test in context.repository.green if test not in whole.passed and test not in gone]
    if doubtful := [test for test in failed if test not in expected and test not in context.unsteady]:
        again = await context.run_tests(changes, doubtful, partly=True)
        context.unsteady.update(again.passed.intersection(doubtful))
    return [test for test in failed if test not in context.unsteady]


async def refuse_failing(context: MakeContext, changes: Mapping[str, bytes | None], gone: Collection[str] = ()) -> None:
    """The suite that the agent finds has to be green, but for tests that are gone."""
    if failed := await failing(context, changes, gone=gone):
        raise Refused("another test fails", ", ".join(failed[:3]))


def _seconds(repository: Repository[Any], tests: list[str]) -> float:
    files = {test.partition("::")[0] for test in tests}
    return sum(repository.took.get(name, 0.0) for name in (*tests, *files))
