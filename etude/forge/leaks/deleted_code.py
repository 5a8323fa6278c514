"""What a task has taken away: pieces of source. Knows nothing about how they are searched for."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator
from dataclasses import dataclass

from etude.tasks.javascript.functions import functions
from etude.tasks.javascript.parsing import ENDINGS


@dataclass(frozen=True)
class Deleted:
    """A function, class or slice that the agent has to write again, as the repository had it."""

    path: str  # the file it was deleted from, relative to the workspace: "src/attr/_make.py"
    name: str  # its qualified name there: "Attribute.evolve"; "" for a slice without a name of its own
    source: str  # its text, dedented or not: everything that must not be found anywhere


def defined_in(path: str, source: str) -> Iterator[tuple[str, str]]:
    """(qualified name, text) of everything that a file defines, in the language of its ending."""
    if not path.endswith(ENDINGS):
        yield from definitions(source)
        return
    for each in functions(source.encode("utf-8", "surrogateescape")):
        yield each.name, (each.statement.text or b"").decode("utf-8", "replace")


def parse_python(source: str) -> ast.Module | None:
    """The tree of a text; None for what is no Python, or nested beyond the parser."""
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def definitions(source: str) -> Iterator[tuple[str, str]]:
    """(qualified name, text) of every function and class; nothing for what is no Python."""
    tree = parse_python(source)
    if tree is None:
        return
    lines = source.splitlines(keepends=True)
    waiting: list[tuple[str, ast.AST]] = [("", tree)]
    while waiting:
        outer, parent = waiting.pop()
        for node in ast.iter_child_nodes(parent):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{outer}{node.name}"
                yield name, "".join(lines[node.lineno - 1 : node.end_lineno])
                if isinstance(node, ast.ClassDef):
                    waiting.append((f"{name}.", node))
            elif isinstance(node, ast.If | ast.Try | ast.With):
                waiting.append((outer, node))


def added_lines(before: str, after: str) -> str:
    """The lines that one text has over another."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    return "".join(
        line
        for kind, _, _, start, end in matcher.get_opcodes()
        if kind in ("insert", "replace")
        for line in new[start:end]
    )
