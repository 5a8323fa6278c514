"""The tests that a file of JavaScript holds, as they are written: calls of `test`, `it`, `describe`, `t.test` and such.

A unit is one such call. Units lie in each other; the innermost are tests. A test that ran belongs to the unit that its
names lead to; where a name is made as the tests run, to the one unit without a fixed name, or else to the unit
around it. Reads text, runs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from etude.tasks.javascript.parsing import FUNCTIONS, inner, parse, string_value, text, walk
from etude.tasks.sandbox_side.node_tests import JOINT, plain_name

if TYPE_CHECKING:
    from tree_sitter import Node

SUITES: Final = frozenset(("describe", "suite", "context"))
TESTS: Final = frozenset(("test", "it", "specify", "tape", "tap"))
MADE: Final = "*"  # stands for a name that is made as the tests run
_TAKEN = re.compile(
    r"\b(?:var|let|const)\s+(\w+)\s*=\s*require\(\s*['\"](?:tape|node:test|test)['\"]\s*\)"
    r"|\bimport\s+(\w+)(?:\s*,\s*\{[^}]*\})?\s+from\s+['\"](?:tape|node:test)['\"]"
)
_REQUIRED = re.compile(r"(?:require\(|\bfrom\s|\bimport\(?)\s*['\"]([^'\"\n]+)['\"]")


@dataclass(eq=False)
class Unit:
    """One call that makes a test, or a group of them."""

    name: str | None  # None where it is made as the tests run
    path: str  # names from the outermost unit on; "" for the file
    call: Node | None = None
    body: Node | None = None  # the function that is the test
    parts: list[Unit] = field(default_factory=list)

    @property
    def statement(self) -> Node:
        """What to take away so that the test is gone."""
        node = self.call
        assert node is not None
        while node.parent is not None and node.parent.type not in ("statement_block", "program"):
            node = node.parent
        return node

    @property
    def callee(self) -> str:
        return text(self.call.child_by_field_name("function")) if self.call is not None else ""

    @property
    def repeated(self) -> bool:
        """Whether it may run more than once: a loop, or a function that is called again, stands around it."""
        node = self.call.parent if self.call is not None else None
        while node is not None and node.type != "program":
            if node.type in FUNCTIONS and not is_body(node):
                return True
            if node.type in ("for_statement", "for_in_statement", "while_statement", "do_statement"):
                return True
            node = node.parent
        return False

    def units(self) -> Iterator[Unit]:
        """All units in it, itself left out."""
        for part in self.parts:
            yield part
            yield from part.units()


class TestFile:
    """One test file. `read` gives None for what is no JavaScript."""

    __test__ = False  # nothing for whoever collects tests of Python

    def __init__(self, source: str) -> None:
        self.source = source
        self.data = source.encode("utf-8", "surrogateescape")
        root = parse(self.data)
        if root is None:
            raise ValueError("no JavaScript")
        self.root = root
        own = {name for found in _TAKEN.finditer(source) for name in found.groups() if name}
        self.top = Unit(None, "")
        _collect(root, self.top, TESTS | own)

    def home(self, name: str) -> Unit:
        """The unit that a test with these names, joined, is written in; the file itself where none is."""
        return _home(self.top, name.partition("[")[0])

    def all_at(self, path: str) -> list[Unit]:
        """The units of this path: more than one where a name is given twice."""
        return [unit for unit in self.top.units() if unit.path == path]


@lru_cache(maxsize=512)
def read(source: str) -> TestFile | None:
    try:
        return TestFile(source)
    except (ValueError, RecursionError):
        return None


def is_body(function: Node) -> bool:
    """Whether a function is what a test runs, or a group of tests."""
    arguments = function.parent
    call = arguments.parent if arguments is not None and arguments.type == "arguments" else None
    return call is not None and call.type == "call_expression" and _kind(call, TESTS) is not None


def required_in(source: str) -> set[str]:
    """The modules that a text takes, as it spells them; no parser needed."""
    return {found[1] for found in _REQUIRED.finditer(source)}


def _home(here: Unit, name: str) -> Unit:
    if not name:
        return here
    found = [
        _home(each, name[len(each.name) + len(JOINT) :])
        for each in here.parts
        if each.name is not None and _leads(each.name, name)
    ]
    if found:  # groups may share a name: the one that leads furthest
        return max(found, key=lambda unit: len(unit.path))
    made = [each for each in here.parts if each.name is None]
    return _home(made[0], name.partition(JOINT)[2] if made[0].parts else "") if len(made) == 1 else here


def _leads(own: str, name: str) -> bool:
    return name == own or name.startswith(own + JOINT)


def _collect(node: Node, above: Unit, names: frozenset[str] | set[str]) -> None:
    for each in node.children:
        body = _kind(each, names) if each.type == "call_expression" else None
        if body is None:
            _collect(each, above, names)
            continue
        first = inner(each.child_by_field_name("arguments"))[0]
        given = string_value(first)
        name = plain_name(given) if given is not None else None
        path = JOINT.join(filter(None, [above.path, MADE if name is None else name]))
        unit = Unit(name, path, each, body)
        above.parts.append(unit)
        _collect(body, unit, names)


def _kind(call: Node, names: frozenset[str] | set[str]) -> Node | None:
    """The function that a call makes a test of; None where it makes none."""
    callee = call.child_by_field_name("function")
    arguments = inner(call.child_by_field_name("arguments"))
    if callee is None or not arguments or arguments[-1].type not in FUNCTIONS:
        return None
    if callee.type == "member_expression":
        owner, last = text(callee.child_by_field_name("object")), text(callee.child_by_field_name("property"))
        makes = last in ("test", "it", "describe") or (last in ("skip", "only", "todo") and owner in names | SUITES)
        return arguments[-1] if makes and re.fullmatch(r"\w+", owner) and len(arguments) > 1 else None
    makes = callee.type == "identifier" and text(callee) in names | SUITES
    return arguments[-1] if makes and len(arguments) > 1 else None


def mentioned(unit: Unit) -> set[str]:
    """Names and properties that a test's code has."""
    kinds = ("identifier", "property_identifier", "shorthand_property_identifier")
    return {text(each) for each in walk(unit.body) if each.type in kinds} if unit.body is not None else set()
