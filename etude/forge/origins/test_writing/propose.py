"""Functions that somebody is to write tests for, and the tests of theirs that go: as one file they are the reference.

Sets of functions of one file, as `choose_functions` finds them. Which tests notice which mistakes in them is found
by running (`origin`); what notices the chosen ones leaves the workspace. Runs nothing.
"""

from __future__ import annotations

import ast
import math
import random
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from etude.forge.languages.base import LocatedTest
from etude.forge.languages.python.repository import PythonRepository
from etude.forge.languages.python.source import Module
from etude.forge.languages.python.tests import is_movable, without_tests
from etude.forge.steps.candidate import Candidate, RemovedCode
from etude.forge.steps.choose_functions import choose
from etude.forge.steps.killed_mutants import LEAST

MOST_FUNCTIONS: Final = 4
SAME: Final = 0.9  # share of the tests that two sets of functions may have in common


@dataclass(frozen=True)
class UntestedFunctions(Candidate):
    """Functions (`pieces`) that tests are to be written for. The rest is known once mistakes are; `changes` then has
    the test files without those that notice them."""

    file: str = ""  # where the tests are to be written
    reference: bytes = field(default=b"", repr=False)  # the removed tests as that file
    mutants: tuple[Mapping[str, bytes], ...] = field(default=(), repr=False)  # files that a mistake changes, each
    removed: tuple[RemovedCode, ...] = field(default=(), repr=False)  # the tests that go

    @property
    def key(self) -> str:
        """Known before anybody has found mistakes in the functions."""
        return self.key_of(*(piece.id for piece in self.pieces))

    @property
    def difficulty(self) -> float:
        return 1.0 + 0.6 * math.log2(1 + self.lines) + 0.6 * (len(self.pieces) - 1)


def untested_functions(repository: PythonRepository, rng: random.Random) -> Iterator[UntestedFunctions]:
    """In the order in which they should be tried; of two that the same tests reach only the first."""
    known: list[int] = []
    for chosen in choose(repository, rng):
        mistakes = sum(len(repository.mistakes(each)) for each in chosen.definitions)
        if chosen.files > 1 or len(chosen.definitions) > MOST_FUNCTIONS or mistakes < LEAST:
            continue
        if any((chosen.tests & other).bit_count() > SAME * (chosen.tests | other).bit_count() for other in known):
            continue
        known.append(chosen.tests)
        pieces = tuple(RemovedCode.of(repository, each) for each in chosen.definitions)
        tests = frozenset(repository.named(chosen.tests))
        yield UntestedFunctions("testing", chosen.shape, {}, pieces, tests, lines=chosen.lines)


def can_go(repository: PythonRepository, place: LocatedTest) -> bool:
    """Whether a test function can be taken out by itself."""
    return bool(place.name) and is_movable(repository, place)


def home(places: Collection[LocatedTest]) -> str:
    """The test file that most of these are in."""
    return Counter(place.path for place in sorted(places, key=str)).most_common(1)[0][0]


def take_out(
    repository: PythonRepository, candidate: UntestedFunctions, gone: Collection[LocatedTest], path: str
) -> UntestedFunctions | None:
    """The same without these tests, those of one file as the reference; None where a file would be no Python then."""
    own = {place for place in gone if place.path == path}
    changes = dict(without_tests(repository, gone))
    reference = _only(repository, repository.tests[path], own)
    whole = [Module.read(name, data) for name, data in changes.items() if data is not None and name.endswith(".py")]
    if reference is None or None in whole:
        return None
    removed = []
    for place in sorted(gone, key=lambda place: (place.path, place.name)):
        written = repository.tests[place.path]
        removed.append(RemovedCode(place.path, place.name, written.source(written.definitions[place.name])))
    file = _free_name(repository, path.rpartition("/")[0], candidate.pieces)
    return replace(candidate, changes=changes, file=file, reference=reference, removed=tuple(removed))


def _only(repository: PythonRepository, module: Module, kept: set[LocatedTest]) -> bytes | None:
    """The test file with these tests alone, and all that is no test."""
    others = {
        LocatedTest(module.path, name)
        for name, each in module.definitions.items()
        if each.short.startswith("test") and not isinstance(each.node, ast.ClassDef)
    } - kept
    data = dict(without_tests(repository, others)).get(module.path) if others else module.data
    return data if data is not None and Module.read(module.path, data) is not None else None


def _free_name(repository: PythonRepository, folder: str, pieces: Collection[RemovedCode]) -> str:
    """A file of that folder that no other test module has the name of: pytest may not tell two apart."""
    first = next(iter(pieces)).name
    owner, _, short = first.rpartition(".")
    stem = (owner.rpartition(".")[2] if len(pieces) > 1 and owner else short).strip("_") or "behaviour"
    stem = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", stem).lower()
    taken = {path.rpartition("/")[2] for path in repository.files}
    names = [f"test_{stem}.py", f"test_{stem}_behaviour.py", *(f"test_{stem}_{number}.py" for number in range(2, 99))]
    return f"{folder}/{next(name for name in names if name not in taken)}".lstrip("/")
