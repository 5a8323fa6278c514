"""Python text as something to cut pieces out of: where functions and classes lie, and edits by place.

Everything outside an edit stays byte for byte as it was, line ends and comments included. Knows one file at a time,
no tests and no tasks.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from etude.forge.languages.edits import Edit, edited

BOM = b"\xef\xbb\xbf"
_LINES = re.compile(rb"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")  # as the parser counts them: a form feed ends no line

# Without these nothing of their class works.
PLUMBING = {"__init__", "__new__", "__init_subclass__", "__getattr__", "__getattribute__", "__setattr__", "__del__"}

Function = ast.FunctionDef | ast.AsyncFunctionDef
Defined = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Definition:
    """A function, method or class of a file, outside of any function."""

    path: str
    name: str  # qualified: "Class.method"
    node: Defined = field(repr=False, compare=False)
    first: int  # first line, decorators included, counted from 1
    last: int
    alone: bool  # the only statement where it stands
    repeated: bool  # the file defines the name more than once

    @property
    def id(self) -> str:
        return f"{self.path}:{self.name}"

    @property
    def short(self) -> str:
        """The last part of the name."""
        return self.name.rpartition(".")[2]

    @property
    def owner(self) -> str:
        """The class it belongs to, or nothing."""
        return self.name.rpartition(".")[0]

    @cached_property
    def doc(self) -> str:
        return ast.get_docstring(self.node) or ""

    @cached_property
    def decorators(self) -> frozenset[str]:
        return frozenset(name for each in self.node.decorator_list for name in identifiers(each))

    @cached_property
    def uses(self) -> frozenset[str]:
        """Every name and attribute in it."""
        return frozenset(identifiers(self.node))

    @property
    def code(self) -> list[ast.stmt]:
        """The body without its docstring."""
        return self.node.body[1:] if ast.get_docstring(self.node, clean=False) is not None else self.node.body

    @cached_property
    def size(self) -> int:
        """Lines of code, the docstring left out."""
        if not self.code:
            return 0
        return (self.code[-1].end_lineno or 0) - _top(self.code[0]) + 1

    @cached_property
    def is_stub(self) -> bool:
        """Nothing to take away: abstract, overloaded, or empty already."""
        if self.decorators & {"overload", "abstractmethod", "abstractproperty"} or not self.code:
            return True
        only = self.code[0] if len(self.code) == 1 else None
        if isinstance(only, ast.Pass):
            return True
        if isinstance(only, ast.Expr) and isinstance(only.value, ast.Constant):
            return True
        return isinstance(only, ast.Raise) and "NotImplementedError" in identifiers(only)

    @property
    def deletable(self) -> bool:
        """Whether taking its body away leaves a function that only fails when it is called."""
        return not isinstance(self.node, ast.ClassDef) and not (
            self.is_stub
            or self.repeated
            or self.short in PLUMBING
            or self.decorators & {"setter", "deleter", "overload"}
        )

    @cached_property
    def signature(self) -> str:
        """The line that defines it, without decorators and body."""
        bare = ast.parse(ast.unparse(self.node)).body[0]
        assert isinstance(bare, Defined)
        bare.body, bare.decorator_list = [ast.Pass()], []
        return ast.unparse(bare).splitlines()[0].removesuffix(" pass")


class Module:
    """One file, parsed. `Module.read` gives None for what is not Python in UTF-8."""

    def __init__(self, path: str, data: bytes) -> None:
        self.path = path
        self.data = data
        self._bom = len(BOM) if data.startswith(BOM) else 0
        self.text = data[self._bom :].decode()
        self.tree = ast.parse(self.text)
        self.lines: list[bytes] = _LINES.findall(data[self._bom :])
        self._starts = [self._bom]
        for line in self.lines:
            self._starts.append(self._starts[-1] + len(line))

    @classmethod
    def read(cls, path: str, data: bytes) -> Module | None:
        try:
            return cls(path, data)
        except (SyntaxError, ValueError, RecursionError):
            return None

    @cached_property
    def definitions(self) -> dict[str, Definition]:
        """By qualified name; of several with one name the last, marked as repeated."""
        found: dict[str, Definition] = {}
        for name, node, alone in _defined(self.tree, ""):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            last = node.end_lineno or node.lineno
            found[name] = Definition(self.path, name, node, first, last, alone, name in found)
        return found

    @cached_property
    def words(self) -> frozenset[str]:
        """Every word of the text, names among them: what is not here is nowhere in the tree."""
        return frozenset(re.findall(r"\w+", self.text))

    @cached_property
    def imports(self) -> list[ast.ImportFrom]:
        return [node for node in ast.walk(self.tree) if isinstance(node, ast.ImportFrom)]

    def at(self, line: int, column: int = 0) -> int:
        """The offset of a place as the parser names it: lines from 1, columns in bytes."""
        return self._starts[line - 1] + column

    def span(self, node: ast.expr | ast.stmt | ast.alias) -> tuple[int, int]:
        """Where a part of the tree begins and ends."""
        assert node.lineno is not None and node.end_lineno is not None and node.end_col_offset is not None
        return self.at(node.lineno, node.col_offset), self.at(node.end_lineno, node.end_col_offset)

    def source(self, definition: Definition) -> str:
        """A definition's text, its decorators included."""
        return b"".join(self.lines[definition.first - 1 : definition.last]).decode()

    def edited(self, edits: Iterable[Edit]) -> bytes:
        return edited(self.data, edits)

    def without_body(self, definition: Definition, instead: bytes = b"raise NotImplementedError") -> Edit:
        """Takes a function's body away; signature, decorators and docstring stay."""
        code, node = definition.code, definition.node
        first, last = _top(code[0]), code[-1].end_lineno or 0
        before = self.lines[first - 1][: code[0].col_offset]
        if before.strip():  # on the line of its `def`, or behind the docstring
            start, end = self.at(first, code[0].col_offset), self.span(code[-1])[1]
            return Edit(start, end, instead)
        # Comments above the body describe it, and would give it away.
        while first > 1 and self._is_idle(first - 1):
            first -= 1
        # So do comments below it.
        last = self._with_comments(last, node.col_offset)
        ends = _line_end(self.lines[last - 1])
        return Edit(self.at(first), self.at(last) + len(self.lines[last - 1]), before + instead + ends)

    def without(self, definition: Definition) -> Edit:
        """Takes a whole definition away, with the comment right above it and one of the two gaps around it."""
        first = definition.first
        indent = definition.node.col_offset
        while first > 1 and re.match(rb"[ \t]{%d}#" % indent, self.lines[first - 2]):
            first -= 1
        last = self._with_comments(definition.last, indent)
        above, below = first, last
        while above > 1 and not self.lines[above - 2].strip():
            above -= 1
        while below < len(self.lines) and not self.lines[below].strip():
            below += 1
        if above < first and (below - last >= first - above or below == len(self.lines)):
            first = above  # the gap below is the one between what is above and what follows
            below = last
        return Edit(self.at(first), self.at(below) + len(self.lines[below - 1]))

    def without_statement(self, statement: ast.stmt, *, alone: bool) -> Edit:
        """Takes a statement away with its lines; `pass` stays where a block would be empty."""
        first, last = statement.lineno, statement.end_lineno or statement.lineno
        start, end = self.span(statement)
        rest = self.lines[last - 1][statement.end_col_offset or 0 :].split(b"#")[0].strip()
        if alone or rest or self.lines[first - 1][: statement.col_offset].strip():
            return Edit(start, end, b"pass")
        return Edit(self.at(first), self.at(last) + len(self.lines[last - 1]))

    def lost_statement(self, statement: ast.stmt) -> Edit | None:
        """Takes a statement away as if it had never been there; None where it shares a line with something."""
        first, last = _top(statement), statement.end_lineno or statement.lineno
        if self.lines[first - 1][: statement.col_offset].strip() or self._follows(statement):
            return None
        return self._without_lines(first, last, statement.col_offset)

    def _follows(self, statement: ast.stmt) -> bool:
        """Whether something stands behind a statement on its last line."""
        last = statement.end_lineno or statement.lineno
        return bool(self.lines[last - 1][statement.end_col_offset or 0 :].split(b"#")[0].strip())

    def without_else(self, statement: ast.If) -> Edit | None:
        """Takes the `else` of a condition away with all that stands in it; None where that is not whole lines."""
        indent, last = statement.col_offset, statement.orelse[-1].end_lineno or 0
        first = next(
            (
                line
                for line in range(statement.body[-1].end_lineno or 0, statement.orelse[0].lineno + 1)
                if re.match(rb"[ \t]{%d}else\s*:" % indent, self.lines[line - 1])
            ),
            None,
        )
        whole = not self._follows(statement.orelse[-1])
        return self._without_lines(first, last, indent) if first is not None and whole else None

    def _without_lines(self, first: int, last: int, indent: int) -> Edit:
        """Takes lines away with the comment above that speaks of them, and one of the gaps around them."""
        while first > 1 and re.match(rb"[ \t]{%d}#" % indent, self.lines[first - 2]):
            first -= 1
        below = self.lines[last].strip() if last < len(self.lines) else b""
        above = self.lines[first - 2].split(b"#")[0].strip() if first > 1 else b""
        if not below and not above:
            while first > 1 and not self.lines[first - 2].strip():
                first -= 1
        elif not below and above.endswith(b":") and last < len(self.lines):
            last += 1
        return Edit(self.at(first), self.at(last) + len(self.lines[last - 1]))

    def _is_idle(self, line: int) -> bool:
        """Whether a line has nothing but space or a comment."""
        text = self.lines[line - 1].strip()
        return not text or text.startswith(b"#")

    def _with_comments(self, last: int, indent: int) -> int:
        """The last line of a block, the comments below counted that are indented as its body is."""
        reach = last
        while reach < len(self.lines) and self._is_idle(reach + 1):
            reach += 1
            line = self.lines[reach - 1]
            if line.strip():
                if len(line) - len(line.lstrip(b" \t")) <= indent:
                    break
                last = reach
        return last


def identifiers(node: ast.AST) -> Iterator[str]:
    """Every name, attribute and imported name below a node."""
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            yield each.id
        elif isinstance(each, ast.Attribute):
            yield each.attr
        elif isinstance(each, ast.alias):
            yield each.name.rpartition(".")[2]


def _defined(node: ast.Module | ast.ClassDef, before: str) -> Iterator[tuple[str, Defined, bool]]:
    for part in node.body:
        if isinstance(part, Defined):
            yield before + part.name, part, len(node.body) == 1
        if isinstance(part, ast.ClassDef):
            yield from _defined(part, f"{before}{part.name}.")


def _top(statement: ast.stmt) -> int:
    """Its first line, decorators included."""
    decorated = statement.decorator_list if isinstance(statement, Defined) else []
    return min([statement.lineno, *(each.lineno for each in decorated)])


def _line_end(line: bytes) -> bytes:
    return line[len(line.rstrip(b"\r\n")) :]
