"""One set of untested functions on its way to a task: mistakes found that its own tests notice, written, checked.

Mistakes come from `bugs`. Kept are those that few tests notice, by a failing assertion rather than by falling over, and
all tests that notice them leave the workspace. Then the task has to pass: the rest of the suite is green without the
removed tests, no copy of them is left, the reference notices all, cheats are rejected (`check`).
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Final

from etude.forge.environments.suite_run import run_variants
from etude.forge.languages.base import TestFunction
from etude.forge.languages.python.bugs import mutations
from etude.forge.languages.python.repository import PythonRepository
from etude.forge.languages.python.source import Edit, Module
from etude.forge.origins.test_writing.instruct import tell_testing
from etude.forge.origins.test_writing.propose import LEAST_MISTAKES as LEAST
from etude.forge.origins.test_writing.propose import can_go, home, take_out
from etude.forge.steps.candidate import Candidate, RemovedCode, Testing
from etude.forge.steps.code_change import (
    MadeTask,
    MakeContext,
    Refused,
    being_made,
    failing,
    judge_by_check,
    search_copies,
    timed,
)
from etude.forge.steps.instructions import Instructions
from etude.forge.steps.write import assemble, put
from etude.tasks.format.config import PromptStyle
from etude.tasks.format.config import Testing as TestingFacts
from etude.tasks.format.files import Files, Kind
from etude.tasks.format.task import SOLUTION, TESTS, WORKSPACE, Task, solve_script
from etude.tasks.kinds.mutants import FOLDER, needed

TRIED: Final = 24  # mistakes that are looked at
SECONDS: Final = 60.0  # of tests that all of them together may take
MOST: Final = 6  # that a task has
MOST_NOTICE: Final = 20  # test functions that notice one of them
MOST_PLACES: Final = 40  # test functions that go
CRASHES: Final = 1 / 3  # share of them that may be mistakes at which nothing is compared
SHARE: Final = 0.66  # of the mistakes that have to be noticed
ASSERTED: Final = re.compile(r"assert|AssertionError|DID NOT RAISE|Failed:", re.IGNORECASE)
# For Harbor's own verifier, which asks less than ours: once as it is, once with each mistake.
TEST_SH: Final = b"""#!/bin/sh
cd /app
cp -R /app /tmp/app
noticed=0
tried() { python -B -m pytest -q -p no:cacheprovider "$(cat /tests/file.txt)" > /dev/null 2>&1; }
if tried; then
  for mutant in /tests/mutants/*; do
    cp -R "$mutant/." /app/
    tried
    if [ $? -eq 1 ]; then noticed=$((noticed + 1)); fi
    cp -R /tmp/app/. /app/
  done
fi
if [ "$noticed" -ge "$(cat /tests/wanted.txt)" ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""


@dataclass(frozen=True)
class Mistake:
    """One that was tried."""

    files: Mapping[str, bytes]
    by: frozenset[TestFunction]  # who notices
    asserted: bool  # something was compared


async def make_testing(shop: MakeContext, candidate: Candidate, spent: dict[str, float]) -> MadeTask:
    """A task below `wanted.out` under a hidden name. `spent` is told the seconds of each part."""
    assert isinstance(candidate, Testing)
    rng = random.Random(f"{shop.wanted.seed}/{candidate.key}")
    with timed(spent, "trial"):
        found = await _noticed(shop, candidate, rng)
        await _run_rest(shop, found)
    told = tell_testing(shop.python, found, rng)
    task = write_testing(shop.python, found, told, rng.choice(shop.wanted.prompt_styles), shop.wanted.seed)
    async with being_made(shop, task, spent) as folder:
        with timed(spent, "leaks"):
            await search_copies(shop, folder, found.removed)
        await judge_by_check(shop, folder, spent)
    return MadeTask(task, folder)


async def _noticed(shop: MakeContext, asked: Testing, rng: random.Random) -> Testing:
    """The candidate with mistakes, and without the tests that notice them."""
    world = shop.python
    tests = [test for test in sorted(asked.expected) if test not in shop.unsteady]
    took = sum(world.took.get(test, 0.0) for test in tests)
    tried = mistakes(world, asked.pieces, rng)[: max(LEAST, min(TRIED, int(SECONDS / (took + 0.1))))]
    each = 4 * shop.base.seconds + 20  # the machine may be busy
    runs = await run_variants(
        shop.host,
        world.environment,
        shop.workspace,
        tried,
        tests=tests,
        until_failure=False,
        each=each,
        timeout=len(tried) * each + 30,
    )
    found: list[Mistake] = []
    for files, run in zip(tried, runs, strict=True):
        failed = [test for test, outcome in run.outcomes.items() if outcome in ("failed", "error")]
        by = frozenset(world.place(test) for test in failed if test in world.bits)
        if run.complete and by and len(by) <= MOST_NOTICE and all(can_go(world, place) for place in by):
            found.append(Mistake(files, by, any(ASSERTED.search(run.texts.get(test, "")) for test in failed)))
    if len(found) < LEAST:
        raise Refused("too few mistakes are noticed", f"{len(found)} of {len(tried)}, by tests that could go")
    path = home([place for each in found for place in each.by])
    chosen = choose_mistakes([each for each in found if any(place.path == path for place in each.by)])
    gone = {place for each in chosen for place in each.by}
    made = take_out(world, asked, gone, path) if len(chosen) >= LEAST else None
    if made is None:
        raise Refused("too few tests can go", f"{len(chosen)} of {len(found)} mistakes")
    return replace(made, mutants=tuple(each.files for each in chosen))


def choose_mistakes(found: Sequence[Mistake]) -> list[Mistake]:
    """Those that few tests notice first; crashes last, and no more than their share."""
    chosen: list[Mistake] = []
    gone: frozenset[TestFunction] = frozenset()
    for each in sorted(found, key=lambda each: (not each.asserted, len(each.by))):
        crashes = sum(not other.asserted for other in chosen)
        room = each.asserted or crashes + 1 <= CRASHES * (len(chosen) + 1)
        if room and len(chosen) < MOST and len(gone | each.by) <= MOST_PLACES:
            chosen.append(each)
            gone |= each.by
    return chosen


def mistakes(
    world: PythonRepository, pieces: Sequence[RemovedCode], rng: random.Random, also: Sequence[Edit] = ()
) -> list[dict[str, bytes]]:
    """One after the other of each function, no two alike; with other edits made too."""
    pools = []
    for piece in pieces:
        module = world.modules[piece.path]
        pool = mutations(module, world.definitions[piece.id])
        pools.append([(piece.path, module.edited([each.edit, *also])) for each in rng.sample(pool, len(pool))])
    turns = [each for turn in zip_longest(*pools) for each in turn if each is not None]
    whole = dict.fromkeys(each for each in turns if Module.read(*each) is not None)
    return [{path: data} for path, data in whole][:TRIED]


async def _run_rest(shop: MakeContext, asked: Testing) -> None:
    """The suite that the agent finds is green."""
    world = shop.world
    removed = {(piece.path, piece.name) for piece in asked.removed}
    gone = [test for test in world.green if (world.place(test).path, world.place(test).name) in removed]
    if failed := await failing(shop, asked.changes, gone=gone):
        raise Refused("another test fails", ", ".join(failed[:3]))


def write_testing(
    world: PythonRepository, asked: Testing, told: Instructions, prompt_style: PromptStyle, seed: int
) -> Task:
    """The task, in memory."""
    files: dict[str, bytes] = {}
    kinds: dict[str, Kind] = {}
    for path, data in world.files.items():
        put(files, kinds, world, f"{WORKSPACE}/{path}", path, asked.changes.get(path, data))
    for number, mutant in enumerate(asked.mutants, start=1):
        files |= {f"{TESTS}/{FOLDER}/{number:02}/{path}": data for path, data in mutant.items()}
    files |= {
        f"{SOLUTION}/{asked.file}": asked.reference,
        f"{TESTS}/test.sh": TEST_SH,
        f"{TESTS}/file.txt": f"{asked.file}\n".encode(),
        "solution/solve.sh": solve_script("/app"),
    }
    task = assemble(
        world,
        asked,
        told,
        prompt_style,
        seed,
        Files(files, kinds),
        testing=TestingFacts(file=asked.file, share=SHARE),
        allowed_paths=[asked.file],
        parameters={"functions": [piece.id for piece in asked.pieces]},
    )
    return replace(task, files=task.files.replaced({f"{TESTS}/wanted.txt": f"{needed(task)}\n".encode()}))
