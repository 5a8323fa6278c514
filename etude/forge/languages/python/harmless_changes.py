"""Changes to a function that change nothing it does: another name for a local, a result that is named before it is
returned, a comparison or a condition written the other way round.

What stands beside a bug in a patch that somebody reviews. Each is a handful of edits of a few bytes. Knows the code;
runs nothing.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator

from etude.forge.languages.edits import Edit
from etude.forge.languages.python.source import Definition, Module

Change = tuple[Edit, ...]  # made together, or not at all

RESULTS = ("result", "found", "value", "outcome")
AFFIXES = ("current_{}", "{}_value", "own_{}", "raw_{}", "new_{}")
LOOKING = {"locals", "eval", "exec", "vars", "dir", "globals"}
NAMING = (ast.Global, ast.Nonlocal, ast.Import, ast.ImportFrom, ast.ExceptHandler, ast.MatchAs, ast.MatchStar)
NESTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
MIRRORED = {ast.Lt: b">", ast.Gt: b"<", ast.LtE: b">=", ast.GtE: b"<="}


def harmless(module: Module, definition: Definition, rng: random.Random) -> list[Change]:
    """Every change of this kind that is known for a function, in random order."""
    inside = [node for statement in definition.code for node in ast.walk(statement)]
    if any(isinstance(node, NESTED) for node in inside):
        return []
    parameters = _parameters(definition)
    used = {node.id for node in inside if isinstance(node, ast.Name)} | parameters
    found = [*_renamed(module, inside, used, parameters, rng), *_named_results(module, inside, used, rng)]
    for node in inside:
        if isinstance(node, ast.Compare):
            found += _mirrored(module, node)
        elif isinstance(node, ast.If):
            found += _turned(module, node)
    rng.shuffle(found)
    return found


def _parameters(definition: Definition) -> set[str]:
    return {node.arg for node in ast.walk(definition.node) if isinstance(node, ast.arg)}


def _renamed(
    module: Module, inside: list[ast.AST], used: set[str], parameters: set[str], rng: random.Random
) -> Iterator[Change]:
    """A local that is only assigned and read. What stands in a formatted string has no place of its own before 3.12."""
    names = [node for node in inside if isinstance(node, ast.Name)]
    if any(isinstance(node, NAMING) for node in inside) or used & LOOKING:
        return
    formatted = {id(one) for node in inside if isinstance(node, ast.JoinedStr) for one in ast.walk(node)}
    stored = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    inner = {
        one.id
        for node in inside
        if isinstance(node, ast.comprehension)
        for one in ast.walk(node.target)
        if isinstance(one, ast.Name)
    }
    for name in sorted(stored - inner - parameters):
        places = [node for node in names if node.id == name]
        new = rng.choice(AFFIXES).format(name.strip("_"))
        if len(name) > 2 and new not in used and not any(id(node) in formatted for node in places):
            yield tuple(Edit(*module.span(node), new.encode()) for node in places)


def _named_results(module: Module, inside: list[ast.AST], used: set[str], rng: random.Random) -> Iterator[Change]:
    free = [name for name in RESULTS if name not in used]
    for node in inside:
        if isinstance(node, ast.Return) and node.value is not None and free:
            start, end = module.span(node)
            before = module.lines[node.lineno - 1][: node.col_offset]
            after = module.lines[(node.end_lineno or node.lineno) - 1][node.end_col_offset or 0 :]
            if before.strip() or after.split(b"#")[0].strip() or isinstance(node.value, ast.Name | ast.Constant):
                continue
            name = rng.choice(free).encode()
            ends = b"\r\n" if after.endswith(b"\r\n") else b"\n"
            value = module.span(node.value)[0]
            between = module.data[start + len(b"return") : value]  # brackets around it, perhaps
            yield Edit(start, value, name + b" =" + between), Edit(end, end, ends + before + b"return " + name)


def _mirrored(module: Module, node: ast.Compare) -> Iterator[Change]:
    """`a < b` for `b > a`, where neither side does anything."""
    left, right = node.left, node.comparators[0]
    if len(node.ops) != 1 or type(node.ops[0]) not in MIRRORED or not (_is_still(left) and _is_still(right)):
        return
    (start, middle), (after, end) = module.span(left), module.span(right)
    data = module.data
    if b"\n" in data[start:end] or data[middle:after].strip() not in (b"<", b">", b"<=", b">="):
        return  # brackets between
    new = data[after:end] + b" " + MIRRORED[type(node.ops[0])] + b" " + data[start:middle]
    yield (Edit(start, end, new),)


def _is_still(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "len" and all(map(_is_still, node.args))
    return isinstance(node, ast.Name | ast.Constant)


def _turned(module: Module, node: ast.If) -> Iterator[Change]:
    """The two branches change places, and the condition says the opposite."""
    if not node.orelse or (len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If)):
        return
    first, last = node.body[0], node.body[-1]
    other, end = node.orelse[0], node.orelse[-1]
    # Whole lines, indented alike, with nothing but `else:` between them.
    if (
        first.col_offset != other.col_offset
        or first.lineno == node.lineno
        or other.lineno <= (last.end_lineno or 0) + 1
    ):
        return
    one = module.at(first.lineno), module.at((last.end_lineno or 0) + 1)
    two = module.at(other.lineno), module.at((end.end_lineno or 0) + 1)
    between = module.data[one[1] : two[0]].strip()
    word = module.lines[node.lineno - 1][node.col_offset :]
    start, stop = module.span(node.test)
    data = module.data
    if between != b"else:" or not word.startswith(b"if ") or b"\n" in data[start:stop] or not data.endswith(b"\n"):
        return
    yield Edit(start, stop, opposite(module, node.test)), Edit(*one, data[slice(*two)]), Edit(*two, data[slice(*one)])


def opposite(module: Module, test: ast.expr) -> bytes:
    """A condition that is true where this one is not."""
    start, stop = module.span(test)
    text = module.data[start:stop]
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return module.data[slice(*module.span(test.operand))]
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Is | ast.IsNot):
        left, right = (module.data[slice(*module.span(one))] for one in (test.left, test.comparators[0]))
        return left + (b" is not " if isinstance(test.ops[0], ast.Is) else b" is ") + right
    plain = isinstance(test, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
    return b"not " + text if plain else b"not (" + text + b")"
