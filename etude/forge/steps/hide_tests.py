"""Which of the tests that notice the agent sees, and the workspace's test files without the others.

At least three in ten are held out, whole functions each, so that an answer which knows only the visible cases fails;
more where their expected values are worth too little to be withheld.
A file that makes its tests from data is hidden whole, with the data that only it names. What is shown should reach as
much of what is missing as possible. Tests that carry the answer in them are hidden as well. What a test is in its file,
its language knows (`Repository`); runs nothing.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from etude.forge.languages.base import COPIED, LocatedTest, Repository, outermost, stretches
from etude.forge.steps.candidate import Candidate

LEAST_HIDDEN: Final = 0.3  # share of the tests that notice
MOST_HIDDEN: Final = 0.7
ENOUGH_BITS: Final = (
    40.0  # of expected values, by their text: twice what the gate asks for, as some will not be recorded
)
DRAWS: Final = 40


@dataclass(frozen=True)
class Split:
    """Tests that fail before and pass after: those the agent sees and those it never does, with the edited files."""

    shown: tuple[str, ...]
    held_out: tuple[str, ...]
    files: dict[str, bytes | None]  # test files of the workspace without hidden functions
    hidden: frozenset[LocatedTest]


def split(
    repository: Repository[Any],
    candidate: Candidate,
    broken: Collection[str],
    rng: random.Random,
    preferred: Collection[LocatedTest] = (),
) -> Split | None:
    """None where not enough can be hidden, or nothing would be left to see."""
    places: dict[LocatedTest, list[str]] = {}
    for test in sorted(broken):
        places.setdefault(repository.place(test), []).append(test)
    movable = [place for place in places if repository.is_movable(place)]
    copied = set().union(*(stretches(piece.source, COPIED) for piece in candidate.pieces))
    revealing = {place for place in repository.tests_with(copied) if repository.is_movable(place)}
    if len(places) == candidate.least_places == 1:
        # The one test that a fix came with decides, so it is not shown: the request is all there is.
        chosen = set(movable) or None
    else:
        chosen = _draw(repository, candidate, places, movable, revealing, rng, preferred)
    if chosen is None:
        return None
    hidden = frozenset(chosen | revealing)
    held_out = tuple(test for place in places if place in hidden for test in places[place])
    shown = tuple(test for place in places if place not in hidden for test in places[place])
    return Split(shown, held_out, dict(repository.without_tests(hidden)), hidden)


def _draw(
    repository: Repository[Any],
    candidate: Candidate,
    places: dict[LocatedTest, list[str]],
    movable: list[LocatedTest],
    revealing: set[LocatedTest],
    rng: random.Random,
    preferred: Collection[LocatedTest],
) -> set[LocatedTest] | None:
    """Of several draws the one whose visible tests reach most of what is missing, with a share nearest the middle."""
    total = sum(map(len, places.values()))
    pieces = {each.id for each in candidate.pieces}
    reached = {
        place: pieces & {outermost(name) for test in tests for name in repository.traces.get(test, ())}
        for place, tests in places.items()
    }
    worths = {place: repository.answer_bits([place]) for place in movable}
    best: tuple[float, set[LocatedTest]] | None = None
    for _ in range(DRAWS):
        hidden = {place for place in places if place in revealing}
        order = rng.sample(movable, len(movable))
        order.sort(key=lambda place: place not in preferred)
        least = rng.uniform(LEAST_HIDDEN, MOST_HIDDEN)
        for place in order:
            share = sum(len(places[each]) for each in hidden) / total
            if len(hidden) + 1 >= len(places):
                break
            # Beyond its share only what makes the withheld answers worth more is hidden.
            more = worths[place] and not _is_enough(hidden, worths)
            if share >= least and place not in preferred and not more:
                continue
            hidden.add(place)
        share = sum(len(places[each]) for each in hidden) / total
        shown = [place for place in places if place not in hidden]
        if share < LEAST_HIDDEN or not shown:
            continue
        worth = len(set().union(*(reached[place] for place in shown))) - max(0.0, share - MOST_HIDDEN)
        # A task whose answers are worth too little is refused, however much its visible tests reach.
        worth -= 0 if _is_enough(hidden, worths) else len(pieces) + 1
        if best is None or worth > best[0]:
            best = worth, hidden
    return best[1] if best is not None else None


def _is_enough(hidden: Collection[LocatedTest], worths: Mapping[LocatedTest, float | None]) -> bool:
    """Whether these tests withhold enough, or nothing at all is withheld in this language."""
    found = [worths[place] for place in hidden if place in worths]
    return None in worths.values() or sum(each or 0.0 for each in found) >= ENOUGH_BITS
