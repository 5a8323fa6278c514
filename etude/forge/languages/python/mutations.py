"""Small wrong changes to Python functions.

An operator, a condition, a bound, a constant, a lost statement, swapped arguments. Each is an edit of a few bytes;
whether tests notice, and which go together, is for others to find out. Knows one file; runs nothing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from etude.forge.languages.base import Mutation
from etude.forge.languages.edits import Edit
from etude.forge.languages.python.call_mutations import lost_argument, lost_call, similar_name
from etude.forge.languages.python.source import Definition, Module

COMPARISONS = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
# The opposite of a comparison, as somebody would write it, where `COMPARISONS` does not have it already.
OPPOSITES = {ast.Lt: ("<", ">="), ast.LtE: ("<=", ">"), ast.Gt: (">", "<="), ast.GtE: (">=", "<")}
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
    for statement, block, endless in _statements(definition.code, _Block(None, "", alone=len(definition.code) == 1)):
        if not endless and _can_be_lost(statement) and (edit := _lost(module, statement, block)) is not None:
            found.append(Mutation("lost statement", definition, edit))
        if isinstance(statement, ast.While):
            continue  # a condition that stays true is no bug that a test could point at
        for node in own_expressions(statement):
            for kind, change in KINDS.items():
                edits = [edit for edit in change(module, node) if not _is_idle(module, statement, edit)]
                found += [Mutation(kind, definition, edit) for edit in edits]
    return found


def _is_idle(module: Module, statement: ast.stmt, edit: Edit) -> bool:
    """Whether it leaves `text = text`, which gives itself away."""
    if not isinstance(statement, ast.Assign):
        return False
    start, end = module.span(statement.value)
    if edit.start < start or edit.end > end:
        return False
    value = module.data[start : edit.start] + edit.new + module.data[edit.end : end]
    return any(module.data[slice(*module.span(each))] == value for each in statement.targets)


@dataclass(frozen=True)
class _Block:
    """Where a statement stands: in which part of which other one, and whether that part has no other."""

    owner: ast.stmt | None
    part: str
    alone: bool
    around: _Block | None = None  # where the owner stands


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Every statement below a body, the outer ones first."""
    for each, _, _ in _statements(body, _Block(None, "", alone=len(body) == 1)):
        yield each


def _statements(body: list[ast.stmt], block: _Block, endless: bool = False) -> Iterator[tuple[ast.stmt, _Block, bool]]:
    """Every statement below a body, where it stands, and whether a `while` goes round it."""
    for each in body:
        yield each, block, endless
        inside = endless or isinstance(each, ast.While)
        for part in ("body", "orelse", "finalbody"):
            inner: list[ast.stmt] = getattr(each, part, [])
            yield from _statements(inner, _Block(each, part, len(inner) == 1, block), inside)
        for handler in getattr(each, "handlers", []):
            yield from _statements(handler.body, _Block(each, "handlers", len(handler.body) == 1, block), inside)


def _lost(module: Module, statement: ast.stmt, block: _Block) -> Edit | None:
    """The file without a statement. One that is alone takes its `else`, or its `if`, with it: nobody leaves `pass`."""
    if not block.alone:
        return module.lost_statement(statement)
    owner = block.owner
    first = module.lines[statement.lineno - 1][statement.col_offset :]
    if isinstance(owner, ast.If) and block.part == "orelse":
        if first.startswith(b"elif"):
            return module.lost_statement(statement)
        return module.without_else(owner)
    if not isinstance(owner, ast.If) or block.part != "body" or owner.orelse or block.around is None:
        return None
    above = module.lines[owner.lineno - 1][owner.col_offset :]
    if block.around.alone and not above.startswith(b"elif"):
        return None
    return module.lost_statement(owner)


def own_expressions(statement: ast.stmt) -> Iterator[ast.AST]:
    """A statement and its expressions, without the statements inside and without formatted strings."""
    yield statement
    todo = list(_inner_expressions(statement))
    while todo:
        each = todo.pop()
        if isinstance(each, ast.JoinedStr):
            continue  # places inside have no bytes of their own before 3.12
        yield each
        todo += _inner_expressions(each)


def _inner_expressions(node: ast.AST) -> Iterator[ast.expr]:
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.expr):
            yield each
        elif isinstance(each, ast.keyword):
            yield each.value
        elif isinstance(each, ast.comprehension):
            yield from (each.iter, *each.ifs)
        elif isinstance(each, ast.withitem):
            yield each.context_expr


def operator_between(module: Module, left: ast.expr, right: ast.expr, old: str, new: str) -> Iterator[Edit]:
    """Replaces an operator that stands between two expressions."""
    start, end = module.span(left)[1], module.span(right)[0]
    named = old.replace(" ", "").isalpha()
    pattern = rb"\b" + old.encode().replace(b" ", rb"\s+") + rb"\b" if named else re.escape(old.encode())
    found = list(re.finditer(pattern, module.data[start:end]))
    # More than one place, or a comment between: nobody knows which of them is the operator.
    if len(found) == 1 and b"#" not in module.data[start:end]:
        yield Edit(start + found[0].start(), start + found[0].end(), new.encode())


def comparison(module: Module, node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.Compare):
        terms = [node.left, *node.comparators]
        for left, right, kind in zip(terms, terms[1:], map(type, node.ops), strict=False):
            if kind in COMPARISONS:
                yield from operator_between(module, left, right, *COMPARISONS[kind])


def operator(module: Module, node: ast.AST) -> Iterator[Edit]:
    # Text and lists know no minus: that would be a type error, and nothing to look for.
    if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC and not is_text(node.left) | is_text(node.right):
        yield from operator_between(module, node.left, node.right, *ARITHMETIC[type(node.op)])


def is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr | ast.List | ast.Tuple) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )


def junction(module: Module, node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.BoolOp) and len(node.values) == 2:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        yield from operator_between(module, node.values[0], node.values[1], old, new)


def condition(module: Module, node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        test = node.test
        start = module.span(test)[0]
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            yield Edit(start, module.span(test.operand)[0])
        # A negated `while` either never runs or never ends.
        elif not isinstance(node, ast.While):
            # As somebody would write it: `not (x is None)` gives itself away.
            if isinstance(test, ast.Compare) and len(test.ops) == 1 and type(test.ops[0]) in OPPOSITES:
                yield from operator_between(module, test.left, test.comparators[0], *OPPOSITES[type(test.ops[0])])
            elif isinstance(test, ast.Name | ast.Attribute | ast.Call | ast.Subscript):
                yield Edit(start, start, b"not ")


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
        read = {each.id for each in ast.walk(node.value) if isinstance(each, ast.Name)}
        # A name that had a value before keeps that: `text = text.strip()`.
        return all(
            isinstance(each, ast.Attribute | ast.Subscript) or (isinstance(each, ast.Name) and each.id in read)
            for each in node.targets
        )
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
    if isinstance(node, ast.Slice) and node.step is None:
        start, end = module.span(node)
        if node.lower is not None and node.upper is None:
            yield Edit(start, end, b":" + module.data[slice(*module.span(node.lower))])
        elif node.upper is not None and node.lower is None:
            yield Edit(start, end, module.data[slice(*module.span(node.upper))] + b":")


def lost_part(module: Module, node: ast.AST) -> Iterator[Edit]:
    """`a or b` without its last part: a default or a condition that somebody forgot."""
    if isinstance(node, ast.BoolOp):
        (_, start), (after, end) = module.span(node.values[-2]), module.span(node.values[-1])
        if re.fullmatch(rb"\s+(and|or)\s+", module.data[start:after]):
            yield Edit(start, end)


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
    "lost part": lost_part,
    "lost argument": lost_argument,
    "lost call": lost_call,
    "similar name": similar_name,
}
