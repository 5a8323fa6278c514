"""Bugs as candidates: mistakes drawn from functions that tests reach, alone or several together.

Which mistakes a function can have, its language knows; how many go together, and in which functions, is decided here.
Runs nothing.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from etude.forge.languages.base import Repository
from etude.forge.steps.candidate import Candidate, RemovedCode
from etude.forge.steps.choose_functions import LEAST_TESTS, Links
from etude.forge.steps.killed_mutants import combined

COMBINED: Final = (1, 1, 2, 2, 3, 4)  # how many changes a candidate has
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
    """Candidates until there are no more, each function's mistakes drawn without repeats."""
    links = Links(repository)
    most = WIDEST * len(repository.green)
    functions = [each for each in links.functions if LEAST_TESTS <= repository.reach[each.id].bit_count() <= most]
    pools = {each.id: found for each in functions if (found := repository.mistakes(each))}
    functions = [each for each in functions if each.id in pools]
    for found in pools.values():
        rng.shuffle(found)
    while functions:
        rng.shuffle(functions)
        for each in functions:
            count = rng.choice(COMBINED)
            near = [one for one in links.near(each) if pools.get(one.id)]
            among = [each, *rng.sample(near, min(len(near), count - 1))]
            chosen = [pools[one.id].pop() for one in among if pools[one.id]]
            while len(chosen) < count and pools[each.id]:
                chosen.append(pools[each.id].pop())
            changes = combined(repository, chosen)
            if changes is None:
                continue
            broken = {one.definition.id: one.definition for one in chosen}
            tests = repository.reaching(broken)
            pieces = tuple(RemovedCode.of(repository, one) for one in broken.values())
            kinds = ", ".join(sorted({one.kind for one in chosen}))
            yield BuggyCode("bug", kinds, changes, pieces, frozenset(repository.named(tests)), lines=len(chosen))
        functions = [each for each in functions if pools[each.id]]
