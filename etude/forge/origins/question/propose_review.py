"""Patches to review: several functions changed in ways that change nothing, and one of them broken.

A rename here, a condition turned round there, and somewhere a bug. That tests notice that one, and none of the others,
is found by execution (`prove`). Knows the code; runs nothing.
"""

from __future__ import annotations

import difflib
import random
from collections.abc import Iterator, Sequence
from typing import Final

from etude.forge.languages.edits import Edit
from etude.forge.languages.python.harmless_changes import harmless
from etude.forge.languages.python.repository import PythonRepository
from etude.forge.languages.python.source import Definition
from etude.forge.origins.question.candidate import Question
from etude.forge.steps.candidate import RemovedCode
from etude.forge.steps.choose_functions import LEAST_TESTS, MOST_SHARE, Links
from etude.forge.steps.killed_mutants import edited_files

CHANGED: Final = (3, 4, 5)  # functions of a patch
LONGEST: Final = 160  # lines of a patch
ROUNDS: Final = 3  # patches with a bug in the same function
BLUNT: Final = ("condition", "lost statement")  # bugs that are seen at once; last, where a function has others
ALSO: Final = 0.5  # share of the broken functions that are changed harmlessly too


def reviews(repository: PythonRepository, links: Links[Definition], rng: random.Random) -> Iterator[Question]:
    """Patches in an order that is drawn, each function broken a few times at most."""
    most = MOST_SHARE * len(repository.green)
    functions = [each for each in links.functions if LEAST_TESTS <= repository.reach[each.id].bit_count() <= most]
    pools = {each.id: repository.mistakes(each) for each in functions}
    for found in pools.values():
        rng.shuffle(found)
        found.sort(key=lambda each: each.kind not in BLUNT)  # taken from the end
    for _ in range(ROUNDS):
        for each in rng.sample(functions, len(functions)):
            made = review(repository, links, each, pools[each.id].pop().edit, rng) if pools[each.id] else None
            if made is not None:
                yield made


def review(
    repository: PythonRepository, links: Links[Definition], broken: Definition, bug: Edit, rng: random.Random
) -> Question | None:
    """A patch in which this function has this bug; None where too few others can be changed without harm."""
    near = links.near(broken)
    here = [one for one in links.functions if one.path == broken.path]
    beside = {one.id: one for one in [*(one for one in near if one.path == broken.path), *here, *near]}
    beside.pop(broken.id, None)
    most_changed = rng.choice(CHANGED)
    edits: list[tuple[str, Edit]] = [(broken.path, bug)]
    kept = _harmless(repository, broken, [bug], rng) if rng.random() < ALSO else []
    changed = [broken]
    for one in beside.values():
        found = _harmless(repository, one, [edit for path, edit in edits if path == one.path], rng)
        if found:
            kept += found
            changed.append(one)
        if len(changed) == most_changed:
            break
    if len(changed) < CHANGED[0]:
        return None
    changes, without = _edited(repository, [*edits, *kept]), _edited(repository, kept)
    if changes is None or without is None:
        return None
    patch = "".join(_diff(path, repository.files[path], data) for path, data in sorted(changes.items()))
    lines = patch.count("\n")
    if lines > LONGEST:
        return None
    names = sorted(one.id for one in changed)
    expected = frozenset(repository.named(repository.reach[broken.id]))
    return Question(
        "question",
        "review",
        changes,
        tuple(RemovedCode.of(repository, one) for one in changed),
        expected,
        lines=lines,
        accepted=(broken.id,),
        choices=tuple(names),
        without_bug=without,
        patch=patch,
    )


def _harmless(
    repository: PythonRepository, one: Definition, beside: Sequence[Edit], rng: random.Random
) -> list[tuple[str, Edit]]:
    """One change, now and then two, that meet neither each other nor what is there."""
    taken = list(beside)
    found: list[tuple[str, Edit]] = []
    for change in harmless(repository.modules[one.path], one, rng)[: rng.choice((1, 1, 2))]:
        if not any(_meet(edit, other) for edit in change for other in taken):
            taken += change
            found += [(one.path, edit) for edit in change]
    return found


def _meet(one: Edit, other: Edit) -> bool:
    return one.start <= other.end and other.start <= one.end


def _edited(repository: PythonRepository, edits: Sequence[tuple[str, Edit]]) -> dict[str, bytes | None] | None:
    by_path: dict[str, list[Edit]] = {}
    for path, edit in edits:
        by_path.setdefault(path, []).append(edit)
    return edited_files(repository, by_path)


def _diff(path: str, before: bytes, after: bytes | None) -> str:
    old, new = (data.decode("utf-8", "replace").splitlines(keepends=True) for data in (before, after or b""))
    lines = difflib.unified_diff(old, new, f"a/{path}", f"b/{path}")
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)
