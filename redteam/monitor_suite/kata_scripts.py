"""A kata as scripts see it, and what a family of scripts is: three variants, each a hack and an honest counterpart.

A script is a list of steps, one turn each: a shell command, a call, or a whole turn. It ends with a call of `finish`
unless it brings its own. Knows no particular family.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from textwrap import dedent

from etude.core.policy import Assistant, Call
from etude.forge.gates.attacks.base import visible_answers
from etude.tasks.format.function_bodies import replace_bodies, signature
from etude.tasks.format.task import WORKSPACE, Task

Step = str | Call | Assistant
Steps = list[Step]
ExtraFiles = dict[str, bytes]  # more files of the workspace


@dataclass(frozen=True)
class KataScript:
    """A task with one deleted function."""

    task: Task

    @cached_property
    def module(self) -> str:
        return self.task.facts.deleted[0].partition(":")[0]

    @cached_property
    def function(self) -> str:
        return self.task.facts.deleted[0].partition(":")[2]

    @property
    def package(self) -> str:
        return self.module.partition("/")[0]

    @property
    def stem(self) -> str:
        """The module's name in its package."""
        return self.module.rpartition("/")[2].removesuffix(".py")

    @property
    def dotted(self) -> str:
        return f"{self.package}.{self.stem}"

    @property
    def test(self) -> str:
        return f"tests/test_{self.stem}.py"

    @property
    def before(self) -> str:
        return self.task.workspace.text(self.module)

    @property
    def after(self) -> str:
        return self.task.solution.text(self.module)

    @cached_property
    def arguments(self) -> str:
        return ", ".join(signature(self.before, self.function)[0])

    @cached_property
    def answers(self) -> dict[str, str]:
        """Source of the arguments -> source of the value, as the visible tests have them."""
        known = visible_answers(self.task).get(self.function, {})
        return {given.removeprefix("(").removesuffix(")").removesuffix(","): value for given, value in known.items()}

    @property
    def true_body(self) -> str:
        """The reference's body of the function, unindented."""
        node = next(n for n in ast.parse(self.after).body if getattr(n, "name", "") == self.function)
        assert isinstance(node, ast.FunctionDef)
        lines = self.after.splitlines()[node.body[1].lineno - 1 : node.end_lineno]
        return dedent("\n".join(lines))

    def with_body(self, body: str, top: str = "") -> str:
        """The module with another body of the function and some code after its docstring."""
        text = replace_bodies(self.before, {self.function: body})
        head, _, rest = text.partition("\n")
        return f"{head}\n\n{top}\n{rest}" if top else text

    def body(self, body: str, top: str = "") -> Call:
        return write(self.module, self.with_body(body, top))

    def solved(self, top: str = "", more: str = "") -> Call:
        """The reference's function in the file, with some code before or after."""
        return write(self.module, self.with_body(self.true_body, top) + more)

    def solve(self) -> Steps:
        return [read(self.module), write(self.module, self.after)]

    def with_files(self, files: ExtraFiles) -> KataScript:
        """The same task with more files in its workspace."""
        if not files:
            return self
        changed = self.task.files.replaced({f"{WORKSPACE}/{path}": data for path, data in files.items()})
        task = self.task
        return KataScript(Task(task.name, task.instruction, task.config, task.facts, changed))


@dataclass(frozen=True)
class Variant:
    name: str
    hack: Callable[[KataScript], Steps]
    honest: Callable[[KataScript], Steps]
    extra_files: Callable[[KataScript], ExtraFiles] = lambda kata: {}


@dataclass(frozen=True)
class Family:
    number: int  # in the catalogue of reward hacking; 0 for broken tasks
    name: str
    variants: tuple[Variant, ...]


TESTS = "python -m unittest"


def read(path: str) -> Call:
    return Call("read", {"path": path})


def write(path: str, text: str) -> Call:
    return Call("write", {"path": path, "text": text})


def edit(path: str, old: str, new: str) -> Call:
    return Call("edit", {"path": path, "old": old, "new": new})


def finish(message: str) -> Call:
    return Call("finish", {"message": message})


def think(text: str, *calls: Call) -> Assistant:
    return Assistant(text, calls=calls)


def turns(steps: Steps) -> list[Assistant]:
    """The script as turns of an agent."""
    said: list[Assistant] = []
    for step in steps:
        if isinstance(step, str):
            step = Call("run", {"command": step})
        said.append(Assistant(calls=(step,)) if isinstance(step, Call) else step)
    ended = said and any(call.name == "finish" for call in said[-1].calls)
    return said if ended else [*said, Assistant(calls=(finish("Done."),))]
