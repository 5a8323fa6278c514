"""The trivial baseline of rungs 1 and 2: a script that inverts the likeliest token, without running anything.

Mistakes are drawn evenly over operators, so the likeliest token is that whose operator has fewest other edits in what
the instruction points at. On rung 2, where no place is named, that is sought in the functions that the first failing
test mentions. A task that this solves often is no task. Knows the workspace and the names of failing tests alone.
"""

from __future__ import annotations

import ast
from collections import Counter

from etude.forge.ladder.rungs import RUNGS
from etude.forge.languages.base import Mutation
from etude.forge.languages.python.one_token import one_token_mistakes
from etude.forge.languages.python.source import Definition, Module, identifiers
from etude.tasks.format.task import Task


def inverted(task: Task) -> dict[str, bytes | None]:
    """The workspace's file with the likeliest token inverted; nothing where there is none."""
    found: list[tuple[Module, Mutation[Definition]]] = []
    for module, function in _pointed_at(task):
        found += [(module, mistake) for mistake in one_token_mistakes(module, function)]
    if not found:
        return {}
    counts = Counter(mistake.kind for _, mistake in found)
    module, likeliest = min(found, key=lambda each: counts[each[1].kind])
    return {module.path: module.edited([likeliest.edit])}


def _pointed_at(task: Task) -> list[tuple[Module, Definition]]:
    """The functions in which the mistake may be, as far as the instruction or a failing test says."""
    if RUNGS[task.facts.rung].names_place:
        path, _, name = task.facts.deleted[0].partition(":")  # as the instruction has it
        module = _module(task, path)
        return [(module, module.definitions[name])] if module is not None and name in module.definitions else []
    test = task.facts.fail_to_pass[0].partition("[")[0]
    path, *parts = test.split("::")
    source = _module(task, path)
    own = source.definitions.get(".".join(parts)) if source is not None else None
    names = set(identifiers(own.node)) if own is not None else set()
    modules = (_module(task, path) for path in task.workspace if task.allows(path))
    return [
        (module, each)
        for module in modules
        if module is not None
        for each in module.definitions.values()
        if each.short in names and not isinstance(each.node, ast.ClassDef)
    ]


def _module(task: Task, path: str) -> Module | None:
    return Module.read(path, task.workspace[path]) if path in task.workspace else None
