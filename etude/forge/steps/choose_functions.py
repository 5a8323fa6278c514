"""Which functions go together: sets that a handful of tests reach and few others do.

A set starts at one function and grows along names that one function's code uses of another, and within a class, as
long as no foreign tests come in. Functions that too few tests reach are put together until those are enough. Larger and
wider sets are harder. Knows traces and code; changes nothing.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any, Generic, Literal

from etude.forge.languages.base import Repository, S

Shape = Literal["function", "group", "class", "slice"]

LEAST_TESTS = 3  # ids that must notice
LEAST_PLACES = 2  # test functions that must: one to show, one to hold out
MOST_SHARE = 0.4  # of all tests; what more than these rely on is the ground, not a feature
MOST_TESTS = 400
# Of a suite of a dozen tests 40% are four, which nearly every function passes that is worth a task. What is left has to
# show all the same that the rest still works.
FEW_TESTS = 10
MOST_SHARE_OF_FEW = 0.6
SLACK = 0.2  # share of foreign tests that a set may bring in
LEAST_LINES = 2
MOST_LINES = 400
MOST_FUNCTIONS: dict[Shape, int] = {"function": 1, "group": 4, "class": 30, "slice": 14}
ALIKE = 0.6  # sets that share more of their functions are one task
COMMON = 2  # definitions of one name; a name that more have says little about who is meant


@dataclass(frozen=True)
class FunctionSet(Generic[S]):
    """Functions to take away together."""

    shape: Shape
    definitions: tuple[S, ...]
    tests: int  # those that reach any of them, as `Repository.bits` has them

    @property
    def ids(self) -> frozenset[str]:
        return frozenset(each.id for each in self.definitions)

    @property
    def lines(self) -> int:
        return sum(each.size for each in self.definitions)

    @property
    def files(self) -> int:
        return len({each.path for each in self.definitions})


def choose(repository: Repository[S], rng: random.Random) -> Iterator[FunctionSet[S]]:
    """Sets in the order in which they should be tried: the shapes take turns, the better ones of each come first."""
    links = Links(repository)
    shapes: dict[Shape, list[FunctionSet[S]]] = {"function": [], "group": [], "class": [], "slice": []}
    for seed in sorted(links.functions, key=lambda each: each.id):
        shapes["function"].append(FunctionSet("function", (seed,), repository.reach[seed.id]))
        shapes["group"].append(grow(repository, links, seed, "group"))
        shapes["slice"].append(grow(repository, links, seed, "slice"))
        if seed.id in links.scarce:
            shapes["group"].append(gather(repository, links, seed))
    shapes["class"] = list(_classes(repository, links))
    taken: list[frozenset[str]] = []
    ranked = []
    for sets in shapes.values():
        # A random part, so that another seed makes other tasks of the same repository.
        fit = [(chosen, score(repository, chosen) + rng.random()) for chosen in sets if is_fit(repository, chosen)]
        ranked.append([chosen for chosen, _ in sorted(fit, key=lambda pair: -pair[1])])
    # One function at a time is what most repositories have most of; each turn takes two of these.
    singles = ranked[0]
    turns = zip_longest(singles[::2], singles[1::2], *ranked[1:])
    for chosen in (chosen for turn in turns for chosen in turn if chosen is not None):
        # A set that shares most of its functions with another is nearly the same task.
        if not any(_share(chosen.ids, other) > ALIKE for other in taken):
            taken.append(chosen.ids)
            yield chosen


def most_tests(total: int) -> float:
    """How many of so many tests a change may break."""
    return max(MOST_SHARE * total, min(FEW_TESTS, MOST_SHARE_OF_FEW * total))


def is_fit(repository: Repository[Any], chosen: FunctionSet[Any]) -> bool:
    """Whether enough tests would notice, enough would not, and there is something to write."""
    return not unfit(repository, chosen)


def unfit(repository: Repository[Any], chosen: FunctionSet[Any]) -> str:
    """Why a set makes no task; nothing where it may."""
    count = chosen.tests.bit_count()
    least = {"function": 1, "group": 2, "class": 2, "slice": 3}[chosen.shape]
    if not has_enough_tests(repository, chosen.tests):
        return f"fewer than {LEAST_TESTS} tests in {LEAST_PLACES} test functions reach it"
    if count > (most := min(MOST_TESTS, most_tests(len(repository.green)))):
        return f"more than {most:.0f} of {len(repository.green)} tests reach it"
    if chosen.lines < LEAST_LINES:
        return f"it has fewer than {LEAST_LINES} lines"
    if chosen.lines > MOST_LINES:
        return f"it has more than {MOST_LINES} lines"
    if len(chosen.definitions) < least or (chosen.shape == "slice" and chosen.files < 2):
        return "too little goes together with it"
    return ""


def unfit_functions(repository: Repository[Any]) -> dict[str, list[str]]:
    """Functions that no task can be about by themselves, by the reason."""
    found: dict[str, list[str]] = {}
    for each in repository.symbols.values():
        if not repository.reach.get(each.id):
            why = "no test reaches it"
        elif each.id in repository.early:
            why = "it runs while tests are collected"
        elif not each.deletable:
            why = "there is nothing in it that could be taken away alone"
        else:
            why = unfit(repository, FunctionSet("function", (each,), repository.reach[each.id]))
        if why:
            found.setdefault(why, []).append(each.id)
    return found


def score(repository: Repository[Any], chosen: FunctionSet[Any]) -> float:
    """More lines and files, documented, reached by the same tests, few foreign ones."""
    documented = sum(bool(each.doc) for each in chosen.definitions) / len(chosen.definitions)
    together = sum(repository.reach.get(each.id, 0).bit_count() for each in chosen.definitions)
    cohesion = together / (len(chosen.definitions) * chosen.tests.bit_count())
    wide = chosen.tests.bit_count() / len(repository.green)
    # A set that half of the suite reaches is no feature; log2, as twice the lines is not twice as good.
    return math.log2(1 + min(chosen.lines, 120)) + 0.8 * (chosen.files - 1) + 0.5 * documented + cohesion - 4 * wide


class Links(Generic[S]):
    """Which functions can be taken away, and which of them have to do with each other."""

    def __init__(self, repository: Repository[S]) -> None:
        self.functions = [
            each
            for each in repository.symbols.values()
            if repository.reach.get(each.id) and each.deletable and each.id not in repository.early
        ]
        self.classes: dict[tuple[str, str], list[S]] = {}
        for each in self.functions:
            if each.owner:
                self.classes.setdefault((each.path, each.owner), []).append(each)
        # Those that too few tests reach for a task of their own.
        self.scarce = {
            each.id: each for each in self.functions if not has_enough_tests(repository, repository.reach[each.id])
        }
        self._by_name: dict[str, list[S]] = {}
        for each in self.functions:
            self._by_name.setdefault(each.short, []).append(each)
        self._common = Counter(each.short for each in repository.symbols.values())
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
        # A name such as `get` that many classes have links nothing unless it is in the same file.
        return known if self._common[name] <= COMMON else [one for one in known if one.path == by.path]

    def members(self, definition: S) -> list[S]:
        return self.classes[definition.path, definition.owner] if definition.owner else []


def grow(repository: Repository[S], links: Links[S], seed: S, shape: Shape) -> FunctionSet[S]:
    """The seed and its neighbours, nearest first, as long as they bring in few foreign tests."""
    own = repository.reach[seed.id]
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
                # A function that other tests use as well would break those, and they are not what the task is about.
                foreign = (repository.reach[other.id] & ~own).bit_count()
                if foreign <= SLACK * own.bit_count():
                    taken[other.id] = other
                    following.append(other)
        edge = following
    return FunctionSet(shape, tuple(taken.values()), repository.reaching(taken))


def has_enough_tests(repository: Repository[Any], tests: int) -> bool:
    """Whether so many of them may notice that some can be shown and some held out."""
    count = tests.bit_count()
    if not LEAST_TESTS <= count < MOST_TESTS:
        return count >= MOST_TESTS
    return len({repository.place(test) for test in repository.named(tests)}) >= LEAST_PLACES


def gather(repository: Repository[S], links: Links[S], seed: S) -> FunctionSet[S]:
    """The seed and others that too few tests reach, the nearest first, until together they have enough tests."""
    taken, tests = {seed.id: seed}, repository.reach[seed.id]
    near = (each for each in links.near(seed) if each.id in links.scarce)
    same_file = (each for each in links.scarce.values() if each.path == seed.path)
    for each in chain(near, same_file, links.scarce.values()):
        if has_enough_tests(repository, tests) or len(taken) == MOST_FUNCTIONS["group"]:
            break
        if each.id not in taken and repository.reach[each.id] & ~tests:
            taken[each.id] = each
            tests |= repository.reach[each.id]
    return FunctionSet("group", tuple(taken.values()), tests)


def _classes(repository: Repository[S], links: Links[S]) -> Iterator[FunctionSet[S]]:
    """All that a class does."""
    for members in links.classes.values():
        tests = repository.reaching(each.id for each in members)
        yield FunctionSet("class", tuple(members), tests)


def _share(one: frozenset[str], other: frozenset[str]) -> float:
    return len(one & other) / len(one | other)
