"""Bodies of Python functions in source text: replaced in place, everything else byte for byte as it was.

Finds functions with `ast`, keeps signature, decorators and docstring. Knows nothing about tasks.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from textwrap import indent

from etude.core.errors import EtudeError

Function = ast.FunctionDef | ast.AsyncFunctionDef


def replace_bodies(source: str, bodies: Mapping[str, str]) -> str:
    """The source with new bodies (unindented text) for some of its functions; methods are named Class.method."""
    lines = source.splitlines(keepends=True)
    found = dict(functions(ast.parse(source)))
    for name in bodies:
        if name not in found:
            raise EtudeError(f"there is no function {name} in this source: it has {', '.join(found) or 'none'}")
    for name in sorted(bodies, key=lambda name: -found[name].lineno):  # from below, so that line numbers stay right
        node = found[name]
        first = node.body[1] if _has_doc(node) and len(node.body) > 1 else node.body[0]
        start = node.body[0].end_lineno or 0 if _has_doc(node) else first.lineno - 1
        if not _has_doc(node) and first.lineno == node.lineno:  # on the line of its `def`
            head = lines[start].encode()[: first.col_offset].decode()
            lines[start : node.end_lineno] = [head + bodies[name].strip() + "\n"]
            continue
        # As the file itself indents, by tabs or spaces.
        lead = lines[node.body[0].lineno - 1].encode()[: node.body[0].col_offset].decode()
        lines[start : node.end_lineno] = [indent(bodies[name].rstrip("\n"), lead) + "\n"]
    return "".join(lines)


def is_defined(source: str, name: str) -> bool:
    """Whether the source has a function of this name."""
    return name in dict(functions(ast.parse(source)))


def signature(source: str, name: str) -> tuple[list[str], str]:
    """A function's argument names and its docstring."""
    node = dict(functions(ast.parse(source)))[name]
    return [argument.arg for argument in node.args.args], ast.get_docstring(node) or ""


def functions(node: ast.Module | ast.ClassDef, before: str = "") -> list[tuple[str, Function]]:
    """Functions and methods outside of any other function, by their qualified names."""
    found: list[tuple[str, Function]] = []
    for part in node.body:
        if isinstance(part, Function):
            found.append((before + part.name, part))
        elif isinstance(part, ast.ClassDef):
            found += functions(part, f"{before}{part.name}.")
    return found


def _has_doc(node: Function) -> bool:
    return ast.get_docstring(node, clean=False) is not None
