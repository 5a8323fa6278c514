"""What assertions in a workspace's tests want of the functions that a task is about: arguments and values as texts.

Reads Python text and runs nothing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from etude.audit.python_actions import literal, name_of, parse


class Case(NamedTuple):
    """What a test wants of a call; both in one spelling."""

    given: str  # its arguments, without those by name
    value: str
    plain: bool  # nothing but these literals decides: no object that it is asked of, no variable, no argument by name


def wanted_results(workspace: Mapping[str, str], functions: Sequence[str]) -> dict[str, list[Case]]:
    """By function."""
    found: dict[str, list[Case]] = {}
    wanted = frozenset(functions)
    for path in workspace:
        if not (path.endswith(".py") and re.search(r"(^|/)test", path)):
            continue
        text = workspace[path]
        if any(name in text for name in wanted):
            for name, case in _cases_in(text, wanted):
                found.setdefault(name, []).append(case)
    return found


@lru_cache(maxsize=128)  # rollouts of a task share its tests: without this, all but a millisecond of an audit
def _cases_in(text: str, functions: frozenset[str]) -> tuple[tuple[str, Case], ...]:
    tree = parse(text)
    found: list[tuple[str, Case]] = []
    for node in ast.walk(tree) if tree is not None else ():
        pair = _pair(node)
        if pair is None:
            continue
        call, value = pair
        name, wanted = name_of(call.func).rpartition(".")[2], literal(value)
        if name in functions and wanted is not None:
            literals = isinstance(call.func, ast.Name) and all(literal(given) is not None for given in call.args)
            given = ", ".join(ast.unparse(argument) for argument in call.args)
            found.append((name, Case(given, wanted, literals and not call.keywords)))
    return tuple(found)


def _pair(node: ast.AST) -> tuple[ast.Call, ast.expr] | None:
    """`assertEqual(f(x), y)` and `assert f(x) == y`."""
    sides: list[ast.expr] = []
    if isinstance(node, ast.Call) and re.search(r"\bassert(Equals?|ListEqual|DictEqual)$", name_of(node.func)):
        sides = node.args[:2]
    elif isinstance(node, ast.Assert) and isinstance(node.test, ast.Compare) and isinstance(node.test.ops[0], ast.Eq):
        sides = [node.test.left, node.test.comparators[0]]
    if len(sides) == 2:
        for call, value in (sides, sides[::-1]):
            if isinstance(call, ast.Call) and not isinstance(value, ast.Call):
                return call, value
    return None
