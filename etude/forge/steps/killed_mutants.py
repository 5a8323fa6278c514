"""Mistakes in functions: several made at once, and those kept that tests or examples notice.

Which mistakes a function can have, its language knows (`Repository.mistakes`). Runs nothing.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final

from etude.forge.environments.suite_run import SuiteRun
from etude.forge.languages.base import LocatedTest, Mutation, Repository
from etude.forge.languages.edits import Edit
from etude.forge.languages.python.repository import PythonRepository
from etude.forge.languages.python.source import Module
from etude.forge.steps.candidate import RemovedCode

LEAST: Final = 4  # that the functions of a task can have, and that it has
MOST: Final = 6  # that a task has
TRIED: Final = 24  # that are looked at
MOST_PLACES: Final = 40  # test functions that notice one of them
CRASHES: Final = 1 / 3  # share of them that may be mistakes at which nothing is compared
SHARE: Final = 0.66  # of a task's mistakes that have to be noticed
ASSERTED: Final = re.compile(r"assert|AssertionError|DID NOT RAISE|Failed:", re.IGNORECASE)
# For Harbor's own verifier, which asks less than ours: once as it is, once with each mistake.
TEST_SH: Final = """#!/bin/sh
cd /app
cp -R /app /tmp/app
noticed=0
tried() {{ {command} > /dev/null 2>&1; }}
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
class NoticedMistake:
    """One that was tried and that tests notice."""

    files: Mapping[str, bytes]
    by: frozenset[LocatedTest]
    asserted: bool  # something was compared


def combined(repository: Repository[Any], mistakes: Sequence[Mutation[Any]]) -> dict[str, bytes | None] | None:
    """Files with all of these mistakes made at once; None where one would not be of its language any more."""
    edits: dict[str, list[Edit]] = {}
    for each in mistakes:
        edits.setdefault(each.definition.path, []).append(each.edit)
    return edited_files(repository, edits)


def edited_files(repository: Repository[Any], edits: Mapping[str, Sequence[Edit]]) -> dict[str, bytes | None] | None:
    """The files with these edits; None where one would not be of its language any more."""
    changes: dict[str, bytes | None] = {}
    for path, of_file in edits.items():
        data = repository.sources[path].edited(of_file)
        if repository.read(path, data) is None:
            return None
        changes[path] = data
    return changes


def versions_with_mistakes(
    repository: PythonRepository, pieces: Sequence[RemovedCode], rng: random.Random, also: Sequence[Edit] = ()
) -> list[dict[str, bytes]]:
    """Files with one mistake each, the functions in turns, no two alike; with other edits made too."""
    pools = []
    for piece in pieces:
        module = repository.modules[piece.path]
        pool = repository.mistakes(repository.definitions[piece.id])
        pools.append([(piece.path, module.edited([each.edit, *also])) for each in rng.sample(pool, len(pool))])
    turns = [each for turn in zip_longest(*pools) for each in turn if each is not None]
    # Two mistakes can give the same text.
    whole = dict.fromkeys(each for each in turns if Module.read(*each) is not None)
    return [{path: data} for path, data in whole][:TRIED]


def noticed(
    files: Mapping[str, bytes], run: SuiteRun, place: Callable[[str], LocatedTest | None]
) -> NoticedMistake | None:
    """A version as the tests that ran over it see it; None where none of them fails at a `place`."""
    failed = [test for test, outcome in run.outcomes.items() if outcome in ("failed", "error")]
    by = frozenset(found for test in failed if (found := place(test)) is not None)
    if not run.complete or not by:
        return None
    return NoticedMistake(files, by, any(ASSERTED.search(run.texts.get(test, "")) for test in failed))


def choose_mistakes(found: Sequence[NoticedMistake]) -> list[NoticedMistake]:
    """Those that few tests notice first; crashes last, and no more than their share."""
    chosen: list[NoticedMistake] = []
    gone: frozenset[LocatedTest] = frozenset()
    # A mistake at which something is compared needs a test of behaviour; a crash is noticed by any call.
    for each in sorted(found, key=lambda each: (not each.asserted, len(each.by))):
        crashes = sum(not other.asserted for other in chosen)
        room = each.asserted or crashes + 1 <= CRASHES * (len(chosen) + 1)
        if room and len(chosen) < MOST and len(gone | each.by) <= MOST_PLACES:
            chosen.append(each)
            gone |= each.by
    return chosen
