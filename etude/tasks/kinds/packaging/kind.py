"""Tasks that restore a project's packaging: a change of its configuration, graded by tests of what is built from it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Final

from etude.tasks.format.task import Task
from etude.tasks.kinds.base import Finding, OutcomeKind
from etude.tasks.kinds.code_change import lint_tests
from etude.tasks.kinds.packaging.attacks import empty_entries

CATEGORY: Final = "DevOps"  # of the published taxonomy


class Packaging(OutcomeKind):
    order = 2  # after somebody else's tasks, which may have the same category

    def owns(self, task: Task) -> bool:
        return task.facts.category == CATEGORY

    def lint(self, task: Task) -> Iterator[Finding]:
        return lint_tests(task)

    def stub(self, task: Task, rng: random.Random) -> Mapping[str, bytes | None]:
        return empty_entries(task)


KIND = Packaging()
