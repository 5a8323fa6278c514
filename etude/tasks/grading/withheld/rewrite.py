"""A test module without its answers: each assertion becomes a call that records what the tested code gave.

Expected values leave the source: literals, exceptions with their messages, locals and constants that hold nothing else,
columns of parameter tables, arguments of helpers. Comments and docstrings go with them. The sites say what the grader
compares. The same source gives the same sites each time, so that a task can keep values by their numbers. Reads and
writes text, runs nothing.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from etude.tasks.format.function_bodies import functions
from etude.tasks.grading.withheld.assertions import (
    Assertion,
    asked_by_assert,
    asked_by_call,
    called_in,
    raised_by,
)
from etude.tasks.grading.withheld.parameters import (
    arguments,
    blank_arguments,
    blank_columns,
    called_name,
    parameters,
    sinks,
    table_values,
)
from etude.tasks.grading.withheld.purity import Function, assigned, loads, pure
from etude.tasks.grading.withheld.sites import Site
from etude.tasks.grading.withheld.spell_out import spell_out

SEEN: Final = "_etude_seen"  # what a rewritten test calls (`sandbox_side/recorder.py`)
RAISES: Final = "_etude_raises"


@dataclass(frozen=True)
class Rewritten:
    """A module without its answers."""

    text: str
    sites: tuple[Site, ...]
    units: Mapping[str, str] = field(default_factory=dict)  # test or helper -> its text without answers
    helpers: tuple[str, ...] = ()  # those that are no tests, and assert for several
    begun: tuple[str, ...] = ()  # of JavaScript: tests by the number with which they begin


@dataclass
class _Unit:
    """A function or method at the top of a module or class, with all that is nested in it."""

    name: str
    node: Function
    pure_names: set[str] = field(default_factory=set)
    tables: dict[str, str] = field(default_factory=dict)  # parameter that is gone -> the constant that was its table
    sinks: set[str] = field(default_factory=set)  # parameters of its helpers that are only compared


@lru_cache(maxsize=256)
def rewrite(
    source: str,
    demoted: frozenset[int] = frozenset(),
    left: frozenset[str] = frozenset(),
    cut: frozenset[str] = frozenset(),
) -> Rewritten:
    """The module without its answers. A site that is `demoted` records only whether its assertion holds; a function
    that is `left` stays as it is, and of one that is `cut` only its name is left."""
    tree = ast.parse(source)
    units = [_Unit(name, node) for name, node in functions(tree) if name not in left and not _is_fixture(node)]
    constants = _constants(tree)
    for unit in units:
        spell_out(unit.node, constants)
    calls = _Helpers(tree)
    _find_pure_names(units, calls, constants)
    recording = _Recording(demoted, Counter(loads(tree)))
    for unit in units:
        recording.enter(unit)
    _take_out(units, recording, calls)
    sites = tuple(recording.site(number, tree) for number in range(len(recording.asked)))
    for unit in units:
        _drop_docstring(unit.node)
    for name, node in functions(tree):
        if name in cut:
            node.body, node.decorator_list = [ast.Pass()], []
    ast.fix_missing_locations(tree)
    texts = {unit.name: ast.unparse(unit.node) for unit in units}
    helpers = tuple(name for name in texts if not name.rpartition(".")[2].startswith("test"))
    return Rewritten(ast.unparse(tree) + "\n", sites, texts, helpers)


def _is_fixture(node: Function) -> bool:
    """Fixtures run when the framework pleases: what they record would belong to no test."""
    return any("fixture" in ast.unparse(each) for each in node.decorator_list)


def _constants(tree: ast.Module) -> dict[str, ast.expr]:
    """Names that are bound once, at the top of the module, to a value that is spelled there."""
    bound = Counter(
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    )
    found: dict[str, ast.expr] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if bound[name] == 1 and (pure(node.value, found) or isinstance(node.value, ast.List | ast.Tuple)):
                found[name] = node.value
    return found


def _find_pure_names(units: list[_Unit], calls: _Helpers, constants: Mapping[str, ast.expr]) -> None:
    """Names that hold nothing but an expected value: constants, and locals and parameters that only assertions read, or
    that only go to such parameters."""
    steady = {name for name, value in constants.items() if pure(value, constants)}
    bound = {unit.name: assigned(unit.node.body) for unit in units}
    shared = {helper.name: (unit, helper) for unit, helper, scope in calls.of(units) if scope is calls.tree}
    filled: dict[tuple[str, str], list[tuple[set[str], ast.expr]]] = {}  # unit, parameter -> names and value
    given: dict[str, list[tuple[str, str, ast.expr]]] = {}  # unit -> unit, parameter and value of its calls
    for unit in units:
        nested = {helper.name: (unit, helper) for _, helper, scope in calls.of([unit]) if scope is unit.node}
        helpers = {**shared, **nested}
        for name, value in table_values(unit.node, constants):
            filled.setdefault((unit.name, name), []).append((steady, value))
        for call in (node for node in ast.walk(unit.node) if isinstance(node, ast.Call)):
            home, helper = helpers.get(called_name(call.func), (None, None))
            if home is not None and helper is not None:
                for name, value in arguments(call, helper):
                    filled.setdefault((home.name, name), []).append((unit.pure_names, value))
                    given.setdefault(unit.name, []).append((home.name, name, value))
    by_name = {unit.name: unit for unit in units}
    for unit, helper, _ in calls.of(units):
        unit.sinks |= sinks(helper)
    for unit in units:
        unit.pure_names |= {name for name, values in bound[unit.name].items() if all(v is not None for v in values)}
        unit.pure_names |= {name for (home, name) in filled if home == unit.name and name not in bound[unit.name]}
    reads = {unit.name: Counter(loads(unit.node)) for unit in units}
    asserted = {unit.name: Counter(n for node in _assertions(unit.node) for n in loads(node)) for unit in units}
    changed = True
    while changed:
        changed = False
        for unit in units:
            names = unit.pure_names
            values = [value for name in names for value in bound[unit.name].get(name, []) if value is not None]
            values += [
                value
                for home, name, value in given.get(unit.name, [])
                if name in by_name[home].pure_names or name in by_name[home].sinks
            ]
            # Reads in what only becomes part of an expected value go where that goes.
            passed_on = Counter(name for value in values for name in loads(value))
            kept = {
                name
                for name in names
                if reads[unit.name][name] <= asserted[unit.name][name] + passed_on[name]
                and all(value is not None and pure(value, names | steady) for value in bound[unit.name].get(name, []))
                and all(pure(value, theirs | steady) for theirs, value in filled.get((unit.name, name), []))
            }
            if kept != names:
                # In place: the calls of helpers hold the same set.
                names.intersection_update(kept)
                changed = True
    for unit in units:
        unit.pure_names |= steady - bound[unit.name].keys()


def _assertions(node: ast.AST) -> Iterator[ast.AST]:
    for each in ast.walk(node):
        asserts = isinstance(each, ast.Call) and ast.unparse(each.func).startswith("self.assert")
        if asserts or isinstance(each, ast.Assert):
            yield each


class _Recording(ast.NodeTransformer):
    """Puts calls that record in the place of assertions."""

    def __init__(self, demoted: Collection[int], uses: Counter[str]) -> None:
        self.demoted = demoted
        self.uses = uses  # how often each name is read in the module, with all of its answers
        self.asked: list[tuple[_Unit, Assertion]] = []
        self.taken: dict[int, set[str]] = {}  # site -> names of what was taken out there
        self.unit: _Unit

    def enter(self, unit: _Unit) -> None:
        self.unit = unit
        unit.node.body = self._statements(unit.node.body)

    def _statements(self, body: list[ast.stmt]) -> list[ast.stmt]:
        made: list[ast.stmt] = []
        for statement in body:
            new = self.visit(statement)
            made += new if isinstance(new, list) else [new]
        return made or [ast.Pass()]

    def visit_Assert(self, node: ast.Assert) -> list[ast.stmt]:
        return [self._seen(each) for each in asked_by_assert(node.test, self.unit.pure_names)]

    def visit_Expr(self, node: ast.Expr) -> ast.stmt | list[ast.stmt]:
        if isinstance(node.value, ast.Call):
            found = asked_by_call(node.value, self.unit.pure_names)
            if found is not None:
                return [self._seen(each) for each in found]
            if (inside := self._called(node.value, None)) is not None:
                return inside
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.stmt:
        if isinstance(node.value, ast.Call) and len(node.targets) == 1:
            return self._called(node.value, node.targets[0]) or node
        return node

    def _called(self, call: ast.Call, target: ast.expr | None) -> ast.stmt | None:
        """`raises(E, function, ...)` as the statement with a body that it stands for."""
        waits = raised_by(call)
        inner, meant = called_in(call) if waits is not None else (None, False)
        if waits is None or inner is None or not meant:
            return None
        item = ast.withitem(self._raises(waits), target)
        return ast.With([item], [ast.Expr(inner)])

    def visit_With(self, node: ast.With) -> ast.stmt:
        return self._with(node)

    def visit_AsyncWith(self, node: ast.AsyncWith) -> ast.stmt:
        return self._with(node)

    def _with(self, node: ast.With | ast.AsyncWith) -> ast.stmt:
        for item in node.items:
            waits = raised_by(item.context_expr)
            # An assertion that must fail is a test of assertions: it stays, and so does what is in it.
            if waits is not None and "AssertionError" in waits.options[0][1]:
                return node
            if waits is not None:
                item.context_expr = self._raises(waits)
        node.body = self._statements(node.body)
        return node

    def _seen(self, asked: Assertion) -> ast.stmt:
        number = len(self.asked)
        if number in self.demoted and asked.whole is not None:
            asked = Assertion("true", (asked.whole,), asked.whole, expected=True)
        self._keep(asked)
        recorded = list(asked.recorded)
        if asked.operator in ("true", "false"):
            recorded = [ast.Call(ast.Name("bool", ast.Load()), recorded, [])]
        return ast.Expr(ast.Call(ast.Name(SEEN, ast.Load()), [ast.Constant(number), *recorded], []))

    def _raises(self, asked: Assertion) -> ast.expr:
        number = len(self.asked)
        self._keep(asked)
        return ast.Call(ast.Name(RAISES, ast.Load()), [ast.Constant(number)], [])

    def _keep(self, asked: Assertion) -> None:
        self.taken[len(self.asked)] = set(loads(asked.wanted)) if asked.wanted is not None else set()
        self.asked.append((self.unit, asked))

    def site(self, number: int, tree: ast.Module) -> Site:
        unit, asked = self.asked[number]
        # What was taken out is still there where a name of it is still bound or read.
        left = {each.id for part in (unit.node, *tree.body) for each in _names(part)} if self.taken[number] else set()
        exposed = asked.operator != "raises" and bool(self.taken[number] & left & unit.pure_names)
        # Of a table that other tests have too, what is taken out here is an input there.
        exposed = exposed or any(self.uses[unit.tables.get(name, "")] > 1 for name in self.taken[number])
        return Site(number, unit.name, asked.operator, asked.expected, asked.inner, asked.options, exposed)


def _names(part: ast.AST) -> Iterator[ast.Name]:
    """Names in a function, or that a statement at the top of the module binds."""
    if isinstance(part, Function):
        yield from (each for each in ast.walk(part) if isinstance(each, ast.Name))
    elif isinstance(part, ast.Assign):
        yield from (each for each in part.targets if isinstance(each, ast.Name))


def _take_out(units: list[_Unit], recording: _Recording, calls: _Helpers) -> None:
    """Everything that only expected values needed: locals, columns, arguments, constants."""
    tree = calls.tree
    constants = _constants(tree)
    changed = True
    while changed:
        changed = False
        for unit in units:
            changed |= _drop_locals(unit)
            for _, helper, scope in calls.of([unit]):
                names = unit.pure_names if scope is unit.node else constants.keys()
                blank = blank_arguments(helper, scope, unit.sinks & set(parameters(helper)), names) & unit.pure_names
                changed |= bool(blank)
                unit.pure_names -= blank
            columns = blank_columns(unit.node, constants)
            unit.tables |= {name: table for name, table in columns.items() if table}
            blank = columns.keys() & unit.pure_names
            changed |= bool(blank)
            unit.pure_names -= blank
        read = set(loads(tree))
        gone = {name for names in recording.taken.values() for name in names}
        gone |= {table for unit in units for table in unit.tables.values()}
        for node in list(tree.body):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id
                if name in constants and name not in read and name in gone:
                    tree.body.remove(node)
                    changed = True


class _Helpers:
    """Functions that tests call, and where those calls are: in the test that one is nested in, or in the module."""

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        # Once for the module: nothing here takes a function away, and a module may have hundreds of tests.
        self._defined = Counter(node.name for node in ast.walk(tree) if isinstance(node, Function))

    def of(self, units: list[_Unit]) -> Iterator[tuple[_Unit, Function, ast.AST]]:
        for unit in units:
            for node in ast.walk(unit.node):
                if isinstance(node, Function) and not node.name.startswith("test"):
                    nested = node is not unit.node
                    if nested or self._defined[node.name] == 1:
                        yield unit, node, unit.node if nested else self.tree


def _drop_locals(unit: _Unit) -> bool:
    read = set(loads(unit.node))
    dead = {name for name in unit.pure_names if name not in read}

    class Drop(ast.NodeTransformer):
        dropped = False

        def visit_Assign(self, node: ast.Assign) -> ast.stmt:
            target = node.targets[0]
            if len(node.targets) == 1 and isinstance(target, ast.Name) and target.id in dead:
                self.dropped = True
                return ast.Pass()
            return node

        def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
            if isinstance(node.target, ast.Name) and node.target.id in dead and node.value is not None:
                self.dropped = True
                return ast.Pass()
            return node

    drop = Drop()
    unit.node.body = [drop.visit(statement) for statement in unit.node.body]
    return drop.dropped


def _drop_docstring(node: Function) -> None:
    for each in ast.walk(node):
        if isinstance(each, Function) and ast.get_docstring(each, clean=False) is not None:
            each.body = each.body[1:] or [ast.Pass()]
