"""All kinds of outcome, and which one a task has. A new kind is a file with its class, and a line here."""

from __future__ import annotations

from etude.tasks.format.task import Task
from etude.tasks.kinds.answer import WrittenAnswer
from etude.tasks.kinds.base import OutcomeKind
from etude.tasks.kinds.code_change import CodeChange
from etude.tasks.kinds.docstrings import Docstrings
from etude.tasks.kinds.foreign_script import ForeignScript
from etude.tasks.kinds.packaging.kind import Packaging
from etude.tasks.kinds.refactoring import Refactoring
from etude.tasks.kinds.test_writing import TestWriting

# The first that owns a task is its kind. A code change owns all.
KINDS: list[OutcomeKind] = [
    WrittenAnswer(),
    TestWriting(),
    Docstrings(),
    ForeignScript(),
    Refactoring(),
    Packaging(),
    CodeChange(),
]


def kind_of(task: Task) -> OutcomeKind:
    return next(kind for kind in KINDS if kind.owns(task))
