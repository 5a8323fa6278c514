"""Tasks whose outcome is an answer: what an agent said last, read strictly and compared with what is right.

The answer is what stands behind the last `ANSWER:`, or else the last line; spelling is forgiven (quotes, `::` for `.`,
the order of several), a longer list than was asked for is not. Nothing runs, and nothing of the accepted answers is in
any sandbox: they are in task.toml, which no layer is made of. Knows a task and a text.
"""

from __future__ import annotations

import ast
import re
from typing import Final

from etude.tasks.format.config import Answer
from etude.tasks.format.task import Task
from etude.tasks.grading.verdict import MOST_TEXT, Grade

MARK: Final = "ANSWER:"
LONGEST: Final = 20_000  # characters of last words that are looked at, from their end
_MARKED: Final = re.compile(r"^[\s>*_#`-]*answer[\s*_`]*:(.*)", re.IGNORECASE)
_FENCE: Final = re.compile(r"^\s*(```|~~~)")
_QUOTES: Final = " \t`'\"*"


def grade_answer(task: Task, said: str) -> Grade:
    """Whether an agent's last words hold the right answer."""
    wanted = task.facts.answer
    assert wanted is not None
    told = read_answer(said)
    if not told:
        return Grade(False, "answer", f"it ended without an answer ({MARK} ...)", {"answer": "missing"})
    if is_right(wanted, told):
        return Grade(True, "passed", "", {"answer": "passed"})
    shown = ", ".join(told)[:MOST_TEXT]
    reason = f"the answer is wrong: {shown[:80]}"
    return Grade(False, "answer", reason, {"answer": "failed"}, {"answer": shown})


def reference_answer(wanted: Answer) -> str:
    """Last words that are right."""
    return f"{MARK} {wanted.accepted[0] if wanted.kind == 'name' else ', '.join(wanted.accepted)}"


def read_answer(said: str) -> list[str]:
    """The names of an answer as they were given, spelled in one way; none where there is no answer."""
    lines = said[-LONGEST:].splitlines()
    marked = [(number, found[1]) for number, line in enumerate(lines) if (found := _MARKED.match(line))]
    if marked:
        number, rest = marked[-1]
        given = rest if rest.strip(_QUOTES) else "\n".join(_block(lines[number + 1 :]))
    else:
        given = next((line for line in reversed(lines) if line.strip() and not _FENCE.match(line)), "")
    return [name for part in re.split(r"[,;\s]+", given) if (name := _spelled(part))]


def is_right(wanted: Answer, told: list[str]) -> bool:
    accepted = {_spelled(name) for name in wanted.accepted}
    if wanted.kind == "name":
        return len(told) == 1 and told[0] in accepted
    return set(told) == accepted


def _block(lines: list[str]) -> list[str]:
    """A list below its mark: up to the first empty line behind something, fences left out."""
    found: list[str] = []
    for line in lines:
        if not line.strip() and found:
            break
        if line.strip() and not _FENCE.match(line):
            found.append(line)
    return found


def _spelled(name: str) -> str:
    """`./a.py::C::f()` and `a.py:C.f` are the same; list marks and the word between two names are nothing."""
    name = name.strip(_QUOTES).rstrip(".").strip(_QUOTES).removesuffix("()").removeprefix("./")
    if name in ("-", "+", "and", "&") or re.fullmatch(r"\d+", name):
        return ""
    path, colons, rest = name.partition("::")
    return f"{path}:{rest.replace('::', '.')}" if colons else name


def all_names(task: Task) -> list[str]:
    """Every function and method of the workspace as path:name: what somebody lists who does not know."""
    found: list[str] = []
    for path in task.workspace:
        if path.endswith(".py"):
            try:
                tree = ast.parse(task.workspace[path])
            except (SyntaxError, ValueError, RecursionError):
                continue
            found += [f"{path}:{name}" for name in _functions(tree, "")]
    return found


def _functions(node: ast.Module | ast.ClassDef, before: str) -> list[str]:
    found: list[str] = []
    for part in node.body:
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
            found.append(f"{before}{part.name}")
        elif isinstance(part, ast.ClassDef):
            found += _functions(part, f"{before}{part.name}.")
    return found
