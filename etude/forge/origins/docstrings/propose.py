"""Functions whose docstrings have examples, and the file without them: somebody is to write them again.

Sets of one to three functions of a file, each with examples of its own that name all of its parameters. Whether those
are right and notice mistakes is found by running (`origin`). Knows the code; runs nothing.
"""

from __future__ import annotations

import ast
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from etude.forge.languages.edits import Edit
from etude.forge.languages.python.repository import PythonRepository
from etude.forge.languages.python.source import Definition, Module
from etude.forge.steps.candidate import Candidate, RemovedCode
from etude.forge.steps.killed_mutants import LEAST
from etude.tasks.kinds.docstring_examples import Documented, read_documented

TOGETHER: Final = (1, 1, 2, 3)  # functions of a task
LEAST_EXAMPLES: Final = 2  # that each of them has
ROUNDS: Final = 2  # tasks that begin at the same function


@dataclass(frozen=True)
class UndocumentedFunctions(Candidate):
    """Functions (`pieces`) of one file that docstrings with examples are to be written for; `changes` has none."""

    mutants: tuple[Mapping[str, bytes], ...] = field(default=(), repr=False)  # files that a mistake changes, each
    removed: tuple[RemovedCode, ...] = field(default=(), repr=False)  # the docstrings that go, and their examples alone

    @property
    def difficulty(self) -> float:
        return 1.0 + 0.6 * math.log2(1 + self.lines) + 0.6 * (len(self.pieces) - 1)


def documented_functions(repository: PythonRepository, rng: random.Random) -> Iterator[UndocumentedFunctions]:
    """In an order that is drawn; no set of functions twice."""
    fit: dict[str, list[Definition]] = {}
    for each in repository.definitions.values():
        if _is_fit(repository, each):
            fit.setdefault(each.path, []).append(each)
    everywhere = [each for found in fit.values() for each in found]
    known: set[frozenset[str]] = set()
    for _ in range(ROUNDS):
        for each in rng.sample(everywhere, len(everywhere)):
            others = [other for other in fit[each.path] if other is not each]
            chosen = [each, *rng.sample(others, min(len(others), rng.choice(TOGETHER) - 1))]
            chosen += [other for other in others if other not in chosen][: _mistakes(repository, chosen) < LEAST]
            names = frozenset(one.id for one in chosen)
            if names not in known and _mistakes(repository, chosen) >= LEAST:
                known.add(names)
                yield _candidate(repository, sorted(chosen, key=lambda one: one.first))


def docstring(module: Module, each: Definition) -> Documented:
    found = read_documented(module.text, each.name)
    assert found is not None
    return found


def without_docstrings(module: Module, chosen: Sequence[Definition]) -> list[Edit]:
    """Takes their docstrings away, with the gap below each."""
    edits = []
    for each in chosen:
        first = each.node.body[0]
        edit = module.without_statement(first, alone=len(each.node.body) == 1)
        last = first.end_lineno or first.lineno
        while not edit.new and last < len(module.lines) and not module.lines[last].strip():
            edit = Edit(edit.start, edit.end + len(module.lines[last]))
            last += 1
        edits.append(edit)
    return edits


def _is_fit(repository: PythonRepository, each: Definition) -> bool:
    if (
        isinstance(each.node, ast.ClassDef)
        or not each.deletable
        or each.id in repository.early
        or ">>>" not in each.doc
    ):
        return False
    found = docstring(repository.modules[each.path], each)
    return found.shown >= LEAST_EXAMPLES and not found.looks and not found.unnamed


def _mistakes(repository: PythonRepository, chosen: Sequence[Definition]) -> int:
    return sum(len(repository.mistakes(each)) for each in chosen)


def _candidate(repository: PythonRepository, chosen: Sequence[Definition]) -> UndocumentedFunctions:
    module = repository.modules[chosen[0].path]
    pieces = tuple(RemovedCode.of(repository, each) for each in chosen)
    removed = []
    for each in chosen:
        examples = [f"{one.source}{one.want}" for one in docstring(module, each).examples]
        removed += [RemovedCode(each.path, "", each.doc), RemovedCode(each.path, "", "".join(examples))]
    changes = {module.path: module.edited(without_docstrings(module, chosen))}
    how = "docstring" if len(chosen) == 1 else "docstrings"
    lines = sum(each.size for each in chosen)
    return UndocumentedFunctions("documentation", how, changes, pieces, lines=lines, removed=tuple(removed))
