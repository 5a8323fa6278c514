"""A refactoring proven by running.

the whole edit made        every test that was green still is, under the same id, and nothing stayed behind
only the tests edited      those that notice fail: a task asks for them; the others must not care
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from etude.forge.environments.suite_run import SuiteRun
from etude.forge.languages.base import LocatedTest
from etude.forge.languages.python.repository import PythonRepository
from etude.forge.languages.python.source import Module
from etude.forge.origins.refactoring.candidate import Refactoring
from etude.forge.steps.choose_functions import LEAST_TESTS
from etude.forge.steps.context import MakeContext, Refused
from etude.forge.steps.proof import Gates, Proof

MOST_ASKED: Final = 120  # ids of the repository's own that have to pass at each grading
MOST_SECONDS: Final = 4.0  # that those may take together


@dataclass(frozen=True, kw_only=True)
class RefactoringProof(Proof[Refactoring]):
    """What running it showed."""

    noticing: tuple[str, ...]  # the repository's own tests in their new form that fail before
    leftover: tuple[str, ...]  # tests of what was left behind, which fail before too
    kept: tuple[str, ...]  # tests that pass before and after


async def prove(context: MakeContext, candidate: Refactoring) -> RefactoringProof:
    """With the whole edit made every green test still passes; with only the tests edited, some fail."""
    repository = context.python
    green = [
        test for test in repository.green if test not in context.unsteady and not _is_gone(repository, candidate, test)
    ]
    whole = candidate.all_edits
    after = await context.run_tests(whole)
    failed = [test for test in green if test not in after.passed]
    if failed:
        again = (await context.run_tests(whole, failed)).passed.intersection(failed)
        context.unsteady.update(again)
        if stay := [test for test in failed if test not in again]:
            raise Refused("the edit breaks a test", _said(stay, after))
    names = [f"{candidate.leftover_tests[0]}::{name}" for name in _functions(candidate.leftover_tests[1])]
    if left := [test for test in names if test not in after.passed]:
        raise Refused("the edit leaves something behind", _said(left, after))
    before = await context.run_tests({path: data for path, data in whole.items() if repository.is_test(path)})
    # What lies outside of the tests' own files may be edited, and so changed, by whoever does the work.
    steady = [test for test in green if test not in context.unsteady and test.partition("::")[0] in repository.tests]
    noticing = [test for test in steady if test not in before.passed]
    leftover = [test for test in names if test not in before.passed]
    if not noticing:
        raise Refused("no test notices")
    if not leftover or len(noticing) + len(leftover) < LEAST_TESTS:
        raise Refused("too few tests notice", ", ".join(noticing[:3]))
    kept = [test for test in steady if test in before.passed]
    chosen = _chosen(repository, candidate, noticing)
    return RefactoringProof(
        candidate,
        gates=Gates([*chosen, *leftover, *kept], repository.files.replaced(whole)),
        noticing=tuple(chosen),
        leftover=tuple(leftover),
        kept=tuple(kept),
    )


def _is_gone(repository: PythonRepository, candidate: Refactoring, test: str) -> bool:
    """Whether a test in the code itself, a doctest, gets another id."""
    path, _, name = test.partition("::")
    return path not in repository.tests and (
        candidate.edits.get(path, b"") is None or candidate.old in re.findall(r"\w+", name)
    )


def _chosen(repository: PythonRepository, candidate: Refactoring, noticing: Sequence[str]) -> list[str]:
    """So many of the tests that notice, whole functions: those first that speak of what changes."""
    new = candidate.new if candidate.how != "move" else candidate.dotted[1].rpartition(".")[2]
    places: dict[LocatedTest, list[str]] = {}
    for test in noticing:
        if repository.place(test) == repository.collected(test) or not repository.place(test).name:
            places.setdefault(repository.collected(test), []).append(test)

    def speaks(place: LocatedTest) -> bool:
        data = candidate.edits.get(place.path)
        module = Module.read(place.path, data) if data is not None else None
        found = module.definitions.get(place.name) if module is not None else None
        return module is not None and found is not None and new in module.source(found)

    chosen: set[str] = set()
    seconds = 0.0
    for place in sorted(places, key=lambda place: not speaks(place)):
        tests = places[place]
        more = sum(repository.took.get(test, 0.0) for test in tests)
        if not chosen or (len(chosen) + len(tests) <= MOST_ASKED and seconds + more <= MOST_SECONDS):
            chosen.update(tests)
            seconds += more
    return [test for test in noticing if test in chosen]


def _functions(text: bytes) -> list[str]:
    module = Module.read("test.py", text)
    assert module is not None
    return [name for name in module.definitions if name.startswith("test_")]


def _said(tests: Collection[str], run: SuiteRun) -> str:
    first = next(iter(tests))
    lines = run.texts.get(first, run.texts.get(first.partition("::")[0], "")).strip().splitlines()
    return f"{first}{f' and {len(tests) - 1} more' if len(tests) > 1 else ''}: {lines[-1] if lines else 'not there'}"
