"""Wrong calls: one without a keyword, none where there should be one, or one of something that is called alike.

Each is an edit of a few bytes, as in `mutations`. Knows one file; runs nothing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from etude.forge.languages.edits import Edit
from etude.forge.languages.python.source import Module

FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any"}
METHODS = {
    **{"startswith": "endswith", "endswith": "startswith", "lower": "upper", "upper": "lower"},
    **{"rfind": "find", "rindex": "index", "split": "rsplit", "rsplit": "split"},
    **{"partition": "rpartition", "rpartition": "partition", "lstrip": "rstrip", "rstrip": "lstrip"},
    **{"strip": "rstrip", "match": "search", "fullmatch": "match", "search": "match", "keys": "values"},
    **{"values": "keys", "issubset": "issuperset", "issuperset": "issubset", "union": "intersection"},
    **{"intersection": "union", "ljust": "rjust", "rjust": "ljust", "isupper": "islower", "islower": "isupper"},
}
SIMILAR = FUNCTIONS | METHODS
SAME_KIND_METHODS = {"strip", "lstrip", "rstrip", "lower", "upper", "casefold", "title", "copy"}
SAME_KIND_FUNCTIONS = {"sorted", "reversed", "list", "tuple", "set", "frozenset", "abs", "round", "int", "float", "str"}


def lost_argument(module: Module, node: ast.AST) -> Iterator[Edit]:
    """A call without one of its keywords, which then has its default."""
    if not isinstance(node, ast.Call):
        return
    given = sorted([*node.args, *(each.value for each in node.keywords)], key=lambda each: module.span(each))
    for keyword in node.keywords:
        at = given.index(keyword.value)
        if keyword.arg is None or not at:
            continue
        (_, start), (after, end) = module.span(given[at - 1]), module.span(keyword.value)
        # Brackets or a comment between belong to something else.
        if re.fullmatch(rb"\s*,\s*" + keyword.arg.encode() + rb"\s*=\s*", module.data[start:after]):
            yield Edit(start, end)


def lost_call(module: Module, node: ast.AST) -> Iterator[Edit]:
    """What goes into a call that gives a value of the same kind, as it is."""
    if not isinstance(node, ast.Call) or node.keywords:
        return
    start, end = module.span(node)
    if isinstance(node.func, ast.Attribute) and not node.args and node.func.attr in SAME_KIND_METHODS:
        inner = module.span(node.func.value)[1]
        # A bracket before the dot belongs to what stays.
        if re.fullmatch(rb"\s*\.\w+\(\s*\)", module.data[inner:end]):
            yield Edit(inner, end)
    elif isinstance(node.func, ast.Name) and len(node.args) == 1 and node.func.id in SAME_KIND_FUNCTIONS:
        only = node.args[0]
        text = module.data[slice(*module.span(only))]
        if isinstance(only, ast.Name | ast.Attribute | ast.Subscript | ast.Call) and b"\n" not in text:
            yield Edit(start, end, text)


def similar_name(module: Module, node: ast.AST) -> Iterator[Edit]:
    """A function or method whose name and use are alike."""
    if isinstance(node, ast.Call):
        function = node.func
        name = getattr(function, "attr", getattr(function, "id", ""))
        # Without a limit both sides give the same pieces.
        same = name in ("split", "rsplit") and len(node.args) + len(node.keywords) < 2
        if name in SIMILAR and isinstance(function, ast.Name) == (name in FUNCTIONS) and not same:
            end = module.span(function)[1]
            yield Edit(end - len(name), end, SIMILAR[name].encode())
