"""How the reference works on a ladder task: it looks, runs the test, reads the function, edits, runs again, finishes.

It reads no more than the lines of the function, and does nothing that the instruction or an earlier output could not
have told it: where no place is named, it runs the tests and searches for the function first. Knows the solution only
for the edit itself.
"""

from __future__ import annotations

import ast
import random
import shlex
from collections.abc import Callable, Sequence
from typing import Protocol

from etude.core.errors import EtudeError
from etude.core.policy import Assistant, Call
from etude.tasks.format.task import Task

# `addopts` of a package may name plugins that its environment lacks; a short traceback fits a short context.
PYTEST = "python -m pytest -q -o addopts= --tb=short"
TAIL = "tail -n 15"


class LadderHabits(Protocol):
    """What of the reference's habits counts here, as shares."""

    @property
    def think(self) -> float: ...
    @property
    def test_first(self) -> float: ...
    @property
    def test_after(self) -> float: ...

    @property
    def report(self) -> float: ...


def ladder_reference(
    task: Task,
    rng: random.Random,
    edits_between: Callable[[str, str], list[tuple[str, str]]],
    habits: LadderHabits,
) -> list[Assistant]:
    """The turns of a demonstration."""
    path, _, name = task.facts.deleted[0].partition(":")
    before, after = task.workspace.text(path), task.solution.text(path)
    first, last = lines_of(before, name)
    short = name.rpartition(".")[2]
    # A task without tests names its place, and there is nothing to run.
    test = task.facts.fail_to_pass[0].partition("[")[0] if task.facts.fail_to_pass else ""
    named = test in task.instruction
    run_test = Call("run", {"command": f"{PYTEST} {shlex.quote(test)} | {TAIL}"})

    def turn(thought: str, call: Call) -> Assistant:
        return Assistant(thought if rng.random() < habits.think else "", calls=(call,))

    turns: list[Assistant] = []
    if not named:
        turns.append(turn("Run the tests.", Call("run", {"command": f"{PYTEST} -x | {TAIL}"})))
        turns.append(turn(f"Where is {short}?", Call("grep", {"pattern": f"def {short}\\b"})))
    elif rng.random() < habits.test_first and test:
        turns.append(turn("See how it fails.", run_test))
    turns.append(turn(f"Read {short}.", Call("read", {"path": path, "start": str(first), "end": str(last)})))
    for old, new in edits_between(before, after):
        call = Call("edit", {"path": path, "old": old, "new": new})
        turns.append(turn(f"Mend {short}." if task.facts.category == "debugging" else f"Write {short}.", call))
    if rng.random() < habits.test_after and test:
        turns.append(turn("Run it again.", run_test))
    message = {"message": f"Fixed {short}."} if rng.random() < habits.report else {}
    return [*turns, turn("Done.", Call("finish", message))]


def lines_of(text: str, name: str) -> tuple[int, int]:
    """The first and the last line of a function, by its qualified name."""
    body: Sequence[ast.stmt] = ast.parse(text.removeprefix("\ufeff")).body
    found: ast.stmt | None = None
    for part in name.split("."):
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        found = next((each for each in reversed(body) if isinstance(each, kinds) and each.name == part), None)
        if found is None:
            raise EtudeError(f"the file has no {name}")
        body = found.body
    assert isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    return min([found.lineno, *(each.lineno for each in found.decorator_list)]), found.end_lineno or found.lineno
