"""JavaScript text as something to cut pieces out of: where functions lie, and edits by place.

Everything outside an edit stays byte for byte as it was. Knows one file at a time, no tests and no tasks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final

from etude.forge.languages.edits import Edit, edited
from etude.tasks.javascript.functions import WHOLE_MODULE, Defined, functions
from etude.tasks.javascript.parsing import inner, parse, text, walk

if TYPE_CHECKING:
    from tree_sitter import Node

MISSING: Final = "throw new Error('not implemented');"
_NAMES: Final = ("identifier", "property_identifier", "shorthand_property_identifier", "private_property_identifier")


@dataclass(frozen=True)
class ScriptDefinition:
    """A function or method of a file, outside of any function."""

    path: str
    name: str
    defined: Defined = field(repr=False, compare=False)
    repeated: bool  # the file defines the name more than once

    @property
    def id(self) -> str:
        return f"{self.path}:{self.name}"

    @property
    def owner(self) -> str:
        return "" if self.name == WHOLE_MODULE else self.defined.owner

    @property
    def short(self) -> str:
        return self.name if self.name == WHOLE_MODULE else self.name.rpartition(".")[2]

    @property
    def first(self) -> int:
        return self.defined.statement.start_byte

    @property
    def last(self) -> int:
        return self.defined.statement.end_byte

    @cached_property
    def doc(self) -> str:
        """The comment right above it, without its signs."""
        comments = [re.sub(r"^/\*+|\*+/$", "", text(each)) for each in comments_above(self.defined.statement)]
        lines = [re.sub(r"^\s*(\*|//+)? ?", "", line).rstrip() for each in comments for line in each.splitlines()]
        return "\n".join(lines).strip()

    @cached_property
    def uses(self) -> frozenset[str]:
        return frozenset(text(each) for each in walk(self.defined.node) if each.type in _NAMES)

    @cached_property
    def size(self) -> int:
        body = self.defined.body
        parts = inner(body) if body.type == "statement_block" else [body]
        return parts[-1].end_point[0] - parts[0].start_point[0] + 1 if parts else 0

    @property
    def deletable(self) -> bool:
        bare = MISSING.rstrip(";") in text(self.defined.body)
        return self.size > 0 and not self.repeated and self.short != "constructor" and not bare

    @cached_property
    def signature(self) -> str:
        """What stands before its body."""
        data = self.defined.statement.text or b""
        head = data[: self.defined.body.start_byte - self.first].decode("utf-8", "replace")
        return " ".join(head.split())


class JavaScriptFile:
    """One file, parsed. `read` gives None for what is no JavaScript in UTF-8."""

    def __init__(self, path: str, data: bytes) -> None:
        self.path = path
        self.data = data
        self.text = data.decode()
        root = parse(data)
        if root is None:
            raise ValueError("no JavaScript")
        self.root = root

    @classmethod
    def read(cls, path: str, data: bytes) -> JavaScriptFile | None:
        try:
            return cls(path, data)
        except (ValueError, RecursionError):
            return None

    @cached_property
    def definitions(self) -> dict[str, ScriptDefinition]:
        """By qualified name; of several with one name the last, marked as repeated."""
        found: dict[str, ScriptDefinition] = {}
        for each in functions(self.data):
            found[each.name] = ScriptDefinition(self.path, each.name, each, each.name in found)
        return found

    @cached_property
    def _units(self) -> list[int]:
        """Where in the bytes each unit of UTF-16 begins, as the engine counts them; none where all are one byte."""
        if self.text.isascii():
            return []
        starts, at = [], 0
        for character in self.text:
            starts += [at] * (2 if ord(character) > 0xFFFF else 1)
            at += len(character.encode())
        return [*starts, at]

    def at(self, unit: int) -> int:
        """The byte at which a unit of the engine's count begins."""
        return self._units[min(unit, len(self._units) - 1)] if self._units else unit

    def around(self, start: int, end: int) -> ScriptDefinition | None:
        """The definition that holds a stretch of the file, in the engine's count."""
        first, last = self.at(start), self.at(end)
        for each in self.definitions.values():
            node = each.defined.node
            if node.start_byte <= first and last <= node.end_byte:
                return each
        return None

    def source(self, definition: ScriptDefinition) -> str:
        return self.data[definition.first : definition.last].decode()

    def edited(self, edits: Iterable[Edit]) -> bytes:
        return edited(self.data, edits)

    def without_body(self, definition: ScriptDefinition) -> Edit:
        """Takes a function's body away; what stands before it, comments included, stays."""
        body = definition.defined.body
        if body.type != "statement_block":
            return Edit(body.start_byte, body.end_byte, f"{{ {MISSING} }}".encode())
        parts = inner(body)
        if parts[0].start_point[0] == body.start_point[0]:
            return Edit(body.start_byte, body.end_byte, f"{{ {MISSING} }}".encode())
        indent, outer = self._indent(parts[0]), self._indent_at(body.end_byte - 1)
        return Edit(body.start_byte, body.end_byte, b"{\n" + indent + MISSING.encode() + b"\n" + outer + b"}")

    def without(self, node: Node) -> Edit:
        """Takes a statement or member away: with the comments above it, its comma, and one of the gaps around it."""
        above = comments_above(node)
        start = above[0].start_byte if above else node.start_byte
        end = node.end_byte
        if node.parent is not None and node.parent.type == "object":
            comma = re.match(rb"\s*,[ \t]?", self.data[end:])
            end += comma.end() if comma is not None else 0
        line = self.data.rfind(b"\n", 0, start) + 1
        if self.data[line:start].strip() == b"":
            start = line
        rest = re.match(rb"[ \t]*;?[ \t]*\r?\n", self.data[end:])
        if rest is not None and start == line:
            end += rest.end()
            gap = re.match(rb"(?:[ \t]*\r?\n)+", self.data[end:])
            end += gap.end() if gap is not None else 0
        return Edit(start, end)

    def without_statement(self, node: Node) -> Edit:
        """Takes a statement away, with its lines where nothing but a comment stands there beside it."""
        line = self.data.rfind(b"\n", 0, node.start_byte) + 1
        rest = re.match(rb"[ \t]*(?://[^\r\n]*)?(?:\r?\n|\Z)", self.data[node.end_byte :])
        if rest is None or self.data[line : node.start_byte].strip():
            return Edit(node.start_byte, node.end_byte)
        return Edit(line, node.end_byte + rest.end())

    def _indent(self, node: Node) -> bytes:
        return self._indent_at(node.start_byte)

    def _indent_at(self, at: int) -> bytes:
        line = self.data.rfind(b"\n", 0, at) + 1
        found = re.match(rb"[ \t]*", self.data[line:])
        return found[0] if found is not None else b""


def comments_above(node: Node) -> list[Node]:
    """The comments that stand right above a statement, with no empty line in between."""
    found: list[Node] = []
    line, before = node.start_point[0], node.prev_sibling
    while before is not None and before.type == "comment" and line - before.end_point[0] <= 1:
        above = before.prev_sibling
        if above is not None and above.end_point[0] == before.start_point[0]:  # at the end of another line of code
            break
        found.insert(0, before)
        line, before = before.start_point[0], above
    return found
