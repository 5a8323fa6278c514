"""What a candidate breaks: the suite run over the changed workspace, all of it once.

Where a suite is slow, the tests that could notice run first, so that a candidate that nobody notices is cheap. A test
that fails without coming near what was changed is asked again, and belongs to no task from then on if it passes. Knows
nothing about what the agent will see.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from etude.forge.make.base import AnyWorld
from etude.forge.make.candidate import Candidate
from etude.forge.make.choose import LEAST_PLACES, LEAST_TESTS, MOST_SHARE
from etude.forge.suite import SuiteRun, run_suite
from etude.sandbox.base import Layer
from etude.sandbox.hosts import StoringHost

SLOW: Final = 3.0  # seconds of a suite from which on a first look at few tests is worth its start
FEW: Final = 0.3  # share of the tests that are few


@dataclass(frozen=True)
class Trial:
    """Which of the green tests fail now, and which still pass; or why that is no task."""

    broken: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    said: dict[str, str] = field(default_factory=dict)  # what failing tests said
    reason: str = ""
    detail: str = ""


async def attempt(
    world: AnyWorld[Any], host: StoringHost, workspace: Layer, candidate: Candidate, seconds: float, unsteady: set[str]
) -> Trial:
    """Runs the suite with the candidate's changes made. `seconds` is what it takes while nothing is broken; tests that
    prove `unsteady` are added to those that did before, and none of them counts."""
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

    if seconds > SLOW and len(asked) < FEW * len(world.green):
        first = await run(asked)
        if first.complete and (trouble := _too_few(world, [test for test in asked if test not in first.passed])):
            return trouble
    whole = await run(None)
    if not whole.complete:
        return Trial(reason="the suite does not come to its end", detail=whole.reason)
    broken = tuple(test for test in green if test not in whole.passed)
    if doubtful := [test for test in broken if test not in candidate.expected]:
        unsteady |= (await run(doubtful)).passed.intersection(doubtful)
        broken = tuple(test for test in broken if test not in unsteady)
    kept = tuple(test for test in green if test in whole.passed)
    if trouble := _too_few(world, list(broken)):
        return trouble
    if len(broken) > MOST_SHARE * len(world.green):
        return Trial(reason="too many tests fail", detail=f"{len(broken)} of {len(world.green)}")
    return Trial(broken, kept, {test: whole.texts[test] for test in broken if test in whole.texts})


def _too_few(world: AnyWorld[Any], broken: list[str]) -> Trial | None:
    if not broken:
        return Trial(reason="no test notices")
    if len(broken) < LEAST_TESTS or len({world.place(test) for test in broken}) < LEAST_PLACES:
        return Trial(reason="too few tests notice", detail=", ".join(broken[:3]))
    return None
