"""Functions that somebody is to write tests for, and the tests of theirs that go: as one file they are the reference.

Sets of functions of one file, as `choose` finds them. Which mistakes in them which tests notice is for `probe` to find
out; what notices the chosen ones leaves the workspace. Runs nothing.
"""

from __future__ import annotations

import ast
import random
import re
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Final

from etude.forge.languages.base import TestFunction
from etude.forge.languages.python.bugs import mutations
from etude.forge.languages.python.repository import PythonRepository
from etude.forge.languages.python.source import Module
from etude.forge.languages.python.tests import is_movable, without_tests
from etude.forge.steps.candidate import RemovedCode, Testing
from etude.forge.steps.choose_functions import choose

MOST_FUNCTIONS: Final = 4
LEAST_MISTAKES: Final = 4  # that can be made in the functions
SAME: Final = 0.9  # share of the tests that two sets of functions may have in common


def untested(world: PythonRepository, rng: random.Random) -> Iterator[Testing]:
    """In the order in which they should be tried; of two that the same tests reach only the first."""
    known: list[int] = []
    for cut in choose(world, rng):
        mistakes = sum(len(mutations(world.modules[each.path], each)) for each in cut.definitions)
        if cut.files > 1 or len(cut.definitions) > MOST_FUNCTIONS or mistakes < LEAST_MISTAKES:
            continue
        if any((cut.tests & other).bit_count() > SAME * (cut.tests | other).bit_count() for other in known):
            continue
        known.append(cut.tests)
        pieces = []
        for each in cut.definitions:
            source = world.modules[each.path].source(each)
            pieces.append(RemovedCode(each.path, each.name, source, each.signature, each.doc, each.size))
        tests = frozenset(world.named(cut.tests))
        yield Testing("testing", cut.shape, {}, tuple(pieces), tests, lines=cut.lines)


def can_go(world: PythonRepository, place: TestFunction) -> bool:
    """Whether a test function can be taken out by itself."""
    return bool(place.name) and is_movable(world, place)


def home(places: Collection[TestFunction]) -> str:
    """The test file that most of these are in."""
    return Counter(place.path for place in sorted(places, key=str)).most_common(1)[0][0]


def take_out(world: PythonRepository, asked: Testing, gone: Collection[TestFunction], path: str) -> Testing | None:
    """The same without these tests, those of one file as the reference; None where a file would be no Python then."""
    own = {place for place in gone if place.path == path}
    changes = dict(without_tests(world, gone))
    reference = _only(world, world.tests[path], own)
    whole = [Module.read(name, data) for name, data in changes.items() if data is not None and name.endswith(".py")]
    if reference is None or None in whole:
        return None
    removed = []
    for place in sorted(gone, key=lambda place: (place.path, place.name)):
        written = world.tests[place.path]
        removed.append(RemovedCode(place.path, place.name, written.source(written.definitions[place.name])))
    file = _free_name(world, path.rpartition("/")[0], asked.pieces)
    return replace(asked, changes=changes, file=file, reference=reference, removed=tuple(removed))


def _only(world: PythonRepository, module: Module, wanted: set[TestFunction]) -> bytes | None:
    """The test file with these tests alone, and all that is no test."""
    stays = {
        TestFunction(module.path, name)
        for name, each in module.definitions.items()
        if each.short.startswith("test") and not isinstance(each.node, ast.ClassDef)
    } - wanted
    data = dict(without_tests(world, stays)).get(module.path) if stays else module.data
    return data if data is not None and Module.read(module.path, data) is not None else None


def _free_name(world: PythonRepository, folder: str, pieces: Collection[RemovedCode]) -> str:
    """A file of that folder that no other test module has the name of: pytest may not tell two apart."""
    first = next(iter(pieces)).name
    owner, _, short = first.rpartition(".")
    stem = (owner.rpartition(".")[2] if len(pieces) > 1 and owner else short).strip("_") or "behaviour"
    stem = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", stem).lower()
    taken = {path.rpartition("/")[2] for path in world.files}
    names = [f"test_{stem}.py", f"test_{stem}_behaviour.py", *(f"test_{stem}_{number}.py" for number in range(2, 99))]
    return f"{folder}/{next(name for name in names if name not in taken)}".lstrip("/")
