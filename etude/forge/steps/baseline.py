"""Which tests of a repository are always green, what each reaches and how long it takes: found once, then kept.

A run by itself, one that is traced, and several at once, each with another hash seed, order and time zone, so that
tests that measure time or share something with their neighbours show it. A test that fails in any of them belongs to
no task, and one that ends the suite's process is left out, so that the others run. Kept beside the environment, under
the digests of environment and workspace. Knows nothing about candidates.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, Final

from etude.core import durable
from etude.core.errors import EtudeError
from etude.forge.environments.environment import MOST_LEFT_OUT, Environment, without_test
from etude.forge.environments.suite_run import SuiteRun, run_suite
from etude.sandbox.base import Layer
from etude.sandbox.hosts import StoringHost

VERSION: Final = 3  # of the file: a change of what it holds makes it again
TIMEOUT: Final = 900.0  # seconds for one run
LEAST_GREEN: Final = 10  # tests; with fewer there is nothing to tell a feature by
ZONES: Final = ("Asia/Tokyo", "America/New_York")
CROWD: Final = 6  # runs at once; more than most machines that make tasks have cores to spare
WAITING: Final = 0.5  # share of a processor below which a suite mostly waits
FEWER: Final = 60.0  # seconds of a suite from which on two at once have to do
TICK: Final = 1.0  # seconds between two words about how far a run is


@dataclass(frozen=True)
class Baseline:
    """What the suite does while nothing is broken."""

    green: tuple[str, ...]
    unsteady: tuple[str, ...]  # passed in some runs only
    traces: dict[str, frozenset[str]]  # "" is what collecting ran
    took: dict[str, float]  # as a run has it, in the plain run
    seconds: float  # of that run
    left_out: tuple[str, ...] = ()  # tests and files that ended the process of the suite: it runs without them

    @property
    def busy(self) -> float:
        return share_of_processor(self.took, self.seconds)


def share_of_processor(took: Mapping[str, float], seconds: float) -> float:
    """What share of one a suite needs: little where tests sleep. All of it where nobody measured it."""
    spent = took.get("", 0.0)
    return min(1.0, spent / seconds) if spent and seconds else 1.0


async def baseline(
    host: StoringHost,
    environment: Environment,
    workspace: Layer,
    note: Callable[[str], None] = lambda _: None,
) -> Baseline:
    """The kept one, or a new one; `note` hears how far that is."""
    name = f"{environment.digest[:32]}-{workspace.digest[:32]}.baseline.json"
    path = host.store.root / "environments" / name
    known = _load(path)
    if known is not None:
        return known
    made = await _measure(host, environment, workspace, note)
    _save(path, made)
    return made


async def _measure(
    host: StoringHost, environment: Environment, workspace: Layer, note: Callable[[str], None]
) -> Baseline:
    left_out: dict[str, None] = {}

    async def run(seed: int, order: int | None, zone: str, trace: Sequence[str] | None = None) -> SuiteRun:
        asked: dict[str, Any] = {"hash_seed": seed, "order": order, "zone": zone, "trace": trace, "timeout": TIMEOUT}
        for more in reversed(range(MOST_LEFT_OUT + 1)):
            found = await run_suite(host, reduce(without_test, left_out, environment), workspace, **asked)
            if found.complete:
                return found
            if not (found.crashed and more):
                break
            note(f"{found.reason}: {found.crashed} is left out")
            left_out[found.crashed] = None
        raise EtudeError(f"the tests of {environment.repo} cannot be told from each other: {found.reason}")

    count = len(environment.outcomes)
    async with telling(note, f"baseline, run 1 of 3: {count} tests", environment.seconds):
        alone = await run(0, None, "UTC")
    count = len(alone.outcomes)
    crowd = 2 if alone.seconds > FEWER else CROWD

    async def tracing() -> SuiteRun:
        # Traced apart from the timed run: tracing makes everything slower.
        async with telling(note, f"baseline, run 2 of 3: {count} tests, traced", 2 * alone.seconds):
            return await run(0, None, "UTC", trace=("",))

    async def together() -> list[SuiteRun]:
        # At once and shuffled: tests that measure time or share a file with a neighbour fail here.
        what = f"baseline, run 3 of 3: {count} tests, {crowd} times at once"
        async with telling(note, what, crowd * alone.seconds / min(crowd, os.cpu_count() or 1)):
            jobs = (run(number, number, ZONES[number % len(ZONES)]) for number in range(1, crowd + 1))
            return await asyncio.gather(*jobs)

    if share_of_processor(alone.took, alone.seconds) < WAITING:  # nobody is in the way of who waits
        traced, runs = await asyncio.gather(tracing(), together())
    else:
        traced, runs = await tracing(), await together()
    always = alone.passed.intersection(traced.passed, *(each.passed for each in runs))
    ever = alone.passed.union(traced.passed, *(each.passed for each in runs))
    if len(always) < LEAST_GREEN:
        raise EtudeError(f"{environment.repo} has {len(always)} tests that always pass; tasks need {LEAST_GREEN}")
    green = tuple(sorted(always))
    traces = {test: frozenset(traced.traces.get(test, ())) for test in ("", *green)}
    took = {name: alone.took.get(name, 0.0) for name in ("", *green, *{test.partition("::")[0] for test in green})}
    return Baseline(green, tuple(sorted(ever - always)), traces, took, alone.seconds, tuple(left_out))


@asynccontextmanager
async def telling(note: Callable[[str], None], what: str, about: float) -> AsyncIterator[None]:
    """Says again and again what is being done and for how long already, of `about` so many seconds."""
    started = time.monotonic()

    async def tell() -> None:
        while True:
            expected = f" of about {about:.0f} s" if about >= 1 else " s"
            note(f"{what}, {time.monotonic() - started:.0f}{expected}")
            await asyncio.sleep(TICK)

    ticking = asyncio.create_task(tell())
    try:
        yield
    finally:
        ticking.cancel()


def _save(path: Path, made: Baseline) -> None:
    names = sorted({name for reached in made.traces.values() for name in reached})
    number = {name: index for index, name in enumerate(names)}
    facts = {
        "version": VERSION,
        "green": made.green,
        "unsteady": made.unsteady,
        "seconds": made.seconds,
        "left_out": made.left_out,
        "took": made.took,
        "functions": names,
        "traces": {test: sorted(number[name] for name in reached) for test, reached in made.traces.items()},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    durable.write_whole(path, json.dumps(facts))


def _load(path: Path) -> Baseline | None:
    try:
        facts: dict[str, Any] = json.loads(path.read_text())
        if facts["version"] != VERSION:
            return None
        names = facts["functions"]
        traces = {test: frozenset(names[one] for one in reached) for test, reached in facts["traces"].items()}
        unsteady, left_out = tuple(facts["unsteady"]), tuple(facts.get("left_out", ()))
        return Baseline(tuple(facts["green"]), unsteady, traces, facts["took"], facts["seconds"], left_out)
    except (OSError, ValueError, KeyError, IndexError):  # not there, or cut short: made again
        return None
