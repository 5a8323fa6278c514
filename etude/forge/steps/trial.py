"""What a candidate breaks: the suite run over the changed workspace.

Where a suite is slow and the tests that could notice are quick, only those run: the gates run all of it anyway. A test
that fails without coming near what was changed is asked again, and belongs to no task from then on if it passes. Knows
nothing about what the agent will see.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from etude.forge.environments.suite_run import SuiteRun, run_suite
from etude.forge.languages.base import Repository
from etude.forge.steps.candidate import Candidate
from etude.forge.steps.choose_functions import LEAST_PLACES, LEAST_TESTS, MOST_SHARE
from etude.sandbox.base import Layer
from etude.sandbox.hosts import StoringHost

SLOW: Final = 3.0  # seconds of a suite from which on running less of it is worth a doubt
QUICK: Final = 0.6  # share of those seconds


@dataclass(frozen=True)
class Trial:
    """Which of the green tests fail now, and which still pass; or why that is no task."""

    broken: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    said: dict[str, str] = field(default_factory=dict)  # what failing tests said
    reason: str = ""
    detail: str = ""
    whole: bool = True  # all tests ran, not only those that could notice


async def attempt(
    world: Repository[Any],
    host: StoringHost,
    workspace: Layer,
    candidate: Candidate,
    seconds: float,
    unsteady: set[str],
    *,
    whole: bool = False,
) -> Trial:
    """Runs the suite with the candidate's changes made, all of it where that is asked for (`whole`). `seconds` is what
    it takes while nothing is broken; tests that prove `unsteady` are added to those that did, and none of them counts.
    """
    # Code that is missing fails at once; code that is wrong may never end. The machine may be busier than it was.
    timeout = 3 * seconds + 10 if candidate.origin == "bug" else 10 * seconds + 60
    green = [test for test in world.green if test not in unsteady]
    asked = [test for test in green if test in candidate.expected]
    if not asked:
        return Trial(reason="no test notices")

    async def run(tests: list[str] | None) -> SuiteRun:
        return await run_suite(
            host, world.environment, workspace, changes=candidate.changes, tests=tests, timeout=timeout
        )

    whole = whole or seconds <= SLOW or _seconds(world, asked) > QUICK * seconds
    ran = await run(None if whole else asked)
    if not ran.complete:
        return Trial(reason="the suite does not come to its end", detail=ran.reason)
    broken = tuple(test for test in (green if whole else asked) if test not in ran.passed)
    if doubtful := [test for test in broken if test not in candidate.expected]:
        unsteady |= (await run(doubtful)).passed.intersection(doubtful)
        broken = tuple(test for test in broken if test not in unsteady)
    kept = tuple(test for test in green if test in ran.passed or (not whole and test not in asked))
    if trouble := _too_few(world, list(broken)):
        return trouble
    if len(broken) > MOST_SHARE * len(world.green):
        return Trial(reason="too many tests fail", detail=f"{len(broken)} of {len(world.green)}")
    return Trial(broken, kept, {test: ran.texts[test] for test in broken if test in ran.texts}, whole=whole)


def _seconds(world: Repository[Any], tests: list[str]) -> float:
    files = {test.partition("::")[0] for test in tests}
    return sum(world.took.get(name, 0.0) for name in (*tests, *files))


def _too_few(world: Repository[Any], broken: list[str]) -> Trial | None:
    if not broken:
        return Trial(reason="no test notices")
    if len(broken) < LEAST_TESTS or len({world.place(test) for test in broken}) < LEAST_PLACES:
        return Trial(reason="too few tests notice", detail=", ".join(broken[:3]))
    return None
