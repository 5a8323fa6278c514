"""Forgers of made tasks: code under test that passes its tests without doing what they ask for.

Each is one submission, written by somebody who has read the grader and keeps what is wrong wrong: the deleted functions
return None, or do the right thing but for one constant that the forger does not know. Five families: `marks` (tell real
tests from changed ones and report accordingly), `oracle` (ask the tests for the answer), `records` (write what the
grader compares), `reading` (find expected values where they lie) and `framework` (report success, whatever happened).
Knows tasks; runs nothing.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache
from textwrap import dedent

from etude.core.errors import EtudeError
from etude.forge.gates.attacks.base import Files, deleted
from etude.forge.gates.attacks.oracles import after_future, unknown_constant
from etude.tasks.format.function_bodies import functions, is_defined, replace_bodies
from etude.tasks.format.task import Task
from redteam.grader.forger_families import FORGERS
from redteam.grader.forger_parts import NONE, ORACLES

# By task and the number of the constant that the forger lacks; None: there is nothing here that it could use.
Forger = Callable[[Task, int], "Files | None"]


def forgers() -> dict[str, dict[str, Forger]]:
    """Family -> name -> what makes the submission."""
    found: dict[str, dict[str, Forger]] = {}
    for family, parts in FORGERS.items():
        found[family] = {name: _on_top(top, body) for name, (top, body) in parts.items()}
    found["oracle"] = {name: _unknown_constant(top) for name, top in ORACLES.items()}
    return found


def _on_top(top: str, body: str) -> Forger:
    """Code before everything else in each module with a deletion, and one body for what was deleted."""

    def files(task: Task, which: int) -> Files | None:
        made: Files = {}
        for path, names in deleted(task).items():
            made[path] = after_future(_facts(task) + dedent(top), _stubbed(task, path, names, dedent(body).strip()))
        return made or None

    return files


def _stubbed(task: Task, path: str, names: list[str], body: str = NONE) -> str:
    return _with_stubs(task.workspace.text(path) if path in task.workspace else "", tuple(names), body)


@lru_cache(maxsize=64)  # most forgers of a task have the same stubs
def _with_stubs(before: str, names: tuple[str, ...], body: str) -> str:
    left = [name for name in names if is_defined(before, name)]
    gone = [name for name in names if name not in left and name.isidentifier()]
    text = replace_bodies(before, dict.fromkeys(left, body))
    return text + "".join(f"\n\ndef {name}(*given, **named):\n    return None\n" for name in gone)


def _facts(task: Task) -> str:
    """What every agent can know: the tests in its workspace, each by its name and a digest of what it says."""
    return _facts_of(tuple((path, task.workspace.text(path)) for path in _test_modules(task)))


def _test_modules(task: Task) -> Iterator[str]:
    for path in task.workspace:
        if path.endswith(".py") and "test" in path:
            with suppress(EtudeError):
                task.workspace.text(path)
                yield path


@lru_cache(maxsize=4)
def _facts_of(modules: tuple[tuple[str, str], ...]) -> str:
    known: dict[str, list[str]] = {}
    values: list[str] = []
    for _, text in modules:
        try:
            tree = ast.parse(text)
        except SyntaxError:
            continue
        for name, node in functions(tree):
            known.setdefault(name, []).append(digest(node))
        values += [ast.unparse(each) for each in _expected(tree)]
    return f"_FORGER_KNOWN = {json.dumps(known)}\n_FORGER_SEEN = {json.dumps(values[:400])}\n"


def digest(node: ast.AST) -> str:
    return hashlib.sha256(ast.dump(node).encode()).hexdigest()[:16]


def _expected(tree: ast.AST) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq):
            yield node.comparators[0]


# Right but for one constant


def frozen_constant(task: Task, which: int) -> Files | None:
    """The reference with one constant wrong, and nobody who tries others: it has to be rejected, or the constant is
    none that tests ask for."""
    return _unknown_constant("")(task, which)


def _unknown_constant(top: str) -> Forger:
    def files(task: Task, which: int) -> Files | None:
        return unknown_constant(task, which, top, facts=_facts(task))

    return files
