"""Sets of functions that go together, without their bodies or whole. Knows the code; runs nothing."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from typing import Any, Final

from etude.forge.languages.base import Extent, Repository
from etude.forge.steps.candidate import Candidate, LeftOut, RemovedCode
from etude.forge.steps.choose_functions import FunctionSet, choose, most_tests, unfit_functions

WHOLE: Final = 0.5  # share of the candidates whose symbols are removed whole, where that is possible


def deletions(
    repository: Repository[Any], rng: random.Random, leave_out: Callable[[LeftOut], None] = lambda _: None
) -> Iterator[Candidate]:
    """Candidates in the order in which they should be tried. Functions that fit none are told, by the reason."""
    for why, names in unfit_functions(repository).items():
        key = f"deletion-{hashlib.sha256(why.encode()).hexdigest()[:12]}"
        leave_out(LeftOut(key, "deletion", "function", why, ", ".join(names), len(names)))
    for chosen in choose(repository, rng):
        made = delete(repository, chosen, whole=rng.random() < WHOLE)
        if made is not None:
            yield made


def delete(repository: Repository[Any], chosen: FunctionSet[Any], *, whole: bool) -> Candidate | None:
    """The candidate without these functions; None where a file would not be of its language any more."""
    extent: Extent = "bodies" if not whole else "class" if chosen.shape == "class" else "symbols"
    deletion = repository.delete(chosen.definitions, extent)
    broken = [test for test in repository.green if repository.collected(test).path in deletion.importers]
    tests = chosen.tests | repository.masked(broken)
    if tests.bit_count() > most_tests(len(repository.green)):  # whole test files could not be loaded
        deletion, tests = repository.delete(chosen.definitions, "bodies"), chosen.tests
    if any(repository.read(path, data) is None for path, data in deletion.changes.items()):
        return None
    pieces = tuple(RemovedCode.of(repository, each, gone=each.id in deletion.gone) for each in deletion.symbols)
    how = "slice" if chosen.files > 1 else "symbols" if deletion.gone else "bodies"
    expected = frozenset(repository.named(tests))
    return Candidate("deletion", how, deletion.changes, pieces, expected, lines=chosen.lines)
