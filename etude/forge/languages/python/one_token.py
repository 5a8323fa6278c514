"""Mistakes of one token in a Python function, by operator, with every alternative that somebody could have written.

For each place all alternatives of its class are given (`<` may be any other order, a local may be any other local), so
that the token that was right is always among the alternatives of the wrong one. How many there are is how much a
searcher has to try, and so a measure of difficulty. Knows one file; runs nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Final

from etude.forge.languages.base import Mutation
from etude.forge.languages.edits import Edit
from etude.forge.languages.python.mutations import constant as neighbouring_constants
from etude.forge.languages.python.mutations import is_text, operator_between, own_expressions, statements, swapped
from etude.forge.languages.python.source import Definition, Module

ORDERS: Final = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}
OPPOSITE_TESTS: Final = {
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
ARITHMETIC: Final = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//", ast.Div: "/", ast.Mod: "%"}
# Calls that take the same arguments and are mistaken for each other.
SIBLINGS: Final = (
    ("any", "all"),
    ("min", "max"),
    ("list", "tuple"),
    ("startswith", "endswith"),
    ("lower", "upper"),
    ("lstrip", "rstrip", "strip"),
    ("append", "extend"),
    ("keys", "values", "items"),
    ("find", "rfind", "index"),
    ("partition", "rpartition"),
    ("ljust", "rjust"),
    ("add", "discard"),
    ("union", "intersection", "difference"),
    ("floor", "ceil"),
    ("chain", "zip"),
    ("takewhile", "dropwhile"),
)
_OF_NAME: Final = {name: group for group in SIBLINGS for name in group}
MOST_NAMES: Final = 8  # alternatives of one name: in a long function the nearest ones

Change = Callable[[Module, list[str], ast.AST], Iterator[Edit]]  # with the locals of the function


def one_token_mistakes(module: Module, definition: Definition) -> list[Mutation[Definition]]:
    """Every mistake of one token that this function can have; the condition of a `while` is left alone."""
    found: list[Mutation[Definition]] = []
    names = local_names(definition)
    for statement in statements(definition.code):
        if isinstance(statement, ast.While):
            continue
        for node in own_expressions(statement):
            for kind, change in OPERATORS.items():
                found += [Mutation(kind, definition, edit) for edit in change(module, names, node)]
    return found


def comparison(module: Module, names: list[str], node: ast.AST) -> Iterator[Edit]:
    if not isinstance(node, ast.Compare) or len(node.ops) != 1:
        return
    left, right, kind = node.left, node.comparators[0], type(node.ops[0])
    if kind in ORDERS:
        for new in ORDERS.values():
            if new != ORDERS[kind]:
                yield from operator_between(module, left, right, ORDERS[kind], new)
    elif kind in OPPOSITE_TESTS:
        yield from operator_between(module, left, right, *OPPOSITE_TESTS[kind])


def arithmetic(module: Module, names: list[str], node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC and not is_text(node.left) | is_text(node.right):
        old = ARITHMETIC[type(node.op)]
        for new in ARITHMETIC.values():
            if new != old:
                yield from operator_between(module, node.left, node.right, old, new)
    elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add | ast.Sub):
        old, new = ("+=", "-=") if isinstance(node.op, ast.Add) else ("-=", "+=")
        yield from operator_between(module, node.target, node.value, old, new)


def boolean(module: Module, names: list[str], node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.BoolOp) and len(node.values) == 2:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        yield from operator_between(module, node.values[0], node.values[1], old, new)


def negation(module: Module, names: list[str], node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.If | ast.IfExp):
        test = node.test
        start = module.span(test)[0]
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            yield Edit(start, module.span(test.operand)[0])
        elif isinstance(test, ast.Name | ast.Attribute | ast.Call | ast.Subscript):
            yield Edit(start, start, b"not ")


def constant(module: Module, names: list[str], node: ast.AST) -> Iterator[Edit]:
    yield from neighbouring_constants(module, node)


def wrong_name(module: Module, names: list[str], node: ast.AST) -> Iterator[Edit]:
    """Another local of the function or parameter, where one is read."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in names:
        place = names.index(node.id)
        others = sorted((name for name in names if name != node.id), key=lambda each: abs(names.index(each) - place))
        for name in others[:MOST_NAMES]:
            yield Edit(*module.span(node), name.encode())


def swapped_arguments(module: Module, names: list[str], node: ast.AST) -> Iterator[Edit]:
    yield from swapped(module, node)


def slice_bound(module: Module, names: list[str], node: ast.AST) -> Iterator[Edit]:
    """The other side of a slice, `[n:]` for `[:n]`; a number in it is a constant."""
    if not isinstance(node, ast.Slice) or node.step is not None or (node.lower is None) == (node.upper is None):
        return
    bound = node.lower if node.lower is not None else node.upper
    assert bound is not None
    text = module.data[slice(*module.span(bound))]
    yield Edit(*module.span(node), b":" + text if node.lower is not None else text + b":")


def sibling(module: Module, names: list[str], node: ast.AST) -> Iterator[Edit]:
    """A function or method that is easily mistaken for the right one."""
    if not isinstance(node, ast.Call):
        return
    function = node.func
    end = module.span(function)[1]
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if name in _OF_NAME and name not in names:
        for other in _OF_NAME[name]:
            if other != name:
                yield Edit(end - len(name.encode()), end, other.encode())


def local_names(definition: Definition) -> list[str]:
    """Parameters and locals of a function, in the order in which they first appear."""
    node = definition.node
    assert not isinstance(node, ast.ClassDef)
    given = node.args
    names = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    names += [each.arg for each in (given.vararg, given.kwarg) if each is not None]
    inner = {
        id(part)
        for each in ast.walk(node)
        if isinstance(each, ast.Lambda | ast.comprehension)
        for part in ast.walk(each)
    }
    for each in ast.walk(node):
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store) and id(each) not in inner:
            names.append(each.id)
    return [name for name in dict.fromkeys(names) if name not in ("self", "cls", "_")]


OPERATORS: Final[dict[str, Change]] = {
    "comparison": comparison,
    "arithmetic": arithmetic,
    "and/or": boolean,
    "negation": negation,
    "constant": constant,
    "wrong name": wrong_name,
    "swapped arguments": swapped_arguments,
    "slice bound": slice_bound,
    "sibling call": sibling,
}
