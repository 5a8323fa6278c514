"""Functions deleted from Python: their bodies, or all of them, and everything that mentioned them cleaned.

Bodies leave signature and docstring behind. A symbol is removed whole where nothing that stays mentions it but
imports, `__all__` and registrations; where something does, its body goes. Knows the code; runs nothing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from etude.forge.languages.base import DeletedFunctions, Extent
from etude.forge.languages.edits import Edit
from etude.forge.languages.python.references import Blocked, Cleaning, Lines, forget
from etude.forge.languages.python.source import Definition, Module

if TYPE_CHECKING:
    from etude.forge.languages.python.repository import PythonRepository


def delete(repository: PythonRepository, symbols: Sequence[Definition], extent: Extent) -> DeletedFunctions[Definition]:
    """The files without these functions."""
    cleaning, removed = Cleaning(), list[Definition]()
    if extent != "bodies":
        cleaning, removed = _removals(repository, symbols, whole_class=extent == "class")
    edits = cleaning.finish(repository)
    gone = frozenset(each.id for each in removed)
    for each in removed:
        edits.setdefault(each.path, []).append(repository.modules[each.path].without(each))
        for path, edit in _stub_edits(repository, each):
            edits.setdefault(path, []).append(edit)
    for each in symbols:
        if not any(each.id == one or each.id.startswith(f"{one}.") for one in gone):
            edits.setdefault(each.path, []).append(repository.modules[each.path].without_body(each))
    changes: dict[str, bytes] = {}
    for path, of_file in edits.items():
        module = repository.modules.get(path) or repository.stubs[path]
        changes[path] = module.edited(of_file)
        if gone and path in repository.modules:
            changes[path] = without_dead_imports(repository, module, changes[path])
    return DeletedFunctions(changes, tuple(_outermost([*removed, *symbols])), gone, frozenset(cleaning.importers))


def _removals(
    repository: PythonRepository, symbols: Sequence[Definition], *, whole_class: bool
) -> tuple[Cleaning, list[Definition]]:
    """Which of the symbols can go whole, with the cleaning that this takes."""
    chosen = list(symbols)
    if whole_class:
        holder = repository.definitions[f"{symbols[0].path}:{symbols[0].owner}"]
        if not holder.repeated and not holder.alone:
            chosen = [holder]
    going: Lines = {}
    for each in [*symbols, *chosen]:
        going.setdefault(each.path, []).append((each.first, each.last))
    cleaning, removed = Cleaning(), []
    for each in chosen:
        if each.alone or each.repeated or each.short.startswith("__") or (each.decorators and each.owner):
            continue
        try:
            cleaning.join(forget(repository, each, going))
        except Blocked:
            continue
        removed.append(each)
    return cleaning, removed


def _stub_edits(repository: PythonRepository, definition: Definition) -> Iterator[tuple[str, Edit]]:
    stub = repository.stubs.get(f"{definition.path}i")
    found = stub.definitions.get(definition.name) if stub is not None else None
    if stub is not None and found is not None and not found.repeated and not found.alone:
        yield stub.path, stub.without(found)


def without_dead_imports(repository: PythonRepository, before: Module, data: bytes) -> bytes:
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
        dead = [name for name in names if name in was_used - used and not _is_known_from(repository, before.path, name)]
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


def _is_known_from(repository: PythonRepository, path: str, name: str) -> bool:
    """Whether somebody takes an imported name from this file instead of from where it is at home."""
    stem = path.removesuffix(".py").rpartition("/")[2]
    for module in [*repository.modules.values(), *repository.tests.values()]:
        if re.search(rf"\b{re.escape(stem)}\b.*\b{re.escape(name)}\b", module.text):
            return True
    return False


def _outermost(definitions: list[Definition]) -> list[Definition]:
    """Without repeats, and without the methods of classes that are there too."""
    known = {each.id: each for each in definitions}
    return [
        each
        for each in known.values()
        if not any(each.id.startswith(f"{other}.") for other in known if other != each.id)
    ]
