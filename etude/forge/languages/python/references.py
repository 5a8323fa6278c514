"""Who else mentions a symbol, and the edits that make them forget it: imports, exports, registrations.

A mention that cannot be cleaned (another function calls it) blocks the removal of the whole symbol. Knows the
project's code as text and tree; runs nothing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from etude.forge.languages.edits import Edit
from etude.forge.languages.python.source import Definition, Module

if TYPE_CHECKING:
    from etude.forge.languages.python.repository import PythonRepository

NAMED = {ast.Name: "id", ast.Attribute: "attr", ast.alias: "name", ast.Constant: "value"}  # what carries a name, where
Lines = dict[str, list[tuple[int, int]]]  # path -> first and last lines that go


class Blocked(Exception):
    """Why a symbol cannot be removed whole."""


@dataclass
class Listing:
    """A list between commas, of which items go."""

    holder: ast.AST  # an import, a literal
    items: list[tuple[int, int]]  # where each begins and ends
    block: ast.AST | None = None  # what an import stands in
    going: set[int] = field(default_factory=set)


@dataclass
class Cleaning:
    """What has to change so that nobody mentions a symbol any more."""

    edits: dict[str, list[Edit]] = field(default_factory=dict)
    listings: dict[tuple[str, int, int], Listing] = field(default_factory=dict)  # by file and place
    importers: set[str] = field(default_factory=set)  # test files that cannot be loaded without it

    def add(self, path: str, edit: Edit) -> None:
        self.edits.setdefault(path, []).append(edit)

    def join(self, other: Cleaning) -> None:
        for path, edits in other.edits.items():
            self.edits.setdefault(path, []).extend(edits)
        for place, listing in other.listings.items():
            self.listings.setdefault(place, listing).going.update(listing.going)
        self.importers |= other.importers

    def finish(self, repository: PythonRepository) -> dict[str, list[Edit]]:
        """All edits by file."""
        found = {path: list(edits) for path, edits in self.edits.items()}
        for (path, _, _), listing in self.listings.items():
            found.setdefault(path, []).extend(_without_items(repository.modules[path], listing))
        return found


def forget(repository: PythonRepository, definition: Definition, going: Lines) -> Cleaning:
    """Everything but the definition's own removal. `going` are lines that disappear anyway."""
    cleaning = Cleaning()
    shared = [module for path, module in repository.tests.items() if path.rpartition("/")[2] == "conftest.py"]
    # conftest.py is loaded for every test: without the symbol the whole suite would fail.
    if any(definition.short in module.words for module in shared):
        raise Blocked(f"conftest.py mentions {definition.short}")
    if definition.owner:
        for module in repository.modules.values():
            if any(isinstance(node, ast.Attribute) for node, _ in _mentions(module, definition.short, going)):
                raise Blocked(f"{module.path} uses .{definition.short}")
        return cleaning
    _forget(repository, definition.path, definition.name, going, cleaning)
    return cleaning


def _forget(repository: PythonRepository, path: str, name: str, going: Lines, cleaning: Cleaning) -> None:
    bound = _bound(repository, path, name)
    for module in repository.modules.values():
        for node, parents in list(_mentions(module, name, going)):
            if isinstance(node, ast.Attribute):
                raise Blocked(f"{module.path} uses .{name}")
            if module.path not in bound:
                continue
            if isinstance(node, ast.alias):
                if node.asname not in (None, name):
                    raise Blocked(f"{module.path} imports {name} under another name")
                _drop_import(module, node, parents, cleaning)
            elif isinstance(node, ast.Constant):
                _drop_export(module, node, parents, cleaning)
            else:
                again = _drop_registration(module, node, parents, cleaning)
                if again is not None:
                    span = (again.lineno, again.end_lineno or again.lineno)
                    also = {**going, module.path: [*going.get(module.path, []), span]}
                    _forget(repository, module.path, again.id, also, cleaning)
    for test in repository.tests.values():
        for statement in test.tree.body:
            if (
                isinstance(statement, ast.ImportFrom)
                and any(alias.name == name for alias in statement.names)
                and bound.intersection(repository.resolve(test.path, statement))
            ):
                cleaning.importers.add(test.path)


def _bound(repository: PythonRepository, path: str, name: str) -> set[str]:
    """Files in which the name means this symbol: where it is defined, and where it is imported from there."""
    bound = {path}
    importing = [
        (module.path, node)
        for module in repository.modules.values()
        for node in module.imports
        if any(alias.name in (name, "*") for alias in node.names)
    ]
    # An import may pass the name on to the next file, so the search goes on until nothing is new.
    grew = True
    while grew:
        more = {path for path, node in importing if bound.intersection(repository.resolve(path, node))} - bound
        bound |= more
        grew = bool(more)
    return bound


Parents = tuple[ast.AST, ...]


def _mentions(module: Module, name: str, going: Lines) -> Iterator[tuple[ast.AST, Parents]]:
    """Nodes that carry the name, with what they stand in, outside of what goes."""
    if name not in module.words:
        return
    spans = going.get(module.path, [])
    for node, parents in _walk(module.tree, ()):
        mentioned = next((getattr(node, part) for kind, part in NAMED.items() if isinstance(node, kind)), None)
        if mentioned == name and not any(first <= node.lineno <= last for first, last in spans):  # type: ignore[attr-defined]
            yield node, parents


def _walk(node: ast.AST, parents: Parents) -> Iterator[tuple[ast.AST, Parents]]:
    yield node, parents
    for child in ast.iter_child_nodes(node):
        yield from _walk(child, (*parents, node))


def _without_items(module: Module, listing: Listing) -> Iterator[Edit]:
    items, going, holder = listing.items, listing.going, listing.holder
    kept = [number for number in range(len(items)) if number not in going]
    if not kept and isinstance(holder, ast.ImportFrom | ast.Import):
        assert listing.block is not None
        yield module.without_statement(holder, alone=_is_alone(holder, listing.block))
        return
    comma = re.match(rb"\s*,", module.data[items[-1][1] :])
    if not kept:
        yield Edit(items[0][0], items[-1][1] + (comma.end() if comma else 0))
        return
    needs = isinstance(holder, ast.Tuple) and len(kept) == 1 and comma is None  # one item is no tuple without it
    for number in sorted(going):
        if number < kept[-1]:
            yield Edit(items[number][0], items[number + 1][0])
    if kept[-1] + 1 < len(items) or needs:
        yield Edit(items[kept[-1]][1], items[-1][1], b"," if needs else b"")


def _drop_import(module: Module, node: ast.alias, parents: Parents, cleaning: Cleaning) -> None:
    statement = parents[-1]
    assert isinstance(statement, ast.ImportFrom | ast.Import)
    spans = [module.span(each) for each in statement.names]
    _drop(module, Listing(statement, spans, parents[-2]), statement.names.index(node), cleaning)


def _drop(module: Module, listing: Listing, number: int, cleaning: Cleaning) -> None:
    holder = listing.holder
    assert isinstance(holder, ast.stmt | ast.expr)
    place = (module.path, holder.lineno, holder.col_offset)
    cleaning.listings.setdefault(place, listing).going.add(number)


def _drop_export(module: Module, node: ast.Constant, parents: Parents, cleaning: Cleaning) -> None:
    """A text equal to the name matters in `__all__` alone."""
    statement = _statement(parents)
    if isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Expr) and "__all__" in {
        each.id for each in ast.walk(statement) if isinstance(each, ast.Name)
    }:
        _drop_item(module, node, parents[-1], cleaning)


def _drop_registration(module: Module, node: ast.AST, parents: Parents, cleaning: Cleaning) -> ast.Name | None:
    """Cleans a mention in code that runs at import; returns another name that goes with it, if one does."""
    statement = _statement(parents)
    inside = [each for each in parents if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)]
    if inside or statement is None:
        raise Blocked(f"{module.path} uses it")
    if isinstance(parents[-1], ast.List | ast.Tuple | ast.Dict) and not isinstance(statement, ast.For):
        _drop_item(module, node, parents[-1], cleaning)
        return None
    block = parents[parents.index(statement) - 1]
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call) and node in statement.value.args:
        cleaning.add(module.path, module.without_statement(statement, alone=_is_alone(statement, block)))
        return None
    if isinstance(statement, ast.Assign) and statement.value is node and isinstance(block, ast.Module):
        (target,) = statement.targets if len(statement.targets) == 1 else (None,)
        if isinstance(target, ast.Name):
            cleaning.add(module.path, module.without_statement(statement, alone=False))
            return target
    raise Blocked(f"{module.path} uses it while it is imported")


def _drop_item(module: Module, node: ast.AST, holder: ast.AST, cleaning: Cleaning) -> None:
    if isinstance(holder, ast.Dict):
        keys = [key for key in holder.keys if key is not None]
        if node not in holder.values or len(keys) < len(holder.keys):
            raise Blocked(f"{module.path} has it as a key")
        number = [each is node for each in holder.values].index(True)
        spans = [(module.span(key)[0], module.span(each)[1]) for key, each in zip(keys, holder.values, strict=True)]
    elif isinstance(holder, ast.List | ast.Tuple):
        number = [each is node for each in holder.elts].index(True)
        spans = [module.span(each) for each in holder.elts]
    else:
        raise Blocked(f"{module.path} uses it")
    _drop(module, Listing(holder, spans), number, cleaning)


def _statement(parents: Parents) -> ast.stmt | None:
    return next((each for each in reversed(parents) if isinstance(each, ast.stmt)), None)


def _is_alone(statement: ast.stmt, block: ast.AST) -> bool:
    """Whether the block of a statement would be empty without it."""
    bodies = [getattr(block, name, []) for name in ("body", "orelse", "finalbody")]
    return any(body == [statement] for body in bodies) and not isinstance(block, ast.Module)
