"""Plans to write: two or three functions that are to have a bug each, and the question which have to be changed.

Only functions are taken that no other can stand in for, as far as traces tell: no function that uses it runs in all of
its tests, and none runs in just the same tests. Which bugs, and what they break, is found by execution (`prove_plan`).
Knows the code and who reaches it; runs nothing.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Final

from etude.forge.languages.python.repository import PythonRepository
from etude.forge.languages.python.source import Definition
from etude.forge.origins.question.candidate import Question
from etude.forge.steps.candidate import RemovedCode
from etude.forge.steps.choose_functions import LEAST_TESTS, MOST_SHARE, Links

BROKEN: Final = (2, 2, 3)  # functions of a plan
ROUNDS: Final = 6  # plans that begin at the same function
MOST_TESTS: Final = 60  # that reach one of them: each is tried several times
FAR: Final = 0.3  # share of the others that are taken from anywhere, and not from its neighbourhood


def plans(repository: PythonRepository, links: Links[Definition], rng: random.Random) -> Iterator[Question]:
    """In an order that is drawn; no set of functions twice."""
    most = min(MOST_TESTS, MOST_SHARE * len(repository.green))
    functions = [
        each
        for each in links.functions
        if LEAST_TESTS <= repository.reach[each.id].bit_count() <= most
        and not each.short.startswith("__")
        and repository.mistakes(each)
        and not _has_rivals(repository, each)
    ]
    known: set[frozenset[str]] = set()
    for _ in range(ROUNDS):
        for each in rng.sample(functions, len(functions)):
            chosen = [each, *_beside(links, each, functions, rng.choice(BROKEN) - 1, rng)]
            names = frozenset(one.id for one in chosen)
            if len(names) >= min(BROKEN) and names not in known:
                known.add(names)
                yield _plan(repository, chosen)


def could_be_blamed(repository: PythonRepository, broken: Definition, other: str) -> bool:
    """Whether a function that runs wherever this one fails might be mended instead: it uses this one, or there is no
    test without this one that shows that it is right as it is."""
    uses = broken.short in repository.definitions[other].uses
    return uses or not repository.reach.get(other, 0) & ~repository.reach[broken.id]


def _plan(repository: PythonRepository, broken: Sequence[Definition]) -> Question:
    pieces = tuple(RemovedCode.of(repository, one) for one in sorted(broken, key=lambda one: one.id))
    names = tuple(piece.id for piece in pieces)
    tests = frozenset(repository.named(repository.reaching(names)))
    return Question("question", "plan", {}, pieces, tests, kind="names", accepted=names, choices=names)


def _has_rivals(repository: PythonRepository, each: Definition) -> bool:
    """Whether a function that runs in every test of this one could be blamed as well."""
    tests = repository.reach[each.id]
    everywhere = [name for name, others in repository.reach.items() if name != each.id and not tests & ~others]
    return any(could_be_blamed(repository, each, name) for name in everywhere)


def _beside(
    links: Links[Definition], each: Definition, functions: Sequence[Definition], count: int, rng: random.Random
) -> list[Definition]:
    """Functions to break with it: near ones first, or of its file, now and then any."""
    near = {one.id for one in links.near(each)}
    order = [one for one in rng.sample(functions, len(functions)) if one is not each]
    if rng.random() >= FAR:
        order.sort(key=lambda one: (one.id not in near, one.path != each.path))
    return order[:count]
