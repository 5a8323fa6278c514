"""Bugs as candidates: mistakes drawn from functions that tests reach, alone or several together.

Which mistakes a function can have, its language knows; how many go together, and in which functions, is decided here.
Runs nothing.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from etude.forge.languages.base import Mutation, Repository
from etude.forge.steps.candidate import Candidate, RemovedCode
from etude.forge.steps.choose_functions import Links, gather, has_enough_tests
from etude.forge.steps.killed_mutants import combined

COMBINED: Final = (1, 1, 2, 2, 3, 4)  # how many changes a candidate has
AGAIN: Final = (2, 2, 3, 3, 4)  # and once each was drawn
ROUNDS: Final = 4  # over all functions, once each mistake was drawn
WIDEST: Final = 0.9  # share of the tests that may reach a function: a bug rarely breaks all who call it


@dataclass(frozen=True)
class BuggyCode(Candidate):
    """Functions (`pieces`) with mistakes in them, as many as `lines`; `how` names their kinds."""

    @property
    def difficulty(self) -> float:
        """By the number of mistakes, and by how much code there is in which they hide."""
        around = sum(piece.lines for piece in self.pieces)
        return 0.5 + 0.9 * self.lines + 0.5 * math.log2(1 + around) + 0.7 * (len(self.changes) - 1)


def bugs(repository: Repository[Any], rng: random.Random) -> Iterator[BuggyCode]:
    """Candidates until there are no more: each function's mistakes drawn without repeats, then put together anew."""
    links = Links(repository)
    most = WIDEST * len(repository.green)
    functions = [each for each in links.functions if repository.reach[each.id].bit_count() <= most]
    pools = {each.id: found for each in functions if (found := repository.mistakes(each))}
    functions = [each for each in functions if each.id in pools]
    for found in pools.values():
        rng.shuffle(found)
    every = {name: list(found) for name, found in pools.items()}
    known: set[frozenset[Any]] = set()

    def drawn(counts: Sequence[int]) -> Iterator[BuggyCode]:
        rng.shuffle(functions)
        for each in functions:
            chosen = _draw(repository, links, each, pools, rng.choice(counts), rng)
            made = _with_mistakes(repository, chosen) if frozenset(chosen) not in known else None
            known.add(frozenset(chosen))
            if made is not None:
                yield made

    while functions:
        yield from drawn(COMBINED)
        functions = [each for each in functions if pools[each.id]]
    # What one test alone noticed may be enough with another mistake.
    functions = [each for each in links.functions if each.id in every]
    for _ in range(ROUNDS):
        pools = {name: rng.sample(found, len(found)) for name, found in every.items()}
        yield from drawn(AGAIN)


def _draw(
    repository: Repository[Any],
    links: Links[Any],
    seed: Any,
    pools: Mapping[str, list[Mutation[Any]]],
    count: int,
    rng: random.Random,
) -> list[Mutation[Any]]:
    """So many mistakes out of the pools, of this function and of some that it has to do with."""
    near = [one for one in links.near(seed) if pools.get(one.id)]
    among = [seed, *rng.sample(near, min(len(near), count - 1))]
    if seed.id in links.scarce:
        among = [one for one in gather(repository, links, seed).definitions if pools.get(one.id)]
    chosen = [pools[one.id].pop() for one in among if pools[one.id]]
    while len(chosen) < count and pools[seed.id]:
        chosen.append(pools[seed.id].pop())
    return chosen


def _with_mistakes(repository: Repository[Any], chosen: Sequence[Mutation[Any]]) -> BuggyCode | None:
    """None where too few tests could notice, or a file would not be of its language any more."""
    broken = {one.definition.id: one.definition for one in chosen}
    tests = repository.reaching(broken)
    changes = combined(repository, chosen) if has_enough_tests(repository, tests) else None
    if changes is None:
        return None
    pieces = tuple(RemovedCode.of(repository, one) for one in broken.values())
    kinds = ", ".join(sorted({one.kind for one in chosen}))
    return BuggyCode("bug", kinds, changes, pieces, frozenset(repository.named(tests)), lines=len(chosen))
