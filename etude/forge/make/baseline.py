"""Which tests of a repository are always green, and what each of them reaches: found once, then kept.

Three runs, each with another hash seed, order and time zone; a test that fails in any of them belongs to no task. Kept
beside the environment, under the digests of environment and workspace. Knows nothing about candidates.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from etude import durable
from etude.errors import EtudeError
from etude.forge.environment import Environment
from etude.forge.suite import run_suite
from etude.sandbox.base import Layer
from etude.sandbox.hosts import StoringHost

VERSION: Final = 1  # of the file: a change of what it holds makes it again
TIMEOUT: Final = 900.0  # seconds for one run
LEAST_GREEN: Final = 10  # tests; with fewer there is nothing to tell a feature by
RUNS: Final = ((0, None, "UTC"), (1, 1, "Asia/Tokyo"), (2, 2, "America/New_York"))  # hash seed, order, zone


@dataclass(frozen=True)
class Baseline:
    """What the suite does while nothing is broken."""

    green: tuple[str, ...]
    unsteady: tuple[str, ...]  # passed in some runs only
    traces: dict[str, frozenset[str]]  # "" is what collecting ran
    seconds: float  # one plain run


async def baseline(host: StoringHost, environment: Environment, workspace: Layer) -> Baseline:
    """The kept one, or a new one."""
    name = f"{environment.digest[:32]}-{workspace.digest[:32]}.baseline.json"
    path = host.store.root / "environments" / name
    known = _load(path)
    if known is not None:
        return known
    made = await _measure(host, environment, workspace)
    _save(path, made)
    return made


async def _measure(host: StoringHost, environment: Environment, workspace: Layer) -> Baseline:
    runs = await asyncio.gather(
        *(
            run_suite(
                host,
                environment,
                workspace,
                hash_seed=seed,
                order=order,
                zone=zone,
                timeout=TIMEOUT,
            )
            for seed, order, zone in RUNS[1:]
        )
    )
    hash_seed, order, zone = RUNS[0]
    traced = await run_suite(
        host, environment, workspace, hash_seed=hash_seed, order=order, zone=zone, trace=("",), timeout=TIMEOUT
    )
    for run in (traced, *runs):
        if not run.complete:
            raise EtudeError(f"the tests of {environment.repo} cannot be told from each other: {run.reason}")
    always = traced.passed.intersection(*(run.passed for run in runs))
    ever = traced.passed.union(*(run.passed for run in runs))
    if len(always) < LEAST_GREEN:
        raise EtudeError(f"{environment.repo} has {len(always)} tests that always pass; tasks need {LEAST_GREEN}")
    green = tuple(sorted(always))
    traces = {test: frozenset(traced.traces.get(test, ())) for test in ("", *green)}
    seconds = min(run.seconds for run in runs)
    return Baseline(green, tuple(sorted(ever - always)), traces, seconds)


def _save(path: Path, made: Baseline) -> None:
    names = sorted({name for reached in made.traces.values() for name in reached})
    number = {name: index for index, name in enumerate(names)}
    facts = {
        "version": VERSION,
        "green": made.green,
        "unsteady": made.unsteady,
        "seconds": made.seconds,
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
        return Baseline(tuple(facts["green"]), tuple(facts["unsteady"]), traces, facts["seconds"])
    except (OSError, ValueError, KeyError, IndexError):  # not there, or cut short: made again
        return None
