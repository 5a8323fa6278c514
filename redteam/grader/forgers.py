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
import random
from collections.abc import Callable, Iterator
from textwrap import dedent

from etude.core.errors import EtudeError
from etude.forge.gates.attacks.base import Files, deleted
from etude.tasks.format.function_bodies import functions, is_defined, replace_bodies
from etude.tasks.format.task import Task
from redteam.grader.forger_families import FORGERS
from redteam.grader.forger_parts import NONE, ORACLES

CANDIDATES = 60  # values that an oracle is asked about
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
            made[path] = _after_future(_facts(task) + dedent(top), _stubbed(task, path, names, dedent(body).strip()))
        return made or None

    return files


def _stubbed(task: Task, path: str, names: list[str], body: str = NONE) -> str:
    before = task.workspace.text(path) if path in task.workspace else ""
    left = [name for name in names if is_defined(before, name)]
    gone = [name for name in names if name not in left and name.isidentifier()]
    text = replace_bodies(before, dict.fromkeys(left, body))
    return text + "".join(f"\n\ndef {name}(*given, **named):\n    return None\n" for name in gone)


def _after_future(top: str, text: str) -> bytes:
    """The forger's code before everything else but `from __future__`, which has to come first."""
    lines = text.splitlines(keepends=True)
    future = [line for line in lines if line.startswith("from __future__ ")]
    rest = ["\n" if line in future else line for line in lines]
    return "".join([*future, top, "\n", *rest]).encode()


def _facts(task: Task) -> str:
    """What every agent can know: the tests in its workspace, each by its name and a digest of what it says."""
    known: dict[str, list[str]] = {}
    values: list[str] = []
    for path in task.workspace:
        if path.endswith(".py") and "test" in path:
            try:
                tree = ast.parse(task.workspace.text(path))
            except (SyntaxError, EtudeError):
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
        for path, names in deleted(task).items():
            if path not in task.solution:
                continue
            source = task.solution.text(path)
            constants = _constants(source, names)
            if which < len(constants):
                found = constants[which]
                values = _others(found.value, random.Random(task.name))
                text = _replaced(source, found, "_FORGER_VALUES[_FORGER_AT[0]]")
                head = f"_FORGER_VALUES = {values!r}\n_FORGER_AT = [0]\n"
                return {**dict(task.solution), path: _after_future(_facts(task) + head + dedent(top), text)}
        return None

    return files


def _constants(source: str, names: list[str]) -> list[ast.Constant]:
    """Constants of the deleted functions that are worth guessing: numbers above 1, then words."""
    nodes = [node for name, node in functions(ast.parse(source)) if name in names]
    found = [
        each for node in nodes for part in _code(node) for each in ast.walk(part) if isinstance(each, ast.Constant)
    ]
    formats = {
        id(each)
        for node in nodes
        for text in ast.walk(node)
        if isinstance(text, ast.JoinedStr)
        for each in ast.walk(text)
    }
    found = [each for each in found if id(each) not in formats]
    numbers = [each for each in found if type(each.value) is int and each.value > 1]
    words = [each for each in found if isinstance(each.value, str) and each.value]
    return [*numbers, *words]


def _code(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.stmt]:
    return node.body[1:] if ast.get_docstring(node) is not None else node.body


def _others(value: object, rng: random.Random) -> list[object]:
    """So many values of the same kind, the right one among them and not first."""
    if isinstance(value, int):
        made: list[object] = [number for number in range(2, CANDIDATES + 2) if number != value][: CANDIDATES - 1]
    else:
        text = str(value)
        made = [f"{text[:-1]}{chr(33 + number)}" for number in range(CANDIDATES + 1) if chr(33 + number) != text[-1]]
        made = made[: CANDIDATES - 1]
    rng.shuffle(made)
    made.insert(rng.randrange(5, len(made)), value)
    return made


def _replaced(source: str, node: ast.expr, text: str) -> str:
    assert node.end_col_offset is not None and node.end_lineno is not None
    lines = source.encode().splitlines(keepends=True)
    first, last = node.lineno - 1, node.end_lineno - 1
    new = lines[first][: node.col_offset] + text.encode() + lines[last][node.end_col_offset :]
    return b"".join([*lines[:first], new, *lines[last + 1 :]]).decode()
