"""Patches to review: several functions changed in ways that change nothing, and one of them broken.

A rename here, a condition turned round there, and somewhere a bug of `bugs`. Whether tests notice that one, and none of
the others, is for others to find out. Knows the code; runs nothing.
"""

from __future__ import annotations

import difflib
import random
from collections.abc import Iterator, Sequence
from typing import Final

from etude.forge.languages.python.bugs import mutations
from etude.forge.languages.python.harmless_changes import harmless
from etude.forge.languages.python.repository import PythonRepository
from etude.forge.languages.python.source import Definition, Edit, Module
from etude.forge.steps.candidate import Question, RemovedCode
from etude.forge.steps.choose_functions import LEAST_TESTS, MOST_SHARE, Links

CHANGED: Final = (3, 4, 5)  # functions of a patch
LONGEST: Final = 160  # lines of a patch
ROUNDS: Final = 3  # patches with a bug in the same function
BLUNT: Final = ("condition", "lost statement")  # bugs that are seen at once; last, where a function has others
ALSO: Final = 0.5  # share of the broken functions that are changed harmlessly too


def reviews(world: PythonRepository, links: Links[Definition], rng: random.Random) -> Iterator[Question]:
    """Patches in an order that is drawn, each function broken a few times at most."""
    most = MOST_SHARE * len(world.green)
    functions = [each for each in links.functions if LEAST_TESTS <= world.reach[each.id].bit_count() <= most]
    pools = {each.id: mutations(world.modules[each.path], each) for each in functions}
    for found in pools.values():
        rng.shuffle(found)
        found.sort(key=lambda each: each.kind not in BLUNT)  # taken from the end
    for _ in range(ROUNDS):
        for each in rng.sample(functions, len(functions)):
            made = review(world, links, each, pools[each.id].pop().edit, rng) if pools[each.id] else None
            if made is not None:
                yield made


def review(
    world: PythonRepository, links: Links[Definition], broken: Definition, bug: Edit, rng: random.Random
) -> Question | None:
    """A patch in which this function has this bug; None where too few others can be changed without harm."""
    near = links.near(broken)
    here = [one for one in links.functions if one.path == broken.path]
    beside = {one.id: one for one in [*(one for one in near if one.path == broken.path), *here, *near]}
    beside.pop(broken.id, None)
    wanted = rng.choice(CHANGED)
    edits: list[tuple[str, Edit]] = [(broken.path, bug)]
    kept = _harmless(world, broken, [bug], rng) if rng.random() < ALSO else []
    changed = [broken]
    for one in beside.values():
        found = _harmless(world, one, [edit for path, edit in edits if path == one.path], rng)
        if found:
            kept += found
            changed.append(one)
        if len(changed) == wanted:
            break
    if len(changed) < CHANGED[0]:
        return None
    changes, without = _edited(world, [*edits, *kept]), _edited(world, kept)
    if changes is None or without is None:
        return None
    patch = "".join(_diff(path, world.files[path], data) for path, data in sorted(changes.items()))
    lines = patch.count("\n")
    if lines > LONGEST:
        return None
    names = sorted(one.id for one in changed)
    expected = frozenset(world.named(world.reach[broken.id]))
    pieces = tuple(_piece(world, one) for one in changed)
    about = (broken.id,)
    return Question(
        "question", "review", changes, pieces, expected, "", lines, "name", about, tuple(names), "", without, patch
    )


def _harmless(
    world: PythonRepository, one: Definition, beside: Sequence[Edit], rng: random.Random
) -> list[tuple[str, Edit]]:
    """One change, now and then two, that meet neither each other nor what is there."""
    taken = list(beside)
    found: list[tuple[str, Edit]] = []
    for change in harmless(world.modules[one.path], one, rng)[: rng.choice((1, 1, 2))]:
        if not any(_meet(edit, other) for edit in change for other in taken):
            taken += change
            found += [(one.path, edit) for edit in change]
    return found


def _meet(one: Edit, other: Edit) -> bool:
    return one.start <= other.end and other.start <= one.end


def _edited(world: PythonRepository, edits: Sequence[tuple[str, Edit]]) -> dict[str, bytes | None] | None:
    by_path: dict[str, list[Edit]] = {}
    for path, edit in edits:
        by_path.setdefault(path, []).append(edit)
    changes: dict[str, bytes | None] = {}
    for path, wanted in by_path.items():
        data = world.modules[path].edited(wanted)
        if Module.read(path, data) is None:
            return None
        changes[path] = data
    return changes


def _diff(path: str, before: bytes, after: bytes | None) -> str:
    old, new = (data.decode("utf-8", "replace").splitlines(keepends=True) for data in (before, after or b""))
    lines = difflib.unified_diff(old, new, f"a/{path}", f"b/{path}")
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


def _piece(world: PythonRepository, one: Definition) -> RemovedCode:
    return RemovedCode(one.path, one.name, world.modules[one.path].source(one), one.signature, one.doc, one.size)
