"""Feature deletion: bodies, whole symbols, or both over several files, and everything that mentioned them cleaned.

Bodies leave signature and docstring behind. A symbol is removed whole where nothing that stays mentions it but
imports, `__all__` and registrations; where something does, its body goes. Knows the code; runs nothing.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterator

from etude.forge.languages.python.references import Blocked, Cleaning, Lines, forget
from etude.forge.languages.python.repository import PythonRepository, place_of
from etude.forge.languages.python.source import Definition, Edit, Module
from etude.forge.steps.candidate import Candidate, RemovedCode
from etude.forge.steps.choose_functions import MOST_SHARE, Cut, choose

WHOLE = 0.5  # share of the candidates whose symbols are removed whole, where that is possible


def deletions(world: PythonRepository, rng: random.Random) -> Iterator[Candidate]:
    """Candidates in the order in which they should be tried."""
    for cut in choose(world, rng):
        whole = rng.random() < WHOLE
        made = delete(world, cut, whole=whole)
        if made is not None:
            yield made


def delete(world: PythonRepository, cut: Cut[Definition], *, whole: bool) -> Candidate | None:
    """The candidate without these functions; None where the result would not be Python."""
    cleaning, removed = _removals(world, cut) if whole else (Cleaning(), [])
    tests = cut.tests | world.masked(test for test in world.green if place_of(test).path in cleaning.importers)
    if tests.bit_count() > MOST_SHARE * len(world.green):
        cleaning, removed, tests = Cleaning(), [], cut.tests
    edits = cleaning.finish(world)
    gone = {each.id for each in removed}
    for each in removed:
        edits.setdefault(each.path, []).append(world.modules[each.path].without(each))
        for path, edit in _stub_edits(world, each):
            edits.setdefault(path, []).append(edit)
    for each in cut.definitions:
        if not any(each.id == one or each.id.startswith(f"{one}.") for one in gone):
            edits.setdefault(each.path, []).append(world.modules[each.path].without_body(each))
    changes: dict[str, bytes | None] = {}
    for path, wanted in edits.items():
        module = world.modules.get(path) or world.stubs[path]
        data = module.edited(wanted)
        if gone and path in world.modules:
            data = without_dead_imports(world, module, data)
        if Module.read(path, data) is None:
            return None
        changes[path] = data
    pieces = tuple(_piece(world, each, gone=each.id in gone) for each in _outermost([*removed, *cut.definitions]))
    how = "slice" if cut.files > 1 else "symbols" if gone else "bodies"
    return Candidate("deletion", how, changes, pieces, frozenset(world.named(tests)), lines=cut.lines)


def _removals(world: PythonRepository, cut: Cut[Definition]) -> tuple[Cleaning, list[Definition]]:
    """Which of the symbols can go whole, with the cleaning that this takes."""
    wanted = list(cut.definitions)
    if cut.shape == "class":
        first = cut.definitions[0]
        holder = world.definitions[f"{first.path}:{first.owner}"]
        if not holder.repeated and not holder.alone:
            wanted = [holder]
    going: Lines = {}
    for each in [*cut.definitions, *wanted]:
        going.setdefault(each.path, []).append((each.first, each.last))
    cleaning, removed = Cleaning(), []
    for each in wanted:
        if each.alone or each.repeated or each.short.startswith("__") or (each.decorators and each.owner):
            continue
        try:
            cleaning.join(forget(world, each, going))
        except Blocked:
            continue
        removed.append(each)
    return cleaning, removed


def _stub_edits(world: PythonRepository, definition: Definition) -> Iterator[tuple[str, Edit]]:
    stub = world.stubs.get(f"{definition.path}i")
    found = stub.definitions.get(definition.name) if stub is not None else None
    if stub is not None and found is not None and not found.repeated and not found.alone:
        yield stub.path, stub.without(found)


def without_dead_imports(world: PythonRepository, before: Module, data: bytes) -> bytes:
    """The file without imports that only the deleted code needed, as its author would have left it."""
    after = Module.read(before.path, data)
    if after is None or before.path.endswith("__init__.py"):
        return data
    used = set(identifiers_in_use(after.tree))
    was_used = set(identifiers_in_use(before.tree))
    edits: list[Edit] = []
    for statement in after.tree.body:
        if not isinstance(statement, ast.Import | ast.ImportFrom):
            continue
        if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
            continue
        names = [(alias.asname or alias.name).partition(".")[0] for alias in statement.names]
        dead = [name for name in names if name in was_used - used and not _is_known_from(world, before.path, name)]
        if len(dead) == len(names):
            edits.append(after.without_statement(statement, alone=False))
    return after.edited(edits)


def identifiers_in_use(tree: ast.Module) -> Iterator[str]:
    """Names that code mentions, imports left out, words of `__all__` and of quoted annotations counted."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 200:
            yield from re.findall(r"\w+", node.value)


def _is_known_from(world: PythonRepository, path: str, name: str) -> bool:
    """Whether somebody takes an imported name from this file instead of from where it is at home."""
    stem = path.removesuffix(".py").rpartition("/")[2]
    for module in [*world.modules.values(), *world.tests.values()]:
        if re.search(rf"\b{re.escape(stem)}\b.*\b{re.escape(name)}\b", module.text):
            return True
    return False


def _piece(world: PythonRepository, each: Definition, *, gone: bool) -> RemovedCode:
    source = world.modules[each.path].source(each)
    return RemovedCode(each.path, each.name, source, each.signature, each.doc, each.size, gone)


def _outermost(definitions: list[Definition]) -> list[Definition]:
    """Without repeats, and without the methods of classes that are there too."""
    known = {each.id: each for each in definitions}
    return [
        each
        for each in known.values()
        if not any(each.id.startswith(f"{other}.") for other in known if other != each.id)
    ]
