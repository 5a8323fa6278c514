"""Which of the tests that notice the agent sees, and the workspace's test files without the others.

At least three in ten are held out, whole functions each, so that an answer which knows only the visible cases fails.
A file that makes its tests from data is hidden whole, with the data that only it names. What is shown should reach as
much of what is missing as possible. Tests that carry the answer in them are hidden as well. Knows test files as text;
runs nothing.
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

from etude.forge.make.candidate import Candidate
from etude.forge.make.source import Defined, Edit, Module
from etude.forge.make.world import Place, World, outermost

LEAST_HIDDEN: Final = 0.3  # share of the tests that notice
MOST_HIDDEN: Final = 0.7
DRAWS: Final = 40
COPIED: Final = 4  # neighbouring lines of deleted code that a test may not contain


@dataclass(frozen=True)
class Split:
    """Tests that fail before and pass after: those the agent sees and those it never does, with the edited files."""

    shown: tuple[str, ...]
    held_out: tuple[str, ...]
    files: dict[str, bytes | None]  # test files of the workspace without hidden functions
    hidden: frozenset[Place]


def split(
    world: World,
    candidate: Candidate,
    broken: Collection[str],
    rng: random.Random,
    preferred: Collection[Place] = (),
) -> Split | None:
    """None where not enough can be hidden, or nothing would be left to see."""
    places: dict[Place, list[str]] = {}
    for test in sorted(broken):
        places.setdefault(world.place(test), []).append(test)
    movable = [place for place in places if is_movable(world, place)]
    telling = {place for place in _telling(world, candidate) if is_movable(world, place)}
    chosen = _draw(world, candidate, places, movable, telling, rng, preferred)
    if chosen is None:
        return None
    hidden = frozenset(chosen | telling)
    held_out = tuple(test for place in places if place in hidden for test in places[place])
    shown = tuple(test for place in places if place not in hidden for test in places[place])
    return Split(shown, held_out, dict(without_tests(world, hidden)), hidden)


def _draw(
    world: World,
    candidate: Candidate,
    places: dict[Place, list[str]],
    movable: list[Place],
    telling: set[Place],
    rng: random.Random,
    preferred: Collection[Place],
) -> set[Place] | None:
    """Of several draws the one whose visible tests reach most of what is missing, with a share nearest the middle."""
    total = sum(map(len, places.values()))
    pieces = {each.id for each in candidate.pieces}
    reached = {
        place: pieces & {outermost(name) for test in tests for name in world.traces.get(test, ())}
        for place, tests in places.items()
    }
    best: tuple[float, set[Place]] | None = None
    for _ in range(DRAWS):
        hidden = {place for place in places if place in telling}
        order = rng.sample(movable, len(movable))
        order.sort(key=lambda place: place not in preferred)
        wanted = rng.uniform(LEAST_HIDDEN, MOST_HIDDEN)
        for place in order:
            share = sum(len(places[each]) for each in hidden) / total
            if (share >= wanted and place not in preferred) or len(hidden) + 1 >= len(places):
                break
            hidden.add(place)
        share = sum(len(places[each]) for each in hidden) / total
        shown = [place for place in places if place not in hidden]
        if share < LEAST_HIDDEN or not shown:
            continue
        worth = len(set().union(*(reached[place] for place in shown))) - max(0.0, share - MOST_HIDDEN)
        if best is None or worth > best[0]:
            best = worth, hidden
    return best[1] if best is not None else None


def is_movable(world: World, place: Place) -> bool:
    """Whether a test can be taken out of its file: it is written there once, and no other file inherits it."""
    module = world.tests.get(place.path)
    if module is not None and not place.name:
        return not _is_imported(world, place.path) and not place.path.endswith("conftest.py")
    found = module.definitions.get(place.name) if module is not None else None
    if module is None or found is None or found.repeated:
        return False
    return not world.heirs.get(found.owner.rpartition(".")[2], set()) - {place.path}


def without_tests(world: World, hidden: Collection[Place]) -> Iterator[tuple[str, bytes | None]]:
    """The files that hold hidden tests, without them; None for a file that has no other test."""
    by_path: dict[str, set[str]] = {}
    for place in hidden:
        by_path.setdefault(place.path, set()).add(place.name)
    for path, names in sorted(by_path.items()):
        module = world.tests[path]
        left = [place for place in world.places if place.path == path and place.name not in names]
        if not left and not _is_imported(world, path):
            yield path, None
        else:
            yield path, module.edited(_edits(module, names))
    for path in _data(world, {place.path for place in hidden if not place.name}):
        yield path, None


def _data(world: World, hidden: Collection[str]) -> Iterator[str]:
    """Data beside the tests that hidden files name, by name or without its ending, and no other test file does."""
    if not hidden:
        return
    theirs = set().union(*(world.words[path] for path in hidden))
    others = set().union(*(words for path, words in world.words.items() if path not in hidden))
    for path in world.files:
        name = path.rpartition("/")[2]
        words = {name, name.partition(".")[0]}
        if path not in world.tests and world.is_test(path) and words & theirs and not words & others:
            yield path


def _edits(module: Module, names: set[str]) -> Iterator[Edit]:
    for name in sorted(names):
        found = module.definitions[name]
        owner = module.definitions.get(found.owner) if found.owner else None
        if owner is None:
            yield module.without(found)
            continue
        inside = [f"{owner.name}.{each.name}" for each in owner.node.body if isinstance(each, Defined)]
        rest = [each for each in owner.code if not isinstance(each, Defined)]
        if rest or not names.issuperset(inside):
            yield module.without(found)
        elif len(re.findall(rf"\b{re.escape(owner.short)}\b", module.text)) == 1 and not owner.alone:
            yield module.without(owner)
        else:
            yield module.without_body(owner, b"pass")


def _is_imported(world: World, path: str) -> bool:
    """Whether another test file takes something from this one."""
    stem = re.escape(path.removesuffix(".py").rpartition("/")[2])
    takes = re.compile(rf"(?m)^\s*(from\s+\S*\b{stem}\b|(from\s+\S+\s+)?import\s.*\b{stem}\b)")
    return any(takes.search(each.text) for other, each in world.tests.items() if other != path)


def _telling(world: World, candidate: Candidate) -> Iterator[Place]:
    """Tests that contain a stretch of the deleted code. What helpers of theirs contain is for the audit to find."""
    stretches: set[tuple[str, ...]] = set()
    for piece in candidate.pieces:
        lines = [line.strip() for line in piece.source.splitlines() if len(line.strip()) > 3]
        stretches |= {tuple(lines[start : start + COPIED]) for start in range(len(lines) - COPIED + 1)}
    firsts = {stretch[0] for stretch in stretches}
    for path, module in world.tests.items():
        if not any(first in module.text for first in firsts):
            continue
        for name, each in module.definitions.items():
            if Place(path, name) not in world.places:
                continue
            lines = [line.strip() for line in module.source(each).splitlines() if len(line.strip()) > 3]
            if any(tuple(lines[at : at + COPIED]) in stretches for at in range(len(lines) - COPIED + 1)):
                yield Place(path, name)
