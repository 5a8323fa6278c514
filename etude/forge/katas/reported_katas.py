"""Katas whose specification lies outside the repository: `use = "reported_katas"`.

An ordinary kata, but the docstring of the deleted function and its visible tests are gone from the workspace. What the
function has to do is said in an issue of the task's tracker, among other issues; the logs have calls of it with what
they should have given, and a metric counts its failures (`tasks/environment/shadow_backend.py`). The agent asks with
the tool `service`. The tests that were visible judge with the held-out ones.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import pydantic
from pydantic import Field

from etude.core.errors import EtudeError
from etude.forge.katas.draft import Level
from etude.forge.katas.task_source import PROMPT_STYLES, katas
from etude.tasks.environment.shadow_backend import FILE, Issue, LogLine, Sample, ShadowBackend
from etude.tasks.format.config import PromptStyle, Split
from etude.tasks.format.task import WORKSPACE, Task

VERSION: Final = 1
TRIES: Final = 40  # katas looked at for one whose function is alone in its file of tests
CATEGORY: Final = "reported feature"
EXAMPLE: Final = re.compile(r"self\.assertEqual\((.+)\)$")
INSTRUCTIONS: Final[dict[PromptStyle, str]] = {
    "terse": "do issue {number}\n",
    "plain": "Issue {number} in the tracker asks for something in this package. Please do what it says.\n",
    "detailed": (
        "Issue {number} in the issue tracker says what a function of this package has to do. Ask the service `issues` "
        "for it, write the function as it says, and change nothing else. Logs and metrics are there too.\n"
    ),
}


class ReportedKatas:
    """A task source."""

    class Settings(pydantic.BaseModel, extra="forbid"):
        split: Split = Field("train", description="train, held_out or unseen, as for katas")
        count: int = Field(0, ge=0, description="tasks; 0 never ends")
        seed: int = Field(0, ge=0, description="other seeds give other tasks")
        levels: list[Level] = Field([1], description="1 one expression, 2 a loop or branch")
        prompt_styles: list[PromptStyle] = Field(list(PROMPT_STYLES), description="how instructions speak")

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        if not set(settings.levels) <= {1, 2}:
            raise EtudeError("reported_katas has levels 1 and 2: level 3 deletes two functions")

    def tasks(self, start: int = 0) -> Iterator[Task]:
        last = self.settings.count or 1 << 62
        return (self._task(number) for number in range(start, last))

    def _task(self, number: int) -> Task:
        given = self.settings
        for attempt in range(TRIES):
            # Another seed, not another number: the stream's families keep taking turns.
            drawn = katas(given.split, 1, given.seed + 7919 * attempt, given.levels, given.prompt_styles, start=number)
            task = next(drawn)
            if alone(task):
                others = list(katas(given.split, 3, given.seed + 104729, [1], start=3 * number))
                name = f"reported-{task.name}"
                return replace(report(task, others, random.Random(f"{name}/{given.seed}")), name=name)
        raise EtudeError(f"no kata in {TRIES} draws has its function alone in a file of tests; this is a bug")


def alone(task: Task) -> bool:
    """Whether the files of the visible failing tests test nothing else."""
    failing = {name.partition(".")[0] for name in task.facts.fail_to_pass}
    return len(task.facts.deleted) == 1 and not any(
        name.partition(".")[0] in failing for name in task.facts.pass_to_pass
    )


def report(task: Task, others: list[Task], rng: random.Random) -> Task:
    """The same task with what its function does told by the services."""
    [deleted] = task.facts.deleted
    path, _, function = deleted.partition(":")
    source = task.workspace.text(path)
    node = _function(source, function)
    doc, signature = ast.get_docstring(node) or "", f"{function}({ast.unparse(node.args)})"
    tests = sorted({f"tests/{name.partition('.')[0]}.py" for name in task.facts.fail_to_pass})
    lines = [line.strip() for test in tests for line in task.workspace.text(test).splitlines()]
    examples = [_example(found[1]) for line in lines if (found := EXAMPLE.match(line))]
    first = rng.randint(20, 400)
    told = [(f"{function} does nothing yet", f"`{signature}` in {path}. {doc}\n\nFor example {examples[0]}.", "open")]
    for other in others:  # of functions that this repository does not have
        away, _, name = other.facts.deleted[0].partition(":")
        said = ast.get_docstring(_function(other.workspace.text(away), name)) or ""
        told.append((f"{name} should come back", said, rng.choice(["open", "closed"])))
    rng.shuffle(told)
    issues = [Issue(number=first + at, title=t, text=text, state=state) for at, (t, text, state) in enumerate(told)]
    number = next(issue.number for issue in issues if issue.title.startswith(f"{function} "))
    module = path.removesuffix(".py").replace("/", ".")
    logs, metrics = [], []
    for hour in range(8):
        at = f"2026-03-{1 + first % 28:02}T{8 + hour:02}:"
        logs.append(LogLine(time=f"{at}{rng.randint(10, 59)}:00Z", text=f"INFO {module} loaded"))
        if hour < len(examples):
            logs.append(LogLine(time=f"{at}59:30Z", text=f"ERROR {module} failed; wanted: {examples[hour]}"))
        metrics.append(Sample(time=f"{at}00:00Z", name=f"errors.{function}", value=float(rng.randint(1, 9))))
        metrics.append(Sample(time=f"{at}00:00Z", name="requests", value=float(rng.randint(100, 900))))
    backend = ShadowBackend(issues=issues, logs=logs, metrics=metrics)
    changes: dict[str, bytes | None] = {f"{WORKSPACE}/{test}": None for test in tests}
    changes |= {f"{WORKSPACE}/{path}": _without_docstring(source, node).encode(), FILE: backend.to_json()}
    style = task.facts.prompt_style or "plain"
    facts = task.facts.model_copy(
        update={
            "category": CATEGORY,
            "provenance": f"{task.facts.provenance}; reported {VERSION}",
            "fail_to_pass": [],
            "held_out": [*task.facts.fail_to_pass, *task.facts.held_out],
        }
    )
    text = INSTRUCTIONS[style].format(number=number)
    return replace(task, instruction=text, facts=facts, files=task.files.replaced(changes))


def _function(source: str, name: str) -> ast.FunctionDef:
    found = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.name == name]
    return found[0]


def _without_docstring(source: str, node: ast.FunctionDef) -> str:
    lines, doc = source.split("\n"), node.body[0]
    return "\n".join([*lines[: doc.lineno - 1], '    """See the issue tracker."""', *lines[doc.end_lineno :]])


def _example(arguments: str) -> str:
    """`f(1), 2` of an assertEqual as a sentence."""
    call, value = (ast.unparse(each) for each in ast.parse(f"({arguments})", mode="eval").body.elts)  # type: ignore[attr-defined]
    return f"{call} gives {value}"
