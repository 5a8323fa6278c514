"""Refactorings to try, the kinds in turns. Knows what each kind proposes; runs nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator

from etude.forge.languages.python.repository import PythonRepository
from etude.forge.origins.refactoring.candidate import Refactoring
from etude.forge.origins.refactoring.move_module import moves
from etude.forge.origins.refactoring.name_uses import Uses
from etude.forge.origins.refactoring.rename_parameter import parameters
from etude.forge.origins.refactoring.rename_symbol import renames
from etude.forge.steps.round_robin import in_turns


def refactorings(repository: PythonRepository, rng: random.Random) -> Iterator[Refactoring]:
    """Each with its whole edit. A kind that has no more is left out."""
    uses = Uses(repository)
    seeds = [random.Random(rng.random()) for _ in range(3)]
    return in_turns([renames(uses, seeds[0]), parameters(uses, seeds[1]), moves(uses, seeds[2])])
