"""Refactorings to try, the kinds in turns. Knows what each kind proposes; runs nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator

from etude.forge.languages.python.repository import World
from etude.forge.make.candidate import Refactoring
from etude.forge.refactor.move import moves
from etude.forge.refactor.parameter import parameters
from etude.forge.refactor.rename import renames
from etude.forge.refactor.uses import Uses


def refactorings(world: World, rng: random.Random) -> Iterator[Refactoring]:
    """Each with its whole edit. A kind that has no more is left out."""
    uses = Uses(world)
    seeds = [random.Random(rng.random()) for _ in range(3)]
    waiting = [renames(uses, seeds[0]), parameters(uses, seeds[1]), moves(uses, seeds[2])]
    while waiting:
        for stream in list(waiting):
            found = next(stream, None)
            if found is None:
                waiting.remove(stream)
            else:
                yield found
