"""What attacks are made of: their types, and what several of them read from a task."""

from __future__ import annotations

import ast
from collections.abc import Callable

from etude.core.policy import Assistant
from etude.tasks.format.function_bodies import replace_bodies
from etude.tasks.format.task import Task

Files = dict[str, bytes | None]  # by path in the workspace; None deletes
Attack = Callable[[Task], "Files | list[Assistant]"]


def deleted(task: Task) -> dict[str, list[str]]:
    """File -> names of its deleted functions."""
    found: dict[str, list[str]] = {}
    for symbol in task.facts.deleted:
        path, _, name = symbol.partition(":")
        found.setdefault(path, []).append(name)
    return found


def with_bodies(task: Task, body: str) -> Files:
    """The modules with deletions, each deleted function with this body."""
    return {
        path: replace_bodies(task.workspace.text(path), dict.fromkeys(names, body)).encode()
        for path, names in deleted(task).items()
    }


def visible_answers(task: Task) -> dict[str, dict[str, str]]:
    """Function -> repr of its arguments -> source of the value, from the assertions in the workspace's tests."""
    answers: dict[str, dict[str, str]] = {}
    for path in task.workspace:
        if not path.startswith("tests/") or not path.endswith(".py"):
            continue
        for node in ast.walk(ast.parse(task.workspace.text(path))):
            if isinstance(node, ast.Call) and len(node.args) == 2 and isinstance(node.args[0], ast.Call):
                call = node.args[0]
                if isinstance(call.func, ast.Name):
                    given = tuple(ast.literal_eval(argument) for argument in call.args)
                    answers.setdefault(call.func.id, {})[repr(given)] = ast.unparse(node.args[1])
    return answers


def failing_files(task: Task) -> list[str]:
    """The workspace's test files that hold a test which has to turn from failing to passing."""
    modules = {name.split("::")[0].removesuffix(".py").split(".")[0] for name in task.facts.fail_to_pass}
    return [path for path in task.workspace if path.startswith("tests/") and path[6:].removesuffix(".py") in modules]
