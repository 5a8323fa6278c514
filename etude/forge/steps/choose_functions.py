"""Which functions go together: sets that a handful of tests reach and few others do.

A set starts at one function and grows along names that one function's code uses of another, and within a class, as
long as no foreign tests come in. Larger and wider sets are harder. Knows traces and code; changes nothing.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Generic, Literal

from etude.forge.languages.base import Repository, S

Shape = Literal["function", "group", "class", "slice"]

LEAST_TESTS = 3  # ids that must notice
LEAST_PLACES = 2  # test functions that must: one to show, one to hold out
MOST_SHARE = 0.4  # of all tests; what more than these rely on is the ground, not a feature
MOST_TESTS = 400
SLACK = 0.2  # share of foreign tests that a set may bring in
LEAST_LINES = 2
MOST_LINES = 400
MOST_FUNCTIONS: dict[Shape, int] = {"function": 1, "group": 4, "class": 30, "slice": 14}
ALIKE = 0.6  # sets that share more of their functions are one task
COMMON = 2  # definitions of one name; a name that more have says little about who is meant


@dataclass(frozen=True)
class Cut(Generic[S]):
    """Functions to take away together."""

    shape: Shape
    definitions: tuple[S, ...]
    tests: int  # those that reach any of them, as `World.bits` has them

    @property
    def ids(self) -> frozenset[str]:
        return frozenset(each.id for each in self.definitions)

    @property
    def lines(self) -> int:
        return sum(each.size for each in self.definitions)

    @property
    def files(self) -> int:
        return len({each.path for each in self.definitions})


def choose(world: Repository[S], rng: random.Random) -> Iterator[Cut[S]]:
    """Sets in the order in which they should be tried: the shapes take turns, the better ones of each come first."""
    links = Links(world)
    shapes: dict[Shape, list[Cut[S]]] = {"function": [], "group": [], "class": [], "slice": []}
    for seed in sorted(links.functions, key=lambda each: each.id):
        shapes["function"].append(Cut("function", (seed,), world.reach[seed.id]))
        shapes["group"].append(grow(world, links, seed, "group"))
        shapes["slice"].append(grow(world, links, seed, "slice"))
    shapes["class"] = list(_classes(world, links))
    chosen: list[frozenset[str]] = []
    ranked = []
    for cuts in shapes.values():
        fit = [(cut, score(world, cut) + rng.random()) for cut in cuts if is_fit(world, cut)]
        ranked.append([cut for cut, _ in sorted(fit, key=lambda pair: -pair[1])])
    # One function at a time is what most repositories have most of; each turn takes two of these.
    singles = ranked[0]
    turns = zip_longest(singles[::2], singles[1::2], *ranked[1:])
    for cut in (cut for turn in turns for cut in turn if cut is not None):
        if not any(_share(cut.ids, other) > ALIKE for other in chosen):
            chosen.append(cut.ids)
            yield cut


def is_fit(world: Repository[Any], cut: Cut[Any]) -> bool:
    """Whether enough tests would notice, enough would not, and there is something to write."""
    count = cut.tests.bit_count()
    places = len({world.place(test) for test in world.named(cut.tests)}) if count < MOST_TESTS else LEAST_PLACES
    least = {"function": 1, "group": 2, "class": 2, "slice": 3}[cut.shape]
    return (
        LEAST_TESTS <= count <= min(MOST_TESTS, MOST_SHARE * len(world.green))
        and places >= LEAST_PLACES
        and LEAST_LINES <= cut.lines <= MOST_LINES
        and len(cut.definitions) >= least
        and (cut.shape != "slice" or cut.files > 1)
    )


def score(world: Repository[Any], cut: Cut[Any]) -> float:
    """More lines and files, documented, reached by the same tests, few foreign ones."""
    documented = sum(bool(each.doc) for each in cut.definitions) / len(cut.definitions)
    together = sum(world.reach.get(each.id, 0).bit_count() for each in cut.definitions)
    cohesion = together / (len(cut.definitions) * cut.tests.bit_count())
    wide = cut.tests.bit_count() / len(world.green)
    return math.log2(1 + min(cut.lines, 120)) + 0.8 * (cut.files - 1) + 0.5 * documented + cohesion - 4 * wide


class Links(Generic[S]):
    """Which functions can be taken away, and which of them have to do with each other."""

    def __init__(self, world: Repository[S]) -> None:
        self.functions = [
            each
            for each in world.symbols.values()
            if world.reach.get(each.id) and each.deletable and each.id not in world.early
        ]
        self.classes: dict[tuple[str, str], list[S]] = {}
        for each in self.functions:
            if each.owner:
                self.classes.setdefault((each.path, each.owner), []).append(each)
        self._by_name: dict[str, list[S]] = {}
        for each in self.functions:
            self._by_name.setdefault(each.short, []).append(each)
        self._common = Counter(each.short for each in world.symbols.values())
        self._users: dict[str, list[S]] = {}
        for each in self.functions:
            for name in each.uses & self._by_name.keys():
                self._users.setdefault(name, []).append(each)

    def near(self, definition: S) -> list[S]:
        """What its code uses by name, who uses it, and what belongs to the same class."""
        called = [one for name in sorted(definition.uses) for one in self._meant(name, definition)]
        users = [
            one for one in self._users.get(definition.short, []) if definition in self._meant(definition.short, one)
        ]
        found = {one.id: one for one in [*called, *users, *self.members(definition)] if one.id != definition.id}
        return list(found.values())

    def _meant(self, name: str, by: S) -> list[S]:
        """What a name in somebody's code is likely to mean: one that many have means the one in the same file."""
        known = self._by_name.get(name, [])
        return known if self._common[name] <= COMMON else [one for one in known if one.path == by.path]

    def members(self, definition: S) -> list[S]:
        return self.classes[definition.path, definition.owner] if definition.owner else []


def grow(world: Repository[S], links: Links[S], seed: S, shape: Shape) -> Cut[S]:
    """The seed and its neighbours, nearest first, as long as they bring in few foreign tests."""
    own = world.reach[seed.id]
    taken = {seed.id: seed}
    edge = [seed]
    while edge and len(taken) < MOST_FUNCTIONS[shape]:
        following = []
        for each in edge:
            for other in links.near(each):
                if other.id in taken or len(taken) >= MOST_FUNCTIONS[shape]:
                    continue
                if shape == "group" and other.path != seed.path:
                    continue
                foreign = (world.reach[other.id] & ~own).bit_count()
                if foreign <= SLACK * own.bit_count():
                    taken[other.id] = other
                    following.append(other)
        edge = following
    tests = 0
    for name in taken:
        tests |= world.reach[name]
    return Cut(shape, tuple(taken.values()), tests)


def _classes(world: Repository[S], links: Links[S]) -> Iterator[Cut[S]]:
    """All that a class does."""
    for members in links.classes.values():
        tests = 0
        for each in members:
            tests |= world.reach[each.id]
        yield Cut("class", tuple(members), tests)


def _share(one: frozenset[str], other: frozenset[str]) -> float:
    return len(one & other) / len(one | other)
