"""Tasks that give something another name or place: a change of code, of which the repository's tests are part."""

from __future__ import annotations

from collections.abc import Iterator

from etude.tasks.format.config import Refactor
from etude.tasks.format.task import Task
from etude.tasks.kinds.base import Finding, OutcomeKind
from etude.tasks.kinds.code_change import lint_tests


class Refactoring(OutcomeKind):
    facts = "refactor"

    def lint(self, task: Task) -> Iterator[Finding]:
        return lint_tests(task)

    def submitted_tests(self, task: Task) -> set[str]:
        # The agent edits them along; what lies in tests/ is laid over them.
        return {path for path in task.tests if path.endswith(".py")}

    def moved_files(self, task: Task) -> dict[str, str]:
        asked = _asked(task)
        return {asked.new: asked.old} if asked.kind == "move" else {}

    def describe(self, task: Task) -> tuple[str, str]:
        asked = _asked(task)
        return asked.new, f"{asked.old} is {asked.new} now."


def _asked(task: Task) -> Refactor:
    assert task.facts.refactor is not None
    return task.facts.refactor


KIND = Refactoring()
