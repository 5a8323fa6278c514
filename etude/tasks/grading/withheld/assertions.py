"""From an assertion to what is recorded there and what is expected: plain `assert`, unittest's methods, `eq_`, raises.

Says for each which expression the test process evaluates, and takes the other one out. Where no side can be told to be
the expected one, both are recorded. Reads syntax, runs nothing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

from etude.tasks.grading.withheld.purity import literal, pure
from etude.tasks.grading.withheld.sites import MIRRORED, OPPOSITE, PINNED, Operator

_OPERATORS: Final[dict[type[ast.cmpop], Operator]] = {
    **{ast.Eq: "eq", ast.NotEq: "ne", ast.Is: "is", ast.IsNot: "is_not", ast.Lt: "lt", ast.LtE: "le"},
    **{ast.Gt: "gt", ast.GtE: "ge", ast.In: "in", ast.NotIn: "not_in"},
}
_NODES: Final = {name: kind for kind, name in _OPERATORS.items()}
_METHODS: Final[dict[str, Operator]] = {
    **dict.fromkeys(("assertEqual", "assertEquals", "assertListEqual", "assertTupleEqual", "assertSetEqual"), "eq"),
    **dict.fromkeys(("assertDictEqual", "assertMultiLineEqual", "assertSequenceEqual"), "eq"),
    **{"assertNotEqual": "ne", "assertIs": "is", "assertIsNot": "is_not", "assertIn": "in", "assertNotIn": "not_in"},
    **{"assertLess": "lt", "assertLessEqual": "le", "assertGreater": "gt", "assertGreaterEqual": "ge"},
}
# What nose, SQLAlchemy's tests and others call the same. One that means something else by its name (numpy's compares
# arrays) is not true of what the reference gave, and the test stays as it is.
FUNCTIONS: Final[dict[str, Operator]] = {
    **{"eq_": "eq", "ne_": "ne", "is_": "is", "is_not_": "is_not", "in_": "in", "not_in_": "not_in"},
    **{"assert_equal": "eq", "assert_equals": "eq", "assert_not_equal": "ne"},
}
RAISING: Final = ("raises", "assertRaises", "assertRaisesRegex", "assertRaisesRegexp")


@dataclass(frozen=True)
class Assertion:
    """What one assertion asks."""

    operator: Operator
    recorded: tuple[ast.expr, ...]  # what the test process evaluates and records
    whole: ast.expr | None = None  # the assertion as one expression; None where it is none
    wanted: ast.expr | None = None  # the expression that goes, where one does
    expected: Any = PINNED
    inner: Operator = "eq"
    options: tuple[tuple[str, Any], ...] = ()


def asked_by_assert(test: ast.expr, names: Collection[str]) -> list[Assertion]:
    """The parts of what `assert` asks, which hold together or not at all."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return [part for value in test.values for part in asked_by_assert(value, names)]
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        found = asked_by_assert(test.operand, names)
        if len(found) == 1 and found[0].operator in OPPOSITE and found[0].expected is not PINNED:
            turned = OPPOSITE[found[0].operator]
            return [Assertion(turned, found[0].recorded, test, found[0].wanted, found[0].expected)]
        return [Assertion("false", (test.operand,), test.operand, expected=False)]
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return [_compared(test.left, _OPERATORS[type(test.ops[0])], test.comparators[0], names)]
    if isinstance(test, ast.Call) and isinstance(test.func, ast.Attribute) and len(test.args) == 1:
        beginning: dict[str, Operator] = {"startswith": "starts", "endswith": "ends"}
        if test.func.attr in beginning and literal(test.args[0]) and not test.keywords:
            value = ast.literal_eval(test.args[0])
            return [Assertion(beginning[test.func.attr], (test.func.value,), test, test.args[0], value)]
    return [Assertion("true", (test,), test, expected=True)]


def asked_by_call(call: ast.Call, names: Collection[str]) -> list[Assertion] | None:
    """The same for a method of unittest's or a function; None where it is none, or one that stays as it is."""
    function, given = call.func, call.args
    if any(isinstance(each, ast.Starred) for each in given) or any(key.arg is None for key in call.keywords):
        return None
    if isinstance(function, ast.Name) and function.id in FUNCTIONS and len(given) >= 2:
        return [_compared(given[0], FUNCTIONS[function.id], given[1], names)]
    if not (
        isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == "self"
    ):
        return None
    name = function.attr
    if name in _METHODS and len(given) >= 2:
        return [_compared(given[0], _METHODS[name], given[1], names)]
    if name in ("assertTrue", "assertFalse") and given:
        return asked_by_assert(given[0] if name == "assertTrue" else ast.UnaryOp(ast.Not(), given[0]), names)
    if name in ("assertIsNone", "assertIsNotNone") and given:
        return [_compared(given[0], "is" if name == "assertIsNone" else "is_not", ast.Constant(None), names)]
    if name in ("assertIsInstance", "assertNotIsInstance") and len(given) >= 2:
        test = ast.Call(ast.Name("isinstance", ast.Load()), given[:2], [])
        return (
            [Assertion("true", (test,), test, expected=True)]
            if name == "assertIsInstance"
            else [Assertion("false", (test,), test, expected=False)]
        )
    if name == "assertAlmostEqual" and len(given) >= 2:
        return _almost(call)
    if name == "assertCountEqual" and len(given) >= 2 and (side := _literal_side(given[0], given[1])):
        return [Assertion("same_items", (side[0],), None, side[1], ast.literal_eval(side[1]))]
    if name in ("assertRegex", "assertNotRegex") and len(given) >= 2:
        return _searched(given[0], given[1], name == "assertRegex")
    return None


def _searched(text: ast.expr, pattern: ast.expr, found: bool) -> list[Assertion] | None:
    """A pattern in the test and a text of the tested code's, or a text in the test and a pattern of the code's."""
    spelled = ast.literal_eval(pattern) if literal(pattern) else None
    if isinstance(spelled, str):
        return [Assertion("regex" if found else "regex_not", (text,), None, pattern, spelled)]
    said = ast.literal_eval(text) if literal(text) else None
    if isinstance(said, str):
        return [Assertion("finds" if found else "finds_not", (pattern,), None, text, said)]
    return None


def raised_by(call: ast.expr) -> Assertion | None:
    """What `pytest.raises(...)` or `self.assertRaises(...)` waits for."""
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute | ast.Name) and call.args):
        return None
    name = call.func.attr if isinstance(call.func, ast.Attribute) else call.func.id
    if name not in RAISING:
        return None
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    pattern = call.args[1] if name.startswith("assertRaisesRegex") and len(call.args) > 1 else keywords.get("match")
    options: dict[str, Any] = {"classes": _classes(call.args[0])}
    if (text := _pattern(pattern)) is not None:
        options["match"] = text
    return Assertion("raises", (), None, call.args[0], options=tuple(options.items()))


def called_in(call: ast.Call) -> tuple[ast.Call | None, bool]:
    """For `raises(E, function, *arguments)`: the call that it makes; and whether that form is meant."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    at = 2 if name.startswith("assertRaisesRegex") else 1
    if len(call.args) <= at:
        return None, False
    kept = [keyword for keyword in call.keywords if keyword.arg not in ("match", "msg")]
    return ast.Call(call.args[at], call.args[at + 1 :], kept), True


def _compared(left: ast.expr, operator: Operator, right: ast.expr, names: Collection[str]) -> Assertion:
    whole = ast.Compare(left, [_NODES[operator]()], [right])
    if operator in ("in", "not_in"):
        # Of a literal on either side: `x in [1, 2]`, or `"word" in text`.
        if literal(right):
            return Assertion(operator, (left,), whole, right, ast.literal_eval(right))
        if literal(left):
            has: Operator = "has" if operator == "in" else "has_not"
            return Assertion(has, (right,), whole, left, ast.literal_eval(left))
        return Assertion("true", (whole,), whole, expected=True)
    sides = ((right, left, operator), (left, right, MIRRORED.get(operator, operator)))
    for wanted, actual, turned in sides:
        if literal(wanted):
            return Assertion(turned, (actual,), whole, wanted, ast.literal_eval(wanted))
    for wanted, actual, turned in sides:
        if turned == "eq" and (near := _approx(wanted)) is not None:
            value, options = near
            return Assertion("approx", (actual,), whole, wanted, value, options=options)
    for wanted, actual, turned in sides:
        # Equal to what the reference gave is equal to what was expected; for other operators that does not follow.
        # Where both sides build something, which one is expected cannot be told.
        plain = all(pure(each, names, classes=False) for each in (wanted, actual))
        if turned == "eq" and pure(wanted, names) and (plain or not pure(actual, names)):
            return Assertion("eq", (actual,), whole, wanted)
    if operator in ("is", "is_not"):
        return Assertion("true", (whole,), whole, expected=True)
    return Assertion("pair", (left, right), whole, inner=operator)


def _literal_side(left: ast.expr, right: ast.expr) -> tuple[ast.expr, ast.expr] | None:
    """The other side and the literal one."""
    if literal(right):
        return left, right
    return (right, left) if literal(left) else None


def _almost(call: ast.Call) -> list[Assertion] | None:
    side = _literal_side(call.args[0], call.args[1])
    options = {"places": call.args[2]} if len(call.args) > 2 else {}
    options |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg in ("places", "delta")}
    if side is None or not all(map(literal, options.values())):
        return None
    given = tuple((name, ast.literal_eval(value)) for name, value in options.items())
    return [Assertion("almost", (side[0],), None, side[1], ast.literal_eval(side[1]), options=given)]


def _approx(node: ast.expr) -> tuple[Any, tuple[tuple[str, Any], ...]] | None:
    """The value and the tolerance of `pytest.approx(value, ...)`, as far as the source spells them."""
    if not isinstance(node, ast.Call) or not node.args:
        return None
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    given = {"rel": node.args[1]} if len(node.args) > 1 else {}
    given |= {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg in ("rel", "abs")}
    if name != "approx" or not all(map(literal, given.values())):
        return None
    options = tuple((str(key), ast.literal_eval(value)) for key, value in given.items())
    return (ast.literal_eval(node.args[0]) if literal(node.args[0]) else PINNED), options


def _classes(node: ast.expr) -> tuple[str, ...]:
    """The last names of the exceptions that are waited for."""
    parts = node.elts if isinstance(node, ast.Tuple) else [node]
    return tuple(ast.unparse(part).rpartition(".")[2] for part in parts)


def _pattern(node: ast.expr | None) -> str | None:
    if node is None:
        return None
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "re.escape" and node.args and literal(node.args[0]):
        return re.escape(str(ast.literal_eval(node.args[0])))
    value = ast.literal_eval(node) if literal(node) else None
    return value if isinstance(value, str) else None
