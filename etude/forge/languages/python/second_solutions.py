"""Other right solutions of a task: the reference rewritten, keeping only what the instruction and visible code state.

Messages that nothing states have other words, private names that nothing mentions are others, and the code is written
differently (`grading/equivalent_rewrites`). A test that accepts the reference and none of these asks for something that
nobody could know. Works on text alone and runs nothing.
"""

from __future__ import annotations

import ast
import builtins
import random
import re
from collections.abc import Callable, Collection, Mapping
from typing import Final

from etude.forge.languages.python.hidden_demands import Function, Visible
from etude.tasks.grading.equivalent_rewrites import rewritten

COUNT: Final = 2  # other solutions for each task
_LOGGING: Final = {"warn", "warning", "debug", "info", "error", "exception", "critical", "log"}


def second_solution(
    reference: Mapping[str, bytes], deleted: Mapping[str, Collection[str]], visible: Visible, seed: int
) -> dict[str, bytes]:
    """The reference's files in other words. `deleted` names what was deleted of each: the rest stays as it is."""
    rng = random.Random(seed)
    found: dict[str, bytes] = {}
    renamed: dict[str, str] = {}
    trees: dict[str, ast.Module] = {}
    for path, data in reference.items():
        try:
            trees[path] = ast.parse(data)
        except (SyntaxError, ValueError, RecursionError):
            continue
        for node in _deleted(trees[path], deleted.get(path, ())):
            renamed |= {name: f"{name}_{_letters(rng)}" for name in _private(node) if name not in visible.words}
    for path, tree in trees.items():
        for node in _deleted(tree, deleted.get(path, ())):
            _Messages(visible.has, rng).visit(node)
        # Everywhere in the file: what stays may not mention a name that the agent does not see.
        _Names(renamed).visit(tree)
        found[path] = rewritten(ast.unparse(ast.fix_missing_locations(tree)), rng).encode("utf-8", "surrogateescape")
    return found


def _deleted(tree: ast.Module, names: Collection[str]) -> list[ast.AST]:
    found: list[ast.AST] = []

    def walk(body: list[ast.stmt], before: str) -> None:
        for node in body:
            if isinstance(node, Function | ast.ClassDef):
                if before + node.name in names:
                    found.append(node)
                elif isinstance(node, ast.ClassDef):
                    walk(node.body, f"{before}{node.name}.")

    walk(tree.body, "")
    return found


def _private(node: ast.AST) -> set[str]:
    """Private names that the code defines or sets itself: functions, and attributes of self."""
    found: set[str] = set()
    for each in ast.walk(node):
        if isinstance(each, Function | ast.ClassDef):
            found.add(each.name)
        elif isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store):
            found.add(each.attr)
    return {name for name in found if re.fullmatch(r"_[a-z]\w*", name)}


def _letters(rng: random.Random) -> str:
    return "".join(rng.choices("abcdefghijklmnoprstuvw", k=5))


class _Messages(ast.NodeTransformer):
    """Other words in what is raised, warned of or logged, as far as nothing states them."""

    def __init__(self, stated: Callable[[str], bool], rng: random.Random) -> None:
        self._stated, self._rng = stated, rng

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        # Only plain exceptions of Python itself: a class of the project may do something with what it is given.
        if isinstance(node.exc, ast.Call) and _is_plain_exception(node.exc.func):
            node.exc.args = [self._other(each) for each in node.exc.args]
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr in _LOGGING and node.args:
            node.args[0] = self._other(node.args[0])
        return node

    def _other(self, node: ast.expr) -> ast.expr:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return ast.Constant(self._said(node.value))
        if isinstance(node, ast.JoinedStr):
            parts = [
                ast.Constant(self._said(str(part.value))) if isinstance(part, ast.Constant) else part
                for part in node.values
            ]
            return ast.JoinedStr(parts)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod | ast.Add):
            return ast.BinOp(self._other(node.left), node.op, self._other(node.right))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
            node.func.value = self._other(node.func.value)
        return node

    def _said(self, text: str) -> str:
        """Each word of the text replaced, placeholders and words that are stated kept."""
        if not re.search(r"[A-Za-z]{2}", text) or self._stated(text.strip()):
            return text
        return re.sub(r"(?<![%{\w])[A-Za-z]{2,}(?![\w}])", lambda _: _letters(self._rng), text)


class _Names(ast.NodeTransformer):
    def __init__(self, renamed: Mapping[str, str]) -> None:
        self._renamed = renamed

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = self._renamed.get(node.id, node.id)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        node.attr = self._renamed.get(node.attr, node.attr)
        return node

    def _definition(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> ast.AST:
        self.generic_visit(node)
        node.name = self._renamed.get(node.name, node.name)
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _definition


def _is_plain_exception(node: ast.expr) -> bool:
    found = getattr(builtins, node.id, None) if isinstance(node, ast.Name) else None
    return isinstance(found, type) and issubclass(found, BaseException)
