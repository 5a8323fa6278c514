"""Code that only looks like a solution: functions that return the same thing whatever they are given.

Works on text alone and runs nothing.
"""

from __future__ import annotations

import ast
import random

from etude.tasks.format.function_bodies import is_defined, replace_bodies, signature
from etude.tasks.format.task import Task
from etude.tasks.javascript.parsing import ENDINGS
from etude.tasks.javascript.stubs import STUBS as JAVASCRIPT_STUBS
from etude.tasks.javascript.stubs import stubbed

STUBS = ("None", "0", '""', "[]", "True")


def stub_values(task: Task, python: tuple[str, ...]) -> tuple[str, ...]:
    """What stubs of a task return, in its language: these, or those of JavaScript."""
    return JAVASCRIPT_STUBS if task.facts.suite == "node" else python


def stub(task: Task, value: str) -> dict[str, bytes | None]:
    """The solution's files, tests left out, with every function that it changes returning `value`."""
    files: dict[str, bytes | None] = {}
    for path in task.solution:
        data = None
        if path in task.tests:
            continue
        if path.endswith(".py"):
            before = task.workspace.text(path) if path in task.workspace else ""
            data = _stubbed(before, task.solution.text(path), value)
        elif task.facts.suite == "node" and path.endswith(ENDINGS):
            data = stubbed(task.workspace.get(path, b""), task.solution[path], value)
        if data is not None:
            files[path] = data
    return files


def _stubbed(before: str, after: str, value: str) -> bytes | None:
    try:
        old = {ast.dump(node) for node in ast.walk(ast.parse(before))}
        tree = ast.parse(after)
    except (SyntaxError, ValueError, RecursionError):
        return None
    changed = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and ast.dump(node) not in old
    ]
    for node in changed:
        node.body = [ast.parse(f"return {value}").body[0]]
    return ast.unparse(ast.fix_missing_locations(tree)).encode("utf-8", "surrogateescape") if changed else None


def plausible_stub(task: Task, rng: random.Random) -> dict[str, bytes | None]:
    """A plausible constant, or the argument itself, in every deleted function; None where even its name is gone."""
    if task.facts.suite == "node":
        return stub(task, rng.choice(JAVASCRIPT_STUBS))
    deleted: dict[str, list[str]] = {}
    for symbol in task.facts.deleted:
        path, _, name = symbol.partition(":")
        deleted.setdefault(path, []).append(name)
    files: dict[str, bytes | None] = {}
    for path, names in deleted.items():
        before = task.workspace.text(path) if path in task.workspace else ""
        left = [name for name in names if is_defined(before, name)]
        after = replace_bodies(before, {name: f"return {_plausible(before, name, rng)}" for name in left})
        gone = [name for name in names if name not in left and name.isidentifier()]
        after += "".join(f"\n\ndef {name}(*given, **named):\n    return None\n" for name in gone)
        files[path] = after.encode("utf-8", "surrogateescape")
    return files


def _plausible(source: str, name: str, rng: random.Random) -> str:
    arguments, doc = signature(source, name)
    if "whether" in doc:
        return rng.choice(["True", "False", "None"])
    return rng.choice(["None", "0", "1", '""', "[]", "{}", "True", *arguments, *(f"[{one}]" for one in arguments)])
