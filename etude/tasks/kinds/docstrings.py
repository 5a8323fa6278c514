"""Tasks whose outcome is docstrings: their examples have to be right, and to notice mistakes in what they describe.

Of the submission only text is taken: docstrings are read from the agent's file by `docstring_examples`, written as a
file of tests, and graded as such a file is (`mutants`), over the task's own code. Before that: nothing but docstrings
may have changed, each function needs its number of examples, none of which looks at code, and names all its
parameters.
"""

from __future__ import annotations

import ast
import doctest
import hashlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import replace

from etude.core.settings import GraderSettings
from etude.sandbox.hosts import StoringHost
from etude.tasks.format.config import Documentation
from etude.tasks.format.function_bodies import functions
from etude.tasks.format.task import Task
from etude.tasks.grading.grader import GradeJob
from etude.tasks.grading.verdict import Grade
from etude.tasks.kinds.base import FACTS, Finding, KnownAttempt, OutcomeKind
from etude.tasks.kinds.docstring_examples import (
    EXAMPLES,
    FILE,
    Documented,
    decoded,
    differs_in_code,
    examples_file,
    module_name,
    read_documented,
)
from etude.tasks.kinds.mutants import RUNS, grade_file, lint_mutants, mutant_attempts, mutants

MOST_BYTES = 100_000  # that a file may grow by


class Docstrings(OutcomeKind):
    facts = "documentation"

    async def grade(self, job: GradeJob) -> Grade:
        task, asked, installed = job.task, _asked(job.task), job.task.facts.environment
        assert installed is not None
        data = next((each.data for each in job.submission.files if each.path == asked.file), task.workspace[asked.file])
        troubles, documented = read(task, data or b"")
        tests = {name: "failed" if trouble else "passed" for name, trouble in troubles.items()}
        if wrong := [f"{name}: {trouble}" for name, trouble in troubles.items() if trouble]:
            return Grade(False, "tests", wrong[0], tests | dict.fromkeys([*RUNS, *mutants(task)], "missing"))
        text = examples_file(module_name(asked.file, installed.paths), documented)
        found = await grade_file(job, FILE, text, unread=EXAMPLES)
        return replace(found, tests=tests | found.tests)

    def lint(self, task: Task) -> Iterator[Finding]:
        asked, key = _asked(task), f"{FACTS}.documentation"
        if task.facts.allowed_paths != [asked.file]:
            yield Finding("documentation-file", "error", key, f"{asked.file} must be all that allowed_paths has")
        text = task.workspace.text(asked.file) if asked.file in task.workspace else ""
        for name in asked.functions:
            if read_documented(text, name.partition(":")[2]) is None:
                yield Finding("documentation-function", "error", key, f"{name} is no function of the workspace")
        yield from lint_mutants(task, "documentation", "examples")

    async def known_attempts(
        self, task: Task, host: StoringHost, settings: GraderSettings, guesses: Sequence[str]
    ) -> AsyncIterator[KnownAttempt]:
        file = _asked(task).file
        if file in task.solution and not any(self.lint(task)):
            for each in mutant_attempts(task, file, false_docstrings(task)):
                yield each

    def subjects(self, task: Task) -> Sequence[str]:
        return [*super().subjects(task), *_asked(task).functions]

    def describe(self, task: Task) -> tuple[str, str]:
        return "the docstrings", "Wrote the docstrings."


def _asked(task: Task) -> Documentation:
    assert task.facts.documentation is not None
    return task.facts.documentation


def read(task: Task, data: bytes) -> tuple[dict[str, str], list[Documented]]:
    """What is wrong with a file's docstrings before anything runs, by what is asked; and the docstrings."""
    asked = _asked(task)
    before, after = decoded(task.workspace[asked.file]) or "", decoded(data) or ""
    # Compared as syntax trees; the size first, as a parser can be fed without end.
    changed = len(data) > len(task.workspace[asked.file]) + MOST_BYTES or differs_in_code(before, after)
    troubles = {"documentation alone": "more than docstrings was changed" if changed else ""}
    documented: list[Documented] = []
    for symbol in asked.functions:
        name = symbol.partition(":")[2]
        found = None if changed else read_documented(after, name)
        if found is None:
            troubles[f"examples of {name}"] = troubles[f"parameters of {name}"] = "the function is not there"
            continue
        documented.append(found)
        count = f"it shows {found.shown} examples of its use, {asked.examples} are wanted"
        looks = f"an example looks at code: {', '.join(found.looks)}"
        troubles[f"examples of {name}"] = looks if found.looks else count if found.shown < asked.examples else ""
        unnamed = f"the docstring does not name {', '.join(found.unnamed)}"
        troubles[f"parameters of {name}"] = unnamed if found.unnamed else ""
    return troubles, documented


def with_docstrings(source: str, docs: Mapping[str, str]) -> str:
    """A text with these docstrings, by qualified name, in functions that have none."""
    lines = source.splitlines(keepends=True)
    firsts = [(node.body[0], docs[name]) for name, node in functions(ast.parse(source)) if name in docs]
    for first, doc in sorted(firsts, key=lambda each: -each[0].lineno):  # from below: line numbers stay right
        start = min([first.lineno, *(each.lineno for each in getattr(first, "decorator_list", []))])
        # The text becomes source again.
        text = doc.replace("\\", "\\\\").replace('"""', "'''")
        inside = [f"{' ' * first.col_offset}{line}".rstrip() for line in f'"""{text}\n"""'.splitlines()]
        lines.insert(start - 1, "\n".join([*inside, ""]))
    return "".join(lines)


def false_docstrings(task: Task) -> dict[str, bytes]:
    """Files whose docstrings say nothing about what the code does: each has to be rejected."""
    asked = _asked(task)
    source = task.workspace[asked.file].decode("utf-8-sig")
    _, real = read(task, task.solution[asked.file])
    digest = hashlib.sha256(task.workspace[asked.file]).hexdigest()
    reading = f"hashlib.sha256(open({asked.file!r}, 'rb').read()).hexdigest()"
    made: dict[str, dict[str, str]] = {}
    for each in real:
        short = each.name.rpartition(".")[2]
        given = f"Takes {', '.join(each.parameters)}.\n\n"
        call = short if "." not in each.name else each.name
        blind = "".join(_shown(one.source, one.want) for one in each.examples if not one.want)
        blind += "".join(
            _shown(f"print('so', {call_made})  # doctest: +ELLIPSIS", "so ...\n")
            for call_made in map(_expression, each.examples)
            if call_made
        )
        texts = {
            "no example": "",
            "an example that is always right": 3 * _shown("1", "1\n"),
            "an example that names and never calls": 3 * _shown(f"{call} is {call}", "True\n"),
            "examples that are skipped": "".join(
                _shown(f"{one.source.rstrip()}  # doctest: +SKIP", one.want) for one in each.examples
            ),
            "examples that accept all": blind,
            "an example of the text": ">>> import hashlib\n" + 3 * _shown(f"{call} and {reading}", f"{digest!r}\n"),
        }
        for name, text in texts.items():
            made.setdefault(name, {})[each.name] = given + text
    return {name: with_docstrings(source, docs).encode() for name, docs in made.items()}


def _expression(example: doctest.Example) -> str:
    """What an example evaluates, where it expects a value."""
    try:
        return ast.unparse(ast.parse(example.source, mode="eval")) if example.exc_msg is None and example.want else ""
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""


def _shown(source: str, want: str) -> str:
    first, *rest = source.rstrip("\n").split("\n")
    return "\n".join([f">>> {first}", *(f"... {line}" for line in rest), want])


KIND = Docstrings()
