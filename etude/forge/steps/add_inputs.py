"""Hidden tests with other inputs, where those that there are withhold too little: they expect what the reference gives.

A test is added only if it asks for nothing new. The reference gives the same plain value twice, of the kind that the
test expected before, and takes no way through the code that the task's own tests do not take; nothing in it has to be
said that is not (`hidden_demands`); the other right solutions give the same value; and without the work it fails. The
gates then treat it like any other. Python alone.
"""

from __future__ import annotations

import ast
import json
import random
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

from etude.forge.environments.suite_run import run_suite
from etude.forge.languages.base import LocatedTest
from etude.forge.languages.python.hidden_demands import DeletedPiece, demands_of
from etude.forge.languages.python.other_inputs import OpenTest, number_ranges, open_tests, with_tests
from etude.forge.languages.python.repository import PythonRepository
from etude.forge.languages.python.source import Definition, Module, identifiers
from etude.forge.steps.code_change import CodeChange
from etude.forge.steps.context import MakeContext
from etude.forge.steps.hide_tests import ENOUGH_BITS
from etude.forge.steps.make_fair import Fair
from etude.tasks.grading.withheld.estimate import estimated_bits
from etude.tasks.grading.withheld.rewrite import SEEN
from etude.tasks.sandbox_side import wire_values

MOST_ADDED: Final = 12  # tests; training waits for each of them at each grading
MOST_OF_ONE: Final = 3  # made of the same test
LEAST_WORTH: Final = 2.0  # bits of one
MOST_TRIED: Final = 120
MOST_SECONDS: Final = 10.0  # that one run of all tried ones may take, and there are up to six of these
HASH_SEEDS: Final = (0, 1)  # the same value under both

# The lines that the reference takes, as pairs of one and the next: what a test records last.
_TRACING: Final = f"""
import sys as _etude_sys


class _EtudeLines:
    paths = {{paths!r}}

    def __init__(self, site):
        self.site, self.found, self.last = site, set(), {{{{}}}}

    def __enter__(self):
        _etude_sys.settrace(self.called)

    def __exit__(self, *error):
        _etude_sys.settrace(None)
        if error[0] is None:
            {SEEN}(self.site, sorted(self.found))

    def called(self, frame, event, given):
        number = next((at for at, path in enumerate(self.paths) if frame.f_code.co_filename.endswith(path)), None)
        if number is None:
            return None
        last = [frame.f_code.co_firstlineno]

        def line(frame, event, given):
            if event == "line":
                self.found.add((number, last[0], frame.f_lineno))
                last[0] = frame.f_lineno
            return line

        return line
"""


async def add_inputs(context: MakeContext, fair: Fair) -> CodeChange:
    """The proof with more hidden tests where their answers are worth too little, as far as there are any."""
    proof, repository = fair.proof, context.repository
    if not isinstance(repository, PythonRepository) or fair.visible is None or proof.gates is None:
        return proof
    places = {repository.place(test) for test in proof.split.held_out}
    missing = ENOUGH_BITS - repository.answer_bits(places)
    if missing <= 0 or not proof.gates.others:
        return proof
    tests = list(_proposed(context, repository, proof))
    modules = {path: repository.tests[path] for path in {each.path for each in tests}}
    recorded = await _recorded(context, proof, tests, modules)
    pieces = [
        DeletedPiece(each.id, each.name, each.source, each.signature, each.doc) for each in proof.candidate.pieces
    ]
    closed: dict[str, tuple[OpenTest, ast.stmt]] = {}
    for test, values in recorded.items():
        node = test.closed(values)
        before = repository.tests[test.path].definitions[test.of].node
        if not demands_of(node, pieces, fair.visible) - demands_of(before, pieces, fair.visible):
            closed[test.id] = test, node
    agreed = await _agreed(context, proof, closed, modules)
    chosen = list(_chosen([closed[each] for each in closed if each in agreed], modules, missing))
    if not chosen:
        return proof
    added = tuple(test.id for test, _ in chosen)
    return replace(
        proof,
        split=replace(proof.split, held_out=(*proof.split.held_out, *added)),
        gates=replace(proof.gates, green=[*proof.gates.green, *added]),
        added=added,
        test_files=_files(chosen, modules),
    )


def _proposed(context: MakeContext, repository: PythonRepository, proof: CodeChange) -> Iterator[OpenTest]:
    """Tests of the split with the inputs that they have, and hidden ones with others."""
    rng = random.Random(f"{context.request.seed}/{proof.candidate.key}/inputs")
    named = _named(repository)
    hidden = {repository.place(test) for test in proof.split.held_out}
    took = {
        repository.place(test): repository.took.get(test, 0.0) for test in (*proof.split.shown, *proof.split.held_out)
    }
    found: dict[LocatedTest, tuple[Module, Definition]] = {}
    for place in dict.fromkeys(map(repository.place, (*proof.split.shown, *proof.split.held_out))):
        module = repository.tests.get(place.path)
        definition = module.definitions.get(place.name) if module is not None else None
        # What several classes inherit has several ids.
        if module is None or definition is None or definition.owner.rpartition(".")[2] in repository.heirs:
            continue
        if place.path not in proof.candidate.changes:
            found[place] = module, definition
    ranges = number_ranges(found.values())
    count, seconds = 0, 0.0
    for place, (module, definition) in found.items():
        for test in open_tests(module, definition, named, ranges, rng):
            wanted = test.is_base or (place in hidden and count < MOST_TRIED)
            if wanted and seconds + took[place] <= MOST_SECONDS:
                count, seconds = count + (not test.is_base), seconds + took[place]
                yield test


@lru_cache(maxsize=8)
def _named(repository: PythonRepository) -> frozenset[str]:
    """Names of the project's code, and words of its texts; docstrings tell of them and are none."""
    found: set[str] = set()
    for module in repository.modules.values():
        found.update(identifiers(module.tree))
        docs = {id(each.value) for each in ast.walk(module.tree) if isinstance(each, ast.Expr)}
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
                found.update("".join(each if each.isalpha() else " " for each in node.value).split())
    return frozenset(found)


async def _recorded(
    context: MakeContext, proof: CodeChange, tests: Sequence[OpenTest], modules: Mapping[str, Module]
) -> dict[OpenTest, list[Any]]:
    """What the reference gives for other inputs, where that can be expected of anybody."""
    if all(test.is_base for test in tests):
        return {}
    paths = [f"/{path}" for path in proof.candidate.changes]
    nodes: dict[str, dict[str, list[ast.stmt]]] = defaultdict(lambda: defaultdict(list))
    for test in tests:
        nodes[test.path][test.of].append(_traced(test))
    head = _TRACING.format(paths=paths).encode()
    files = {path: with_tests(modules[path], found).rstrip() + b"\n" + head for path, found in nodes.items()}
    ids = [test.id for test in tests]
    runs = []
    for seed in HASH_SEEDS:
        host, environment, workspace = context.host, context.repository.environment, context.workspace
        timeout = 5 * context.base.seconds + 60
        options: dict[str, Any] = {"changes": files, "tests": ids, "timeout": timeout, "hash_seed": seed}
        run = await run_suite(host, environment, workspace, record=True, order=seed or None, **options)
        runs.append({test: _values(run.records.get(test.id, ""), test) for test in tests if test.id in run.passed})
    known = {way for test, found in runs[0].items() if test.is_base and found for way in found[1]}
    bases = {(test.path, test.owner, test.name): found[0] for test, found in runs[0].items() if test.is_base and found}
    seen = {repr(value) for values in bases.values() for value in values}
    given: dict[OpenTest, list[Any]] = {}
    for test, found in runs[0].items():
        base = bases.get((test.path, test.owner, test.base))
        if test.is_base or found is None or base is None or runs[1].get(test) != found:
            continue
        # A value that other tests expect as well is worth nothing more.
        new = {repr(value) for value in found[0]} - seen
        if new and known.issuperset(found[1]) and all(map(_is_alike, found[0], base)):
            seen |= new
            given[test] = found[0]
    return given


def _traced(test: OpenTest) -> ast.stmt:
    """The test with its body below a recorder of lines."""
    call = ast.Call(ast.Name("_EtudeLines", ast.Load()), [ast.Constant(test.values)], [])
    node = deepcopy(test.node)
    node.body = [ast.With([ast.withitem(call)], node.body)]
    return ast.fix_missing_locations(node)


def _values(said: str, test: OpenTest) -> tuple[list[Any], frozenset[tuple[int, ...]]] | None:
    """The values that a test recorded, and its way through the code; None where one has no plain form."""
    count = test.values
    try:
        found = {int(site): wire_values.decode(data, _refuse) for site, data in json.loads(said)}
        ways = frozenset(tuple(map(int, way)) for way in found[count])
        return [found[number] for number in range(count)], ways
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _refuse(data: list[Any]) -> Any:
    raise ValueError(f"no plain value: {data[:1]}")


def _is_alike(value: Any, before: Any) -> bool:
    """The same kind of answer: empty ones are a case of their own, and two right ways may round differently."""
    if type(value) is not type(before) or value in ("", (), [], {}, b"", set()):
        return False
    return not any(isinstance(each, float | complex) for each in _parts(value)) and len(repr(value)) < 2000


def _parts(value: Any) -> Iterator[Any]:
    yield value
    inner = [*value.keys(), *value.values()] if isinstance(value, dict) else value
    if isinstance(inner, list | tuple | set | frozenset):
        for each in inner:
            yield from _parts(each)


async def _agreed(
    context: MakeContext,
    proof: CodeChange,
    closed: Mapping[str, tuple[OpenTest, ast.stmt]],
    modules: Mapping[str, Module],
) -> set[str]:
    """Tests that every right solution passes and the workspace of the task does not."""
    assert proof.gates is not None
    if not closed:
        return set()
    files = _files(list(closed.values()), modules)
    variants = [{}, proof.candidate.changes, *proof.gates.others]
    reference, broken, *others = await context.run_variants(variants, list(closed), changes=files, until_failure=False)
    if not broken.complete:
        return set()
    agreed = reference.passed.intersection(*(run.passed for run in others))
    return agreed.intersection(closed) - broken.passed


def _chosen(
    tests: Sequence[tuple[OpenTest, ast.stmt]], modules: Mapping[str, Module], missing: float
) -> Iterator[tuple[OpenTest, ast.stmt]]:
    """In turns, one of each test, until their answers are worth what is missing."""
    by_test: dict[tuple[str, str], list[tuple[OpenTest, ast.stmt]]] = defaultdict(list)
    for test, node in tests:
        by_test[test.path, test.of].append((test, node))
    turns = [each for number in range(MOST_OF_ONE) for found in by_test.values() for each in found[number : number + 1]]
    count = 0
    for test, node in turns:
        name = f"{test.owner}.{test.name}" if test.owner else test.name
        worth = estimated_bits(_files([(test, node)], modules)[test.path].decode(), {name})
        if worth >= LEAST_WORTH and missing > 0 and count < MOST_ADDED:
            missing, count = missing - worth, count + 1
            yield test, node


def _files(tests: Collection[tuple[OpenTest, ast.stmt]], modules: Mapping[str, Module]) -> dict[str, bytes]:
    nodes: dict[str, dict[str, list[ast.stmt]]] = defaultdict(lambda: defaultdict(list))
    for test, node in tests:
        nodes[test.path][test.of].append(node)
    return {path: with_tests(modules[path], found) for path, found in nodes.items()}
