"""A test once more with other inputs: its expected values are left open, for the reference to fill in.

Only what stands for any input is exchanged, and for its like: a number for one between those that the task's tests have
in the same place of a call (a month stays a month), letters for letters by one table for the whole test, so that what
was equal, ordered or a beginning of something else still is. Words that the code itself names, formats, patterns and
addresses stay: they select a behaviour. Works on text, runs nothing; `steps/add_inputs.py` decides which of these tests
a task can use.
"""

from __future__ import annotations

import ast
import random
import re
import string
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Final

from etude.forge.languages.python.source import Definition, Function, Module, identifiers
from etude.tasks.grading.withheld.assertions import FUNCTIONS, Assertion, asked_by_assert, asked_by_call, raised_by
from etude.tasks.grading.withheld.parameters import row_cells, tables
from etude.tasks.grading.withheld.purity import assigned, literal, loads
from etude.tasks.grading.withheld.rewrite import SEEN
from etude.tasks.grading.withheld.sites import PINNED

NAME: Final = "with_other_inputs"  # in the names of these tests
DRAWS: Final = 6  # of other inputs for one test, or one row of its table
MOST_ROWS: Final = 4  # of a table of parameters
LONG: Final = 6  # digits in a text from which on they are no quantity: each is exchanged by itself
_VOWELS, _CONSONANTS, _DIGITS = "aeiou", "bcdfghjklmnpqrstvwxyz", "123456789"
Place = tuple[Any, ...]  # where in which call a number stands
Ranges = Mapping[Place, tuple[int, int]]
_SPECIAL: Final = re.compile(
    r"[%{}\\<>\[\]()*?^$|&=#@]|://|\d[A-Za-z]|[A-Za-z]\d"
)  # formats, patterns, addresses, units
_COMMON: Final = {
    *("true", "false", "none", "null", "yes", "no", "on", "off", "nan", "inf", "utf", "ascii", "latin", "http"),
    *("https", "json", "xml", "html", "csv", "txt", "py", "am", "pm", "utc", "gmt", "and", "or", "not", "in", "is"),
}


@dataclass(frozen=True)
class OpenTest:
    """A test function whose expected values are open."""

    path: str
    owner: str  # the class that it stands in, or nothing
    of: str  # the qualified name of the test that it was made of
    name: str
    node: Function = field(repr=False)  # each open value is a call of `_etude_seen(number, actual)`
    values: int  # how many are open
    base: str  # the name of the one with the inputs that the test has

    @property
    def is_base(self) -> bool:
        return self.name == self.base

    @property
    def id(self) -> str:
        return "::".join([self.path, *self.owner.split("."), self.name] if self.owner else [self.path, self.name])

    def closed(self, values: Sequence[Any]) -> ast.stmt:
        """The same with these values expected: a test like any other."""
        node = deepcopy(self.node)
        _Closing(values).visit(node)
        return ast.fix_missing_locations(node)


class _Closing(ast.NodeTransformer):
    def __init__(self, values: Sequence[Any]) -> None:
        self._values = values

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        match node.value:
            case ast.Call(func=ast.Name(id=name), args=[ast.Constant(value=int(number)), actual]) if name == SEEN:
                wanted = ast.parse(repr(self._values[number]), mode="eval").body
                return ast.Assert(ast.Compare(actual, [ast.Eq()], [wanted]))
        return node


def number_ranges(tests: Iterable[tuple[Module, Definition]]) -> Ranges:
    """The least and the largest number that these tests have in each place of a call."""
    found: dict[Place, tuple[int, int]] = {}
    for module, definition in tests:
        for base in _bases(module, definition):
            for place, number in _numbers(base[0]):
                low, high = found.get(place, (number, number))
                found[place] = min(low, number), max(high, number)
    return found


def open_tests(
    module: Module, definition: Definition, named: Collection[str], ranges: Ranges, rng: random.Random
) -> Iterator[OpenTest]:
    """The test as it is, for each row of its table, each followed by the same with other inputs. `named` are words of
    the code: whoever exchanges one asks for something else."""
    number = 0
    mentioned = {*named, *identifiers(module.tree)}
    for body, expected in _bases(module, definition):
        known = {ast.dump(body)}
        base = f"{definition.short}_{NAME}_{number}"
        for draw in range(DRAWS + 1):
            made = deepcopy(body)
            if draw:
                _Exchange.drawn(made, mentioned, ranges, rng, draw).visit(made)
                if ast.dump(made) in known:
                    continue
            known.add(ast.dump(made))
            made.name = f"{definition.short}_{NAME}_{number}"
            number += 1
            made = ast.fix_missing_locations(made)
            yield OpenTest(module.path, definition.owner, definition.name, made.name, made, len(expected), base)


def _bases(module: Module, definition: Definition) -> Iterator[tuple[Function, tuple[Any, ...]]]:
    """A test with its expected values open, once for each row of its table."""
    node = definition.node
    if isinstance(node, Function) and not definition.repeated:
        for base in _rows(node, _constants(module.tree)):
            opened = _opened(base)
            if opened is not None:
                yield opened


def with_tests(module: Module, nodes: Mapping[str, Sequence[ast.stmt]]) -> bytes:
    """The module with further functions, each behind the test that it was made of (its qualified name)."""
    lines = list(module.lines)
    for name in sorted(nodes, key=lambda each: -module.definitions[each].last):
        definition = module.definitions[name]
        head = module.lines[definition.first - 1]
        indent = head[: len(head) - len(head.lstrip())].decode()
        ends = "\r\n" if head.endswith(b"\r\n") else "\n"
        text = ""
        for node in nodes[name]:
            body = "".join(f"{indent}{line}{ends}" if line else ends for line in ast.unparse(node).split("\n"))
            text += (ends if indent else 2 * ends) + body
        if not lines[definition.last - 1].endswith((b"\n", b"\r")):
            text = ends + text
        lines.insert(definition.last, text.encode())
    return module.data[: len(module.data) - sum(map(len, module.lines))] + b"".join(lines)


def _constants(tree: ast.Module) -> dict[str, ast.expr]:
    """Tables at the top of the module."""
    found = {name: values for name, values in assigned(tree.body).items() if len(values) == 1}
    return {name: values[0] for name, values in found.items() if values[0] is not None}


def _rows(node: Function, constants: Mapping[str, ast.expr]) -> Iterator[Function]:
    """The function by itself; of a parametrised one, once for each of its first rows, with the row's values in it."""
    marks = [each for each in node.decorator_list if "parametrize" in ast.unparse(each)]
    if not marks:
        yield deepcopy(node)
        return
    found = list(tables(node, constants))
    if len(marks) != 1 or len(found) != 1:
        return
    call, names, rows = found[0]
    for row in rows[:MOST_ROWS]:
        values = row_cells(row, len(names))
        marked = isinstance(row, ast.Call) and row.keywords
        if values is None or marked or not all(map(literal, values)):
            continue
        made = deepcopy(node)
        made.decorator_list = [each for each in made.decorator_list if ast.unparse(each) != ast.unparse(call)]
        made.args.args = [each for each in made.args.args if each.arg not in names]
        if len(made.args.args) != len(node.args.args) - len(names) or made.args.defaults:
            continue
        _Inline(dict(zip(names, values, strict=True))).visit(made)
        yield made


class _Inline(ast.NodeTransformer):
    def __init__(self, values: Mapping[str, ast.expr]) -> None:
        self._values = values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return deepcopy(self._values[node.id]) if node.id in self._values else node


def _opened(node: Function) -> tuple[Function, tuple[Any, ...]] | None:
    """The function with its comparisons with literals open and all other assertions gone; None where that is none."""
    # What is raised, or asserted again and again, is another kind of answer.
    for each in ast.walk(node):
        context = each.context_expr if isinstance(each, ast.withitem) else each
        if isinstance(each, ast.For | ast.AsyncFor | ast.While | ast.Try | ast.Lambda | ast.ClassDef):
            return None
        if isinstance(context, ast.Call) and raised_by(context) is not None:
            return None
    bound = {name: values[0] for name, values in assigned(node.body).items() if len(values) == 1}
    spelled = {name: value for name, value in bound.items() if value is not None and literal(value)}
    expected: list[Any] = []

    def opened(body: Sequence[ast.stmt]) -> list[ast.stmt]:
        made: list[ast.stmt] = []
        for statement in body:
            asked = _asked(statement, spelled)
            if asked is None:
                if isinstance(statement, ast.With | ast.AsyncWith):
                    statement.body = opened(statement.body)
                elif any(_asserts(each) for each in ast.walk(statement)):
                    continue
                made.append(statement)
                continue
            for each in asked:
                if each.operator == "eq" and (each.expected is PINNED or _is_worth(each.expected)):
                    number = ast.Constant(len(expected))
                    made.append(ast.Expr(ast.Call(ast.Name(SEEN, ast.Load()), [number, *each.recorded], [])))
                    expected.append(each.expected)
        return made or [ast.Pass()]

    docless = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
    node.body = opened(docless)
    if not expected:
        return None
    read = set(loads(node))
    node.body = [each for each in node.body if not _is_unread(each, read, spelled)] or [ast.Pass()]
    return node, tuple(expected)


def _asked(statement: ast.stmt, spelled: Mapping[str, ast.expr]) -> list[Assertion] | None:
    """What an assertion asks, with names that stand for a literal in its place; None for any other statement."""
    if isinstance(statement, ast.Assert):
        test = statement.test
        if isinstance(test, ast.Compare):
            sides = [test.left, *test.comparators]
            # Only where one side is such a name: both are read where the value is used as an input as well.
            for number, side in enumerate(sides):
                if isinstance(side, ast.Name) and side.id in spelled and not any(map(literal, sides)):
                    sides[number] = spelled[side.id]
            test = ast.Compare(sides[0], test.ops, sides[1:])
        return asked_by_assert(test, ())
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        given = [spelled[each.id] if isinstance(each, ast.Name) and each.id in spelled else each for each in call.args]
        if sum(map(literal, given)) == 1:
            call = ast.Call(call.func, given, call.keywords)
        return asked_by_call(call, ())
    return None


def _asserts(node: ast.AST) -> bool:
    function = node.func if isinstance(node, ast.Call) else None
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return isinstance(node, ast.Assert) or name.startswith("assert") or name in FUNCTIONS


def _is_unread(statement: ast.stmt, read: set[str], spelled: Mapping[str, ast.expr]) -> bool:
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    return isinstance(target, ast.Name) and target.id in spelled and target.id not in read


def _is_worth(value: Any) -> bool:
    """Something that more than a guess is needed for."""
    return value is not None and not isinstance(value, bool) and value not in ("", (), [], {}, b"")


class _Exchange(ast.NodeTransformer):
    """Exchanges literals by one table for the whole function."""

    def __init__(self, stay: Collection[str]) -> None:
        self._stay = stay
        self._numbers: Mapping[int, int] = {}
        self._letters: dict[int, int] = {}
        self._digits: dict[int, int] = {}
        self._orders: random.Random | None = None

    @classmethod
    def drawn(cls, node: Function, stay: Collection[str], ranges: Ranges, rng: random.Random, draw: int) -> _Exchange:
        """Every third draw leaves words as they are, every third numbers; every other one has lists in other orders."""
        made = cls(stay)
        if draw % 3 != 1:
            made._numbers, made._digits = _other_numbers(list(_numbers(node)), ranges, rng), _table(_DIGITS, rng)
        if draw % 3 != 2:
            made._letters = _table(_VOWELS, rng) | _table(_CONSONANTS, rng)
        made._orders = rng if draw % 2 else None
        return made

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        if type(node.value) is int:
            return ast.Constant(self._numbers.get(node.value, node.value))
        if isinstance(node.value, str) and not _SPECIAL.search(node.value):
            return ast.Constant(re.sub(r"[A-Za-z]+|\d+", self._word, node.value))
        return node

    def _word(self, found: re.Match[str]) -> str:
        word = found[0]
        if word.isdigit():
            if len(word) >= LONG:
                return word.translate(self._digits)
            return str(self._numbers.get(int(word), int(word))).zfill(len(word))
        # Short words in capitals are codes: a currency, a country, a unit.
        if word in self._stay or word.lower() in _COMMON or (word.isupper() and 1 < len(word) < 5):
            return word
        return word.translate(self._letters)

    def visit_List(self, node: ast.List) -> ast.expr:
        self.generic_visit(node)
        # A list that is in order may have to be.
        if self._orders is not None and literal(node) and not _is_sorted(ast.literal_eval(node)):
            node.elts = self._orders.sample(node.elts, len(node.elts))
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        match node.value:
            case ast.Call(func=ast.Name(id=name), args=[number, actual]) as call if name == SEEN:
                call.args = [number, self.visit(actual)]
                return node
        return self._visited(node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        # A place in what came back is no input.
        node.value = self.visit(node.value)
        if not isinstance(node.slice, ast.Constant | ast.Slice | ast.UnaryOp) or _is_text(node.slice):
            node.slice = self.visit(node.slice)
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.expr:
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.stmt:
        return self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.stmt:
        return self._function(node)

    def _function(self, node: Function) -> Function:
        """Its body alone: decorators and defaults belong to the framework."""
        node.body = [self.visit(each) for each in node.body]
        return node

    def _visited(self, node: ast.stmt) -> ast.stmt:
        self.generic_visit(node)
        return node


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _is_sorted(values: list[Any]) -> bool:
    try:
        return len(values) < 2 or sorted(values) in (values, values[::-1])
    except TypeError:
        return False


def _numbers(node: Function) -> Iterator[tuple[Place, int]]:
    """Each number of a test with its place: the call, the argument, the way into it. Digits in a text count too."""

    def walk(part: ast.AST, place: Place) -> Iterator[tuple[Place, int]]:
        match part:
            case ast.Constant(value=int(number)) if not isinstance(number, bool):
                yield place, number
            case ast.Constant(value=str(text)) if not _SPECIAL.search(text):
                for at, digits in enumerate(re.findall(r"\d+", text)):
                    if len(digits) < LONG:
                        yield (*place, "text", at, len(digits)), int(digits)
            case ast.Call():
                name = part.func.attr if isinstance(part.func, ast.Attribute) else getattr(part.func, "id", "")
                given = part.args[1:] if name == SEEN else part.args
                for at, each in enumerate(given):
                    yield from walk(each, place if name == SEEN else (name, at))
                for keyword in part.keywords:
                    yield from walk(keyword.value, (name, keyword.arg))
                yield from walk(part.func, place)
            case ast.List() | ast.Set():
                for each in part.elts:
                    yield from walk(each, (*place, "each"))
            case ast.Tuple():
                # Of numbers alone it is a row of them, like a list; else each place means something of its own.
                alike = all(isinstance(each, ast.Constant) and type(each.value) is int for each in part.elts)
                for at, each in enumerate(part.elts):
                    yield from walk(each, (*place, "each" if alike else at))
            case ast.Dict():
                for key, value in zip(part.keys, part.values, strict=True):
                    if key is not None:
                        yield from walk(key, (*place, "key"))
                    yield from walk(value, (*place, ast.unparse(key) if key is not None and _is_text(key) else "value"))
            case ast.Assign():
                yield from walk(part.value, ("=", ast.unparse(part.targets[0])))
            case ast.Subscript():
                yield from walk(part.value, place)
            case _:
                for child in ast.iter_child_nodes(part):
                    yield from walk(child, place)

    for statement in node.body:
        yield from walk(statement, ())


def _other_numbers(found: Sequence[tuple[Place, int]], ranges: Ranges, rng: random.Random) -> dict[int, int]:
    """For each number another within what tests have in its places, or a quarter less, with as many digits, and in the
    same order. 0, 1, 10 and 100 stay."""
    bounds: dict[int, tuple[int, int]] = {}
    for place, number in found:
        low, high = ranges.get(place, (number, number))
        if low == high:
            low = number - abs(number) // 4
        before = bounds.get(number, (low, high))
        bounds[number] = max(low, before[0]), min(high, before[1])
    for _ in range(40):
        made = {number: _other_number(number, *bounds[number], rng) for number in sorted(bounds)}
        order = list(made.values())
        if order == sorted(set(order)):
            return made
    return {}


def _other_number(number: int, low: int, high: int, rng: random.Random) -> int:
    if str(abs(number)).rstrip("0") in ("", "1"):
        return number
    least = max(2, 10 ** (len(str(abs(number))) - 1))
    most = 10 ** len(str(abs(number))) - 1
    low, high = (max(low, least), min(high, most)) if number > 0 else (max(low, -most), min(high, -least))
    return rng.randint(low, high) if low <= high else number


def _table(letters: str, rng: random.Random) -> dict[int, int]:
    """Each for another of them, small and large alike."""
    other = rng.sample(letters, len(letters))
    same = str.maketrans(letters, "".join(other))
    return same | str.maketrans(letters.upper(), "".join(other).upper()) if letters[0] in string.ascii_letters else same
