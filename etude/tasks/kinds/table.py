"""All kinds of outcome, and which one a task has. A new kind is one file here, or one folder with a module `kind`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

from etude.tasks import kinds as folder
from etude.tasks.format.task import Task
from etude.tasks.kinds.base import OutcomeKind


def all_kinds() -> list[OutcomeKind]:
    """In the order in which they are asked: the first that owns a task is its kind."""
    return sorted(_found(), key=lambda kind: kind.order)


def _found() -> Iterator[OutcomeKind]:
    """The `KIND` of every module that has one."""
    for each in pkgutil.iter_modules(folder.__path__):
        module = importlib.import_module(f"{folder.__name__}.{each.name}" + (".kind" if each.ispkg else ""))
        if isinstance(kind := getattr(module, "KIND", None), OutcomeKind):
            yield kind


KINDS = all_kinds()


def kind_of(task: Task) -> OutcomeKind:
    return next(kind for kind in KINDS if kind.owns(task))
