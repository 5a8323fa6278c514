"""A test file of JavaScript without its answers: each assertion becomes a call that records what the tested code gave.

Expected values leave the source with messages and comments, and so do names that stand for nothing else. A record
belongs to the test that its assertion stands in; that of a helper to the test that runs, which says its number when it
begins. Sites are numbered in the order of the text, those that stay as they are included, so that numbers do not depend
on what stays. Reads and writes text, runs nothing.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from etude.core.errors import EtudeError
from etude.tasks.grading.withheld.javascript_assertions import ScriptAssertion, asked_by, asserting, pure
from etude.tasks.grading.withheld.rewrite import Rewritten
from etude.tasks.grading.withheld.sites import Site
from etude.tasks.javascript.parsing import FUNCTIONS, inner, text, walk
from etude.tasks.javascript.test_source import SUITES, TestFile, Unit, read

if TYPE_CHECKING:
    from tree_sitter import Node

SEEN: Final = "_etude_seen"  # what a rewritten test calls (`sandbox_side/report.cjs`)
THROWS: Final = "_etude_throws"
REJECTS: Final = "_etude_rejects"
COUNTED: Final = "_etude_counted"
BEGINS: Final = "_etude_begins"
HELPERS: Final = ""  # owner of assertions outside of any test
_HOOKS: Final = frozenset(("before", "after", "beforeEach", "afterEach", "setup", "teardown"))
_NAMES: Final = ("identifier", "shorthand_property_identifier", "shorthand_property_identifier_pattern")
# Where a name is bound or written, by the kind of its parent: the field that it stands in, or anywhere.
_WRITES: Final[Mapping[str, str]] = {
    **{"variable_declarator": "name", "assignment_expression": "left", "augmented_assignment_expression": "left"},
    **{"function_declaration": "name", "class_declaration": "name", "catch_clause": "parameter"},
    **{"for_in_statement": "left", "arrow_function": "parameter", "assignment_pattern": "left"},
    **dict.fromkeys(("update_expression", "formal_parameters", "array_pattern", "object_pattern"), ""),
    **dict.fromkeys(("pair_pattern", "rest_pattern", "import_specifier", "import_clause", "namespace_import"), ""),
}


@lru_cache(maxsize=128)
def rewrite(
    source: str,
    demoted: frozenset[int] = frozenset(),
    left: frozenset[str] = frozenset(),
    cut: frozenset[str] = frozenset(),
) -> Rewritten:
    """The file without its answers. A site that is `demoted` stays as it is, as do all of a test that is `left`; a
    test that is `cut` is not there at all."""
    file = read(source)
    if file is None:
        raise EtudeError("a test file is no JavaScript that can be read")
    gone = {unit.statement.id: b";" for unit in leaves(file) if unit.path in cut}
    first = _Writer(file, demoted, left | cut, gone)
    first.write()
    # Once more: what a constant stood for goes where nothing that stays reads it.
    blank = first.unread()
    edits = gone | {first.constants[name].id: b"undefined" for name in blank}
    writer = _Writer(
        file, demoted, left | cut, edits, tells=any(owner == HELPERS for owner, asked in first.sites if asked)
    )
    whole = writer.write().decode("utf-8", "surrogateescape")
    exposed = {number for number, node in writer.taken if writer.names_in(node) - blank}
    sites = tuple(_site(number, *found, number in exposed) for number, found in enumerate(writer.sites))
    units = {name: made.decode("utf-8", "replace") for name, made in writer.texts.items()}
    return Rewritten(whole, sites, units, (HELPERS,), tuple(unit.path for unit in leaves(file)))


def records_by_test(said: str, made: Rewritten) -> dict[str, list[list[Any]]]:
    """What a file recorded, by the tests that it belongs to; `ValueError` for what no recorder wrote."""
    found: dict[str, list[list[Any]]] = {}
    for row in json.loads(said):
        if not (isinstance(row, list) and len(row) > 2 and type(row[0]) is type(row[1]) is int):
            raise ValueError("no record")
        running, site, *values = row
        if not 0 <= site < len(made.sites):
            raise ValueError("a record that names no assertion")
        # What ran in no test was asked for by none.
        owner = made.sites[site].owner or (made.begun[running] if 0 <= running < len(made.begun) else HELPERS)
        found.setdefault(owner, []).append([site, *values])
    return found


def leaves(file: TestFile) -> list[Unit]:
    """The tests of a file: their places in this list are the numbers with which they begin."""
    return [unit for unit in file.top.units() if not unit.parts and unit.body is not None]


def _site(number: int, owner: str, asked: ScriptAssertion | None, exposed: bool) -> Site:
    if asked is None:  # it stays as it is, and records nothing
        return Site(number, owner, "true", True)
    return Site(number, owner, asked.operator, asked.expected, asked.inner, asked.options, exposed)


@dataclass(frozen=True)
class _Place:
    """Where in the file the writer is."""

    owner: str = HELPERS
    given: frozenset[str] = frozenset()  # first parameters of the tests around
    stays: bool = True  # outside of any function: what is recorded would belong to no test
    sealed: bool = False  # in a hook, or beside the tests in a test: so would all that is in it


class _Writer:
    """Writes a file anew, and notes what it took out."""

    def __init__(
        self,
        file: TestFile,
        demoted: Collection[int],
        left: Collection[str],
        edits: Mapping[int, bytes],
        tells: bool = False,
    ) -> None:
        self.data, self.root = file.data, file.root
        self.demoted, self.left, self.edits, self.tells = demoted, left, edits, tells
        self.asserting = asserting(file.source)
        self.tests = {unit.body.id: (number, unit) for number, unit in enumerate(leaves(file)) if unit.body is not None}
        self.groups = {unit.body.id: unit for unit in file.top.units() if unit.body is not None}
        self.uses: dict[str, list[Node]] = {}
        self.constants = self._find_constants()
        self.sites: list[tuple[str, ScriptAssertion | None]] = []
        self.taken: list[tuple[int, Node]] = []  # site, and what it lost
        self.texts: dict[str, bytes] = {}

    def write(self) -> bytes:
        return self._written(self.root, _Place())

    # Names that stand for a value that is spelled once

    def _find_constants(self) -> dict[str, Node]:
        writes: Counter[str] = Counter()
        values: dict[str, Node] = {}
        for node in walk(self.root):
            if node.type not in _NAMES:
                continue
            name = text(node)
            if not _is_written(node):
                self.uses.setdefault(name, []).append(node)
                continue
            writes[name] += 1
            value = node.parent.child_by_field_name("value") if node.parent is not None else None
            if value is not None and node.parent is not None and node.parent.type == "variable_declarator":
                values[name] = value
        found: dict[str, Node] = {}
        for name, value in values.items():  # in the order of the text
            if writes[name] == 1 and pure(value, found):
                found[name] = value
        return found

    def names_in(self, node: Node) -> set[str]:
        return {text(each) for each in walk(node) if each.type in _NAMES} & self.constants.keys()

    def unread(self) -> set[str]:
        """Constants that nothing reads but what was taken out, or other such constants."""
        gone = [(node.start_byte, node.end_byte) for _, node in self.taken]
        blank: set[str] = set()
        while True:
            more = {
                name
                for name in self.constants.keys() - blank
                if any(_inside(each, gone) for each in self.uses.get(name, ()))
                and all(_inside(each, gone) for each in self.uses[name])
            }
            if not more:
                return blank
            blank |= more
            gone += [(self.constants[name].start_byte, self.constants[name].end_byte) for name in more]

    # The text

    def _written(self, node: Node, place: _Place) -> bytes:
        if node.id in self.edits:
            self._copied(node, place)  # for the numbers of what stood there
            return self.edits[node.id]
        if node.type == "comment":
            return b" " if node.start_point[0] == node.end_point[0] else b"\n"
        if node.type in FUNCTIONS:
            return self._function(node, place)
        if node.type == "call_expression" and _is_hook(node):
            place = replace(place, stays=True, sealed=True)
        asked = asked_by(node, self.asserting, place.given, self.constants)
        if asked is not None:
            number = len(self.sites)
            stays = place.stays or place.owner in self.left or number in self.demoted
            self.sites.append((place.owner, None if stays else asked))
            if not stays:
                return self._recording(number, asked, place)
        return self._copied(node, place)

    def _copied(self, node: Node, place: _Place, after: int = -1, more: bytes = b"") -> bytes:
        """As it is, with what is in it written anew; `more` comes behind the child at this place."""
        if not node.children:
            return self.data[node.start_byte : node.end_byte]
        made, at = [], node.start_byte
        for number, child in enumerate(node.children):
            made += [self.data[at : child.start_byte], self._written(child, place)]
            at = child.end_byte
            if number == after:
                made.append(more)
        return b"".join([*made, self.data[at : node.end_byte]])

    def _function(self, node: Node, place: _Place) -> bytes:
        group = self.groups.get(node.id)
        if group is None:
            return self._copied(node, replace(place, stays=place.sealed))
        given = place.given | _first_parameter(node)
        if node.id not in self.tests:  # a group: its own code runs as the file is loaded, or in a test of its own
            return self._copied(node, _Place(given=given, sealed=place.sealed or group.callee not in SUITES))
        number, unit = self.tests[node.id]
        made = self._begun(node, number, _Place(unit.path, given, stays=False))
        # The name counts as mentioned.
        self.texts[unit.path] = self.texts.get(unit.path, b"") + unit.path.encode() + b"\n" + made
        return made

    def _begun(self, node: Node, number: int, place: _Place) -> bytes:
        """A test's function, which says first that it is the one that runs, where a helper has to know."""
        body = node.child_by_field_name("body")
        if not self.tells or body is None:
            return self._copied(node, place)
        made: list[bytes] = []
        at = node.start_byte
        for child in node.children:
            made.append(self.data[at : child.start_byte])
            if child != body:
                made.append(self._written(child, place))
            elif body.type == "statement_block":
                first = next(iter(inner(body)), None)
                strict = first is not None and text(first).strip("'\"; ") == "use strict"
                after = next((n for n, each in enumerate(body.children) if strict and each == first), 0)
                made.append(self._copied(body, place, after, f" {BEGINS}({number});".encode()))
            else:
                made.append(f"({BEGINS}({number}), ".encode() + self._written(body, place) + b")")
            at = child.end_byte
        return b"".join([*made, self.data[at : node.end_byte]])

    def _recording(self, number: int, asked: ScriptAssertion, place: _Place) -> bytes:
        self.taken += [(number, node) for node in asked.taken]
        values = [self._written(each, place) for each in asked.recorded]
        if asked.operator in ("true", "false"):
            values = [b"!!(" + each + b")" for each in values]
        name = SEEN if asked.operator != "raises" else REJECTS if asked.waits else THROWS
        made = f"{name}({number}, ".encode() + b", ".join(values) + b")"
        # Told by a call and not by a comma: a parenthesis that begins a line may belong to the line before.
        return f"{COUNTED}({asked.counts}, ".encode() + made + b")" if asked.counts else made


def _is_written(node: Node) -> bool:
    parent = node.parent
    if parent is None or node.type == "shorthand_property_identifier_pattern":
        return True
    where = _WRITES.get(parent.type)
    return where is not None and (not where or parent.child_by_field_name(where) == node)


def _inside(node: Node, ranges: Collection[tuple[int, int]]) -> bool:
    return any(start <= node.start_byte and node.end_byte <= end for start, end in ranges)


def _is_hook(call: Node) -> bool:
    callee = call.child_by_field_name("function")
    if callee is not None and callee.type == "member_expression":
        callee = callee.child_by_field_name("property")
    return text(callee) in _HOOKS


def _first_parameter(function: Node) -> frozenset[str]:
    single = function.child_by_field_name("parameter")
    given = [single] if single is not None else inner(function.child_by_field_name("parameters"))
    return frozenset(text(each) for each in given[:1] if each.type == "identifier")
