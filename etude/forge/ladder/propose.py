"""Candidates of the ladder: mistakes of one token drawn evenly over operators and functions, and short bodies.

A round takes one mistake of each operator, each from the function that has given fewest so far; so no operator and no
function fills the set. Follows from repository and seed alone; runs nothing.
"""

from __future__ import annotations

import ast
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from etude.forge.ladder.rungs import Rung, is_short, package_bits, search_bits, text_bits
from etude.forge.languages.base import Mutation
from etude.forge.languages.python.one_token import OPERATORS, one_token_mistakes
from etude.forge.languages.python.repository import PythonRepository
from etude.forge.languages.python.source import Definition, Module
from etude.forge.steps.candidate import Candidate, RemovedCode
from etude.forge.steps.killed_mutants import combined

LEAST_TESTS: Final = 2  # that notice, in as many test functions: one is shown and one is held out
MOST_OF_FUNCTION: Final = 6  # candidates of a rung that one function gives
WIDEST: Final = 0.4  # share of the tests that may reach a function: what nearly all rely on is no short search


@dataclass(frozen=True)
class Step(Candidate):
    """A candidate of the ladder, with what its instruction has to know."""

    rung: int = 0
    bits: float = 0.0
    first: int = 0  # lines of the function as the agent finds it
    last: int = 0

    @property
    def difficulty(self) -> float:
        return self.bits / 3


def steps(repository: PythonRepository, rung: Rung, rng: random.Random) -> Iterator[Step]:
    """Everything that could be tried on a rung."""
    return _bugs(repository, rung, rng) if rung.origin == "bug" else _bodies(repository, rung, rng)


def fit_functions(repository: PythonRepository) -> list[Definition]:
    """Short functions that some tests reach, none of them needed to collect tests."""
    most = max(LEAST_TESTS, WIDEST * len(repository.green))
    found = []
    for name, tests in sorted(repository.reach.items()):
        function = repository.definitions.get(name)
        if function is None or isinstance(function.node, ast.ClassDef) or name in repository.early:
            continue
        if not function.deletable or not LEAST_TESTS <= tests.bit_count() <= most:
            continue
        places = {repository.place(test) for test in repository.named(tests)}
        if len(places) >= LEAST_TESTS and is_short(repository.modules[function.path], function):
            found.append(function)
    return found


def _bugs(repository: PythonRepository, rung: Rung, rng: random.Random) -> Iterator[Step]:
    pools: dict[str, dict[str, list[Mutation[Definition]]]] = defaultdict(dict)  # by operator, then by function
    for function in fit_functions(repository):
        of_kind: dict[str, list[Mutation[Definition]]] = defaultdict(list)
        for mistake in one_token_mistakes(repository.modules[function.path], function):
            of_kind[mistake.kind].append(mistake)
        for kind, found in of_kind.items():
            rng.shuffle(found)
            pools[kind][function.id] = found
    everywhere = package_bits(repository)
    taken: Counter[str] = Counter()
    while any(pools.values()):
        for kind in OPERATORS:
            pool = pools.get(kind, {})
            for name in [name for name in pool if not pool[name] or taken[name] >= MOST_OF_FUNCTION]:
                del pool[name]
            if not pool:
                continue
            name = min(rng.sample(list(pool), len(pool)), key=lambda each: taken[each])
            taken[name] += 1
            made = _bug(repository, rung, pool[name].pop(), everywhere)
            if made is not None:
                yield made


def _bug(repository: PythonRepository, rung: Rung, mistake: Mutation[Definition], everywhere: float) -> Step | None:
    function = mistake.definition
    changes = combined(repository, [mistake])
    data = changes[function.path] if changes is not None else None
    broken = _found(function, data)
    if changes is None or broken is None:
        return None
    module, there = broken
    bits = search_bits(module, there) if rung.names_place else everywhere
    return _step(repository, rung, function, changes, mistake.kind, bits, there)


def _bodies(repository: PythonRepository, rung: Rung, rng: random.Random) -> Iterator[Step]:
    least, most = rung.lines
    functions = [each for each in fit_functions(repository) if least <= each.size <= most]
    rng.shuffle(functions)
    for function in functions:
        deletion = repository.delete([function], "bodies")
        changes: dict[str, bytes | None] = dict(deletion.changes)
        broken = _found(function, changes.get(function.path))
        if set(changes) != {function.path} or broken is None:
            continue
        missing = "\n".join(ast.unparse(each) for each in function.code)
        bits = text_bits(broken[0], missing)
        yield _step(repository, rung, function, changes, "bodies", bits, broken[1])


def _step(
    repository: PythonRepository,
    rung: Rung,
    function: Definition,
    changes: dict[str, bytes | None],
    how: str,
    bits: float,
    there: Definition,
) -> Step:
    return Step(
        rung.origin,
        how,
        changes,
        (RemovedCode.of(repository, function),),
        frozenset(repository.named(repository.reach[function.id])),
        lines=max(1, function.size if rung.lines[0] else 1),
        least_tests=LEAST_TESTS,
        least_places=LEAST_TESTS,
        rung=rung.number,
        bits=round(bits, 2),
        first=there.first,
        last=there.last,
    )


def _found(function: Definition, data: bytes | None) -> tuple[Module, Definition] | None:
    """The function as the agent finds it."""
    module = Module.read(function.path, data) if data is not None else None
    there = module.definitions.get(function.name) if module is not None else None
    return (module, there) if module is not None and there is not None else None
