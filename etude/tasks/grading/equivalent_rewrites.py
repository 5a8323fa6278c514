"""The same module written differently: no test that asks what the code does notices, every test that reads it does.

Comments and layout go, local names change, a comparison with a constant is turned round, the two branches of a
condition change places, and each function gets a local that nobody reads. Drawn anew for each use. Knows Python text
alone; where a module stands on its own text, whoever made the task found out.
"""

from __future__ import annotations

import ast
import random
from typing import Final

Function = ast.FunctionDef | ast.AsyncFunctionDef

# What sees names as text, or makes some that no assignment shows.
_LOOKING: Final = {"locals", "eval", "exec", "vars", "dir", "globals", "super", "__class__"}
_NAMING: Final = (
    *(ast.Global, ast.Nonlocal, ast.Import, ast.ImportFrom, ast.ClassDef, ast.ExceptHandler),
    *(ast.MatchAs, ast.MatchStar, ast.MatchMapping),
)
_MIRRORED: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.Gt,
    ast.Gt: ast.Lt,
    ast.LtE: ast.GtE,
    ast.GtE: ast.LtE,
    ast.Eq: ast.Eq,
    ast.NotEq: ast.NotEq,
}


def rewritten(source: str, rng: random.Random) -> str:
    """Another text that does the same."""
    tree = ast.parse(source)
    for node in list(ast.walk(tree)):
        if isinstance(node, Function):
            _rename(node, rng)
            _add_unread(node, rng)
        elif isinstance(node, ast.If):
            _turn(node)
        elif isinstance(node, ast.Compare):
            _mirror(node)
    # A comment that differs each time: the text of two rewrites is never equal.
    return f"# {_word(rng)}\n{ast.unparse(ast.fix_missing_locations(tree))}\n"


def _word(rng: random.Random) -> str:
    return "_" + "".join(rng.choices("abcdefghijklmnoprstuvw", k=9))


def _rename(function: Function, rng: random.Random) -> None:
    """Locals that are only ever assigned and read, by new names throughout."""
    inside = [node for part in function.body for node in ast.walk(part)]
    names = [node for node in inside if isinstance(node, ast.Name)]
    # Code that looks its own locals up by name would do something else under other names.
    if any(node.id in _LOOKING for node in names) or any(isinstance(node, _NAMING) for node in inside):
        return
    taken = {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
    taken |= {node.name for node in inside if isinstance(node, Function)}
    # The same name outside of an inner scope may be another's.
    for scope in (node for node in inside if isinstance(node, Function | ast.comprehension)):
        stored = ast.walk(scope.target if isinstance(scope, ast.comprehension) else scope)
        taken |= {node.id for node in stored if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    own = {node.id for node in names if isinstance(node.ctx, ast.Store)} - taken
    new = {name: _word(rng) for name in sorted(own)}
    for node in names:
        node.id = new.get(node.id, node.id)


def _add_unread(function: Function, rng: random.Random) -> None:
    at = 1 if ast.get_docstring(function, clean=False) is not None else 0
    unread = ast.Assign([ast.Name(_word(rng), ast.Store())], ast.Constant(rng.choice([None, 0, "", 1.5])))
    function.body.insert(at, unread)


def _turn(node: ast.If) -> None:
    chained = len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If)
    if node.orelse and not chained:
        node.test = ast.UnaryOp(ast.Not(), node.test)
        node.body, node.orelse = node.orelse, node.body


def _mirror(node: ast.Compare) -> None:
    """Where one side is a constant: it has no say in how the two are compared."""
    kind = type(node.ops[0])
    if len(node.ops) != 1 or kind not in _MIRRORED:
        return
    # Two calls would run in another order.
    if isinstance(node.left, ast.Constant) != isinstance(node.comparators[0], ast.Constant):
        node.left, node.comparators = node.comparators[0], [node.left]
        node.ops = [_MIRRORED[kind]()]
