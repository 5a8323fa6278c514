"""What a file of JavaScript defines: functions and methods outside of any other function, with names and positions.

A name is qualified by the class, object or prototype that a function belongs to; `exports` and `module.exports` add
nothing to it. What stands in a function that is called where it is written (a wrapper around a whole file) counts as
standing outside. Knows one file, no tests and no tasks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from etude.tasks.javascript.parsing import FUNCTIONS, bare, inner, parse, text

if TYPE_CHECKING:
    from tree_sitter import Node

WHOLE_MODULE = "module.exports"  # the name of a function without one that is all that a file exports
_EXPORTS = re.compile(r"^(?:module\.)?exports\.(?=.)|^(?:globalThis|self|window|root|this)\.(?=.)")


@dataclass(frozen=True)
class Defined:
    """One function and where it stands."""

    name: str
    node: Node  # the function itself
    statement: Node  # what defines it: a declaration, an assignment, a member of a class or an object
    removable: bool  # nothing but it is defined there

    @property
    def body(self) -> Node:
        found = self.node.child_by_field_name("body")
        assert found is not None
        return found

    @property
    def owner(self) -> str:
        return self.name.rpartition(".")[0]


def functions(data: bytes) -> list[Defined]:
    """Every function of a file; none of one that is no JavaScript."""
    root = parse(data)
    return list(_of_statements(inner(root), "")) if root is not None else []


def _of_statements(statements: list[Node], before: str) -> Iterator[Defined]:
    for statement in statements:
        declared = statement
        if statement.type == "export_statement":
            declared = (
                statement.child_by_field_name("declaration") or statement.child_by_field_name("value") or declared
            )
        yield from _of_declared(declared, statement, before)


def _of_declared(declared: Node, statement: Node, before: str) -> Iterator[Defined]:
    name = text(declared.child_by_field_name("name"))
    if declared.type in ("lexical_declaration", "variable_declaration"):
        declarators = [each for each in inner(declared) if each.type == "variable_declarator"]
        for each in declarators:
            own, value = text(each.child_by_field_name("name")), bare(each.child_by_field_name("value"))
            yield from _of_value(value, own, statement, before, removable=len(declarators) == 1)
    elif declared.type == "expression_statement":
        for each in inner(declared)[:1]:
            yield from _of_expression(each, statement, before)
    elif declared.type in FUNCTIONS or declared.type in ("class_declaration", "class"):
        yield from _of_value(declared, name or "default", statement, before, removable=True)


def _of_expression(expression: Node, statement: Node, before: str) -> Iterator[Defined]:
    if expression.type == "assignment_expression":
        target, value = text(expression.child_by_field_name("left")), bare(expression.child_by_field_name("right"))
        while value is not None and value.type == "assignment_expression":  # exports = module.exports = ...
            target, value = text(value.child_by_field_name("left")), bare(value.child_by_field_name("right"))
        yield from _of_value(value, _exported(target, value), statement, before, removable=True)
        return
    called = expression
    if called.type == "unary_expression":
        called = called.child_by_field_name("argument") or called
    called = bare(called) or called
    if called.type == "call_expression":
        runs = bare(called.child_by_field_name("function"))
        parts = [runs, *map(bare, inner(called.child_by_field_name("arguments")))]
        if runs is not None and runs.type == "member_expression":  # (function () { ... }).call(this)
            parts = [bare(runs.child_by_field_name("object")), *parts[1:]]
        if parts[0] is not None and parts[0].type in FUNCTIONS:
            for part in parts:
                if part is not None and part.type in FUNCTIONS:
                    yield from _of_statements(inner(part.child_by_field_name("body")), before)


def _of_value(value: Node | None, name: str, statement: Node, before: str, *, removable: bool) -> Iterator[Defined]:
    """What a name stands for: a function, or a class or an object that has some."""
    if value is None or not re.fullmatch(r"[\w$.#]+", name):
        return
    full = before + name.replace(".prototype.", ".")
    if value.type in FUNCTIONS:
        if value.child_by_field_name("body") is not None:
            yield Defined(full, value, statement, removable)
    elif value.type in ("class_declaration", "class"):
        for member in inner(value.child_by_field_name("body")):
            yield from _of_member(member, f"{full}.")
    elif value.type == "object":
        prefix = before if name in (WHOLE_MODULE, "exports", "default") else f"{full.removesuffix('.prototype')}."
        for member in inner(value):
            yield from _of_member(member, prefix)


def _of_member(member: Node, before: str) -> Iterator[Defined]:
    if member.type == "method_definition":
        name = text(member.child_by_field_name("name"))
        if re.fullmatch(r"[\w$#]+", name):
            yield Defined(before + name, member, member, True)
    elif member.type in ("pair", "field_definition"):
        key = member.child_by_field_name("key") or member.child_by_field_name("property")
        value = bare(member.child_by_field_name("value"))
        name = text(key).strip("'\"")
        if value is not None and value.type in FUNCTIONS and re.fullmatch(r"[\w$#]+", name):
            yield Defined(before + name, value, member, True)


def _exported(target: str, value: Node | None) -> str:
    """What an assignment defines, by its left side; a whole module by the function's own name, where it has one."""
    own = text(value.child_by_field_name("name")) if value is not None else ""
    if target in (WHOLE_MODULE, "exports"):
        return own if own and value is not None and value.type in FUNCTIONS else WHOLE_MODULE
    return _EXPORTS.sub("", target)
