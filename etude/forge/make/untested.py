"""Functions whose tests somebody is to write: their own tests leave the workspace, as one file they are the reference.

A set of functions of one file (`choose`), and every test function that reaches them, as far as these can be taken out
and are not too many. The reference is what goes of the one test file that has most of them. Which mistakes the tests
miss that stay is for `probe` to find out. Runs nothing.
"""

from __future__ import annotations

import ast
import random
import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

from etude.forge.make.bugs import mutations
from etude.forge.make.candidate import Piece, Testing
from etude.forge.make.choose import ALIKE, Cut, choose
from etude.forge.make.hide import is_movable, without_tests
from etude.forge.make.source import Module
from etude.forge.make.world import Place, World

MOST_FUNCTIONS: Final = 4
LEAST_PLACES: Final = 2  # test functions that go
MOST_PLACES: Final = 40
LEAST_MISTAKES: Final = 4  # that can be made in the functions


def untested(world: World, rng: random.Random) -> Iterator[Testing]:
    """In the order in which they should be tried; of two that lose nearly the same tests only the first."""
    known: list[set[str]] = []
    for cut in choose(world, rng):
        made = without_their_tests(world, cut)
        if (
            made is None
            or sum(len(mutations(world.modules[one.path], one)) for one in cut.definitions) < LEAST_MISTAKES
        ):
            continue
        removed = {piece.id for piece in made.removed}
        if not any(len(removed & other) > ALIKE * len(removed | other) for other in known):
            known.append(removed)
            yield made


def without_their_tests(world: World, cut: Cut) -> Testing | None:
    """None where the tests of these functions cannot be taken out of one file."""
    if cut.files > 1 or len(cut.definitions) > MOST_FUNCTIONS:
        return None
    tests = world.named(cut.tests)
    (path, _), *_ = Counter(world.place(test).path for test in tests).most_common(1)
    module = world.tests.get(path)
    places = {world.place(test) for test in tests}
    own = {place for place in places if place.path == path and place.name and is_movable(world, place)}
    if module is None or Place(path, "") in places or not LEAST_PLACES <= len(own) <= MOST_PLACES:
        return None
    gone = {place for place in places if place.name and is_movable(world, place)}
    gone = gone if len(gone) <= MOST_PLACES else own
    changes = dict(without_tests(world, gone))
    reference = _only(world, module, own)
    if reference is None or any(
        data is not None and name.endswith(".py") and Module.read(name, data) is None for name, data in changes.items()
    ):
        return None
    pieces = []
    for each in cut.definitions:
        source = world.modules[each.path].source(each)
        pieces.append(Piece(each.path, each.name, source, each.signature, each.doc, each.size))
    removed = []
    for place in sorted(gone, key=lambda place: (place.path, place.name)):
        written = world.tests[place.path]
        removed.append(Piece(place.path, place.name, written.source(written.definitions[place.name])))
    expected = frozenset(test for test in tests if world.place(test) in own)
    return Testing(
        "testing",
        cut.shape,
        changes,
        tuple(pieces),
        expected,
        lines=cut.lines,
        file=_free_name(world, path.rpartition("/")[0], cut),
        reference=reference,
        removed=tuple(removed),
        others=frozenset(test for test in tests if world.place(test) not in gone),
    )


def _only(world: World, module: Module, wanted: set[Place]) -> bytes | None:
    """The test file with these tests alone, and all that is no test."""
    stays = {
        Place(module.path, name)
        for name, each in module.definitions.items()
        if each.short.startswith("test") and not isinstance(each.node, ast.ClassDef)
    } - wanted
    data = dict(without_tests(world, stays)).get(module.path) if stays else module.data
    return data if data is not None and Module.read(module.path, data) is not None else None


def _free_name(world: World, folder: str, cut: Cut) -> str:
    """A file of that folder that no other test module has the name of: pytest may not tell two apart."""
    first = cut.definitions[0]
    stem = re.sub(r"\W|^_+|_+$", "", first.owner.rpartition(".")[2] if len(cut.definitions) > 1 else first.short)
    stem = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", stem or first.short).lower().strip("_") or "behaviour"
    taken = {path.rpartition("/")[2] for path in world.files}
    names = [f"test_{stem}.py", f"test_{stem}_behaviour.py", *(f"test_{stem}_{number}.py" for number in range(2, 99))]
    return f"{folder}/{next(name for name in names if name not in taken)}".lstrip("/")
