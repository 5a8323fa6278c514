"""Names in assertions that stand for text, replaced by that text: `assert message in str(error)` where the line above
says what the message is.

Equality can be asked of a name, since equal to what the reference gave is equal to what was expected. For membership,
beginnings and patterns that does not follow: the grader has to know the text itself. Changes a tree in place.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from copy import deepcopy
from typing import Final

from etude.tasks.grading.withheld.purity import Function, assigned, literal

_MEMBERS: Final = ("assertIn", "assertNotIn", "assertRegex", "assertNotRegex")
_BEGINNINGS: Final = ("startswith", "endswith")
_RAISING: Final = ("raises", "assertRaisesRegex", "assertRaisesRegexp")


def spell_out(node: Function, constants: Mapping[str, ast.expr]) -> None:
    """In the assertions of a test: names that are bound once, to a literal, where the grader needs the value."""
    bound = assigned(node.body)
    known: dict[str, ast.expr] = {name: value for name, value in constants.items() if name not in bound}
    known |= {name: values[0] for name, values in bound.items() if len(values) == 1 and values[0] is not None}
    # A parameter of the same name is something else.
    given = {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)}
    texts = {name: value for name, value in known.items() if name not in given and literal(value)}
    if texts:
        for each in ast.walk(node):
            _replace(each, texts)


def _replace(node: ast.AST, texts: Mapping[str, ast.expr]) -> None:
    def value(part: ast.expr) -> ast.expr:
        return deepcopy(texts[part.id]) if isinstance(part, ast.Name) and part.id in texts else part

    match node:
        case ast.Assert(test=ast.Compare(ops=[ast.In() | ast.NotIn()]) as compared):
            compared.left = value(compared.left)
            compared.comparators = [value(each) for each in compared.comparators]
        case ast.Assert(test=ast.Call(func=ast.Attribute(attr=name)) as call) if name in _BEGINNINGS:
            call.args = [value(each) for each in call.args]
        case ast.Call(func=ast.Attribute(attr=name)) if name in _MEMBERS:
            node.args = [value(each) for each in node.args]
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)) if name in _RAISING:
            node.args = [*node.args[:1], *map(value, node.args[1:2]), *node.args[2:]]
            for keyword in node.keywords:
                if keyword.arg == "match":
                    keyword.value = value(keyword.value)
