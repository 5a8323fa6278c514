"""Bugs as candidates, whatever language they are in: mistakes drawn from functions that tests reach, alone or together.

Which mistakes a function can have, its language knows (`bugs`, `forge/javascript/bugs`); how many go together, and in
which functions, is decided here. Runs nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic

from etude.forge.languages.base import Repository, S
from etude.forge.languages.python.source import Edit
from etude.forge.steps.candidate import Candidate, RemovedCode
from etude.forge.steps.choose_functions import LEAST_TESTS, Links

COMBINED: Final = (1, 1, 2, 2, 3, 4)  # how many changes a candidate has
WIDEST: Final = 0.9  # share of the tests that may reach a function: a bug rarely breaks all who call it


@dataclass(frozen=True)
class Mutation(Generic[S]):
    """One change, and what kind of mistake it is."""

    kind: str
    definition: S
    edit: Edit


def mistaken(
    world: Repository[S], mutations: Callable[[S], list[Mutation[S]]], rng: random.Random
) -> Iterator[Candidate]:
    """Candidates until there are no more, each function's mistakes drawn without repeats."""
    links = Links(world)
    most = WIDEST * len(world.green)
    functions = [each for each in links.functions if LEAST_TESTS <= world.reach[each.id].bit_count() <= most]
    pools = {each.id: found for each in functions if (found := mutations(each))}
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
            made = combined(world, chosen)
            if made is not None:
                yield made
        functions = [each for each in functions if pools[each.id]]


def combined(world: Repository[Any], chosen: Sequence[Mutation[Any]]) -> Candidate | None:
    """All of these made at once; None where the result would not be of its language any more."""
    edits: dict[str, list[Edit]] = {}
    for each in chosen:
        edits.setdefault(each.definition.path, []).append(each.edit)
    changes: dict[str, bytes | None] = {}
    for path, wanted in edits.items():
        data = world.sources[path].edited(wanted)
        if world.read(path, data) is None:
            return None
        changes[path] = data
    tests = 0
    pieces: dict[str, RemovedCode] = {}
    for one in (each.definition for each in chosen):
        tests |= world.reach[one.id]
        source = world.sources[one.path].source(one)
        pieces[one.id] = RemovedCode(one.path, one.name, source, one.signature, one.doc, one.size)
    how = ", ".join(sorted({each.kind for each in chosen}))
    found = frozenset(world.named(tests))
    return Candidate("bug", how, changes, tuple(pieces.values()), found, lines=len(chosen))
