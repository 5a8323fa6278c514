"""Small wrong changes to Python functions.

An operator, a condition, a bound, a constant, a lost statement, swapped arguments. Each is an edit of a few bytes;
whether tests notice, and which go together, is for others to find out. Knows one file; runs nothing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

from etude.forge.languages.base import Mutation
from etude.forge.languages.edits import Edit
from etude.forge.languages.python.source import Definition, Module

COMPARISONS = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.In: ("in", "not in"),
}
ARITHMETIC = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "//"),
    ast.FloorDiv: ("//", "*"),
    ast.Div: ("/", "*"),
    ast.Mod: ("%", "//"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
}


def mutations(module: Module, definition: Definition) -> list[Mutation[Definition]]:
    """Every change that is known for this function."""
    found = []
    for statement, alone, endless in _statements(definition.code):
        if not endless and _can_be_lost(statement):
            found.append(Mutation("lost statement", definition, module.without_statement(statement, alone=alone)))
        if isinstance(statement, ast.While):
            continue  # a condition that stays true is no bug that a test could point at
        for node in _own(statement):
            for kind, change in KINDS.items():
                found += [Mutation(kind, definition, edit) for edit in change(module, node)]
    return found


def _statements(body: list[ast.stmt], endless: bool = False) -> Iterator[tuple[ast.stmt, bool, bool]]:
    """Every statement below a body: whether its block has no other, and whether a `while` goes round it."""
    for each in body:
        yield each, len(body) == 1, endless
        inside = endless or isinstance(each, ast.While)
        for name in ("body", "orelse", "finalbody"):
            yield from _statements(getattr(each, name, []), inside)
        for handler in getattr(each, "handlers", []):
            yield from _statements(handler.body, inside)


def _own(statement: ast.stmt) -> Iterator[ast.AST]:
    """A statement and its expressions, without the statements inside and without formatted strings."""
    yield statement
    todo = [each for each in ast.iter_child_nodes(statement) if isinstance(each, ast.expr)]
    while todo:
        each = todo.pop()
        if isinstance(each, ast.JoinedStr):
            continue  # places inside have no bytes of their own before 3.12
        yield each
        todo += [one for one in ast.iter_child_nodes(each) if isinstance(one, ast.expr)]
        todo += [one.value for one in ast.iter_child_nodes(each) if isinstance(one, ast.keyword)]


def _between(module: Module, left: ast.expr, right: ast.expr, old: str, new: str) -> Iterator[Edit]:
    """Replaces an operator that stands between two expressions."""
    start, end = module.span(left)[1], module.span(right)[0]
    words = rb"\b%s\b" if old.isalpha() else rb"%s"
    found = list(re.finditer(words % re.escape(old.encode()), module.data[start:end]))
    # More than one place, or a comment between: nobody knows which of them is the operator.
    if len(found) == 1 and b"#" not in module.data[start:end]:
        yield Edit(start + found[0].start(), start + found[0].end(), new.encode())


def comparison(module: Module, node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARISONS:
        yield from _between(module, node.left, node.comparators[0], *COMPARISONS[type(node.ops[0])])


def operator(module: Module, node: ast.AST) -> Iterator[Edit]:
    # Text and lists know no minus: that would be a type error, and nothing to look for.
    if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC and not _is_text(node.left) | _is_text(node.right):
        yield from _between(module, node.left, node.right, *ARITHMETIC[type(node.op)])


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr | ast.List | ast.Tuple) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )


def junction(module: Module, node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.BoolOp) and len(node.values) == 2:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        yield from _between(module, node.values[0], node.values[1], old, new)


def condition(module: Module, node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        test = node.test
        start, end = module.span(test)
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            yield Edit(start, module.span(test.operand)[0])
        # A negated `while` either never runs or never ends.
        elif not isinstance(node, ast.While) and b"\n" not in module.data[start:end]:
            yield Edit(start, end, b"not (" + module.data[start:end] + b")")


def constant(module: Module, node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.Constant) and type(node.value) in (int, bool):
        start, end = module.span(node)
        if isinstance(node.value, bool):
            yield Edit(start, end, str(not node.value).encode())
        elif isinstance(node.value, int) and module.data[start:end].isdigit():
            yield Edit(start, end, str(node.value + 1).encode())
            if node.value > 0:
                yield Edit(start, end, str(node.value - 1).encode())


def bound(module: Module, node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range" and node.args:
        end = module.span(node.args[min(1, len(node.args) - 1)])[1]
        yield Edit(end, end, b" - 1")
        yield Edit(end, end, b" + 1")


def _can_be_lost(node: ast.stmt) -> bool:
    """Whether the code still makes sense without it, to somebody who does not look closely."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call | ast.Await)
    if isinstance(node, ast.Assign):
        return all(isinstance(each, ast.Attribute | ast.Subscript) for each in node.targets)
    if isinstance(node, ast.If):
        ends = isinstance(node.body[0], ast.Raise | ast.Return | ast.Continue | ast.Break)
        return ends and len(node.body) == 1 and not node.orelse
    return isinstance(node, ast.AugAssign)


def swapped(module: Module, node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.Call) and len(node.args) >= 2 and not isinstance(node.args[0], ast.Starred):
        one, other = node.args[0], node.args[1]
        if isinstance(one, ast.Name) and isinstance(other, ast.Name) and one.id != other.id:
            (start, middle), (after, end) = module.span(one), module.span(other)
            data = module.data
            yield Edit(start, end, data[after:end] + data[middle:after] + data[start:middle])


def loop_end(module: Module, node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.Break | ast.Continue):
        start, end = module.span(node)
        yield Edit(start, end, b"continue" if isinstance(node, ast.Break) else b"break")


def sliced(module: Module, node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.Slice) and node.step is None and node.lower is not None and node.upper is None:
        start, end = module.span(node)
        lower = module.data[slice(*module.span(node.lower))]
        yield Edit(start, end, b":" + lower)


KINDS: dict[str, Callable[[Module, ast.AST], Iterator[Edit]]] = {
    "comparison": comparison,
    "operator": operator,
    "and/or": junction,
    "condition": condition,
    "constant": constant,
    "off by one": bound,
    "swapped arguments": swapped,
    "break/continue": loop_end,
    "slice": sliced,
}
