"""Tests of JavaScript mutated so that they must fail, as `test_mutations` does it for Python.

An assertion that a passing test certainly reaches (it stands in the test's own function, outside of any condition) gets
another expected value, its opposite, or something to call that throws nothing. Covers what `assert`, tape, chai's
three manners and jest's `expect` call equality, truth and throwing. Works on text alone and runs nothing.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from etude.tasks.grading.test_mutations import other_value, word
from etude.tasks.javascript.parsing import FUNCTIONS, bare, inner, quoted, string_value, text, walk
from etude.tasks.javascript.test_source import TestFile, Unit

if TYPE_CHECKING:
    from tree_sitter import Node

EQUAL: Final = frozenset(
    (
        *("equal", "equals", "isEqual", "is", "strictEqual", "strictEquals", "deepEqual", "deepStrictEqual"),
        *("deepEquals", "same", "isEquivalent", "looseEqual", "looseEquals", "deepLooseEqual", "eq"),
    )
)
EXPECTED: Final = frozenset(
    ("equal", "equals", "eql", "eqls", "eq", "be", "toBe", "toEqual", "toStrictEqual", "exactly")
)
TRUE: Final = frozenset(("ok", "true", "assert", "isTrue", "truthy"))
FALSE: Final = frozenset(("notOk", "notok", "false", "isFalse", "falsy"))
THROWS: Final = frozenset(("throws", "throw", "toThrow", "Throw", "throwError"))
QUIET: Final = frozenset(("doesNotThrow", "notThrows"))
LEAVES: Final = ("return_statement", "throw_statement", "yield_expression")
NOTHING: Final = "function () {}"


@dataclass(frozen=True)
class Mutation:
    """A piece of a text, and what to put there: another value than the literal there, or a text."""

    start: int
    end: int
    leaf: str = ""  # a literal as it stands there: what takes its place looks as likely
    instead: str = ""  # {0} and {1} are two different random words

    @property
    def adds(self) -> bool:
        return self.start == self.end


def mutations_of(file: TestFile, unit: Unit) -> tuple[Mutation, ...]:
    """What can be changed in a test, any one of which makes it fail; the last adds an assertion, where the test does
    not count them: a planned test that has one too many disturbs those after it."""
    body = unit.body.child_by_field_name("body") if unit.body is not None else None
    # The parser is given another byte for a zero byte (`javascript/parsing.py`): what it shows is not the text.
    if body is None or body.type != "statement_block" or b"\0" in file.data[body.start_byte : body.end_byte]:
        return ()
    found: list[Mutation] = []
    for statement in inner(body):
        if statement.type == "expression_statement":
            for each in inner(statement)[:1]:
                found += _of_expression(each)
        if _leaves(statement):
            break
    return tuple(found) if ".plan(" in text(body) else (*found, _added(file, unit, body))


def mutate(source: str, chosen: Sequence[Mutation], rng: random.Random) -> str:
    """The source with these changes made."""
    data = source.encode("utf-8", "surrogateescape")
    for mutation in sorted(chosen, key=lambda each: each.start, reverse=True):
        new = mutation.instead.format(word(rng), word(rng)) if mutation.instead else _other(mutation.leaf, rng)
        data = data[: mutation.start] + new.encode() + data[mutation.end :]
    return data.decode("utf-8", "surrogateescape")


# Where


def _of_expression(expression: Node) -> Iterator[Mutation]:
    call = expression
    if call.type == "await_expression":
        call = next(iter(inner(call)), call)
    callee = call.child_by_field_name("function") if call.type == "call_expression" else None
    if callee is None:
        return
    arguments = inner(call.child_by_field_name("arguments"))
    owner, name = _parts(callee)
    if owner is None:
        if name == "assert" and arguments:
            yield from _of_condition(arguments[0], holds=True)
    elif (subject := _subject(owner)) is not None:
        yield from _of_expectation(subject, text(owner), name, arguments)
    elif owner.type in ("identifier", "member_expression"):
        yield from _of_assertion(name, arguments)


def _of_assertion(name: str, arguments: list[Node]) -> Iterator[Mutation]:
    """`assert.equal(actual, expected)`, `t.ok(value)`, `t.throws(function)`."""
    if name in EQUAL and len(arguments) >= 2:
        actual, expected = arguments[:2]
        literal = next((side for side in (expected, actual) if _literals(side) is not None), None)
        yield from _another(literal if literal is not None else _silent(expected, actual))
    elif name in TRUE | FALSE and arguments:
        yield from _of_condition(arguments[0], holds=name in TRUE)
    elif name in THROWS and arguments and arguments[0].type in FUNCTIONS:
        yield _instead(arguments[0], _escaped(NOTHING))
    elif name in QUIET and arguments and arguments[0].type in FUNCTIONS:
        loud = _escaped("function () { throw new Error(") + '"{0}"' + _escaped("); }")
        yield _instead(arguments[0], loud)


def _of_condition(condition: Node, holds: bool) -> Iterator[Mutation]:
    """Of a comparison with a literal another literal, which nobody can tell from the real one; else the opposite."""
    node = bare(condition) or condition
    equal = node.type == "binary_expression" and text(node.child_by_field_name("operator")) in ("===", "==")
    sides = [node.child_by_field_name(side) for side in ("right", "left")] if equal and holds else []
    literal = next((side for side in sides if _literals(side)), None)
    if literal is not None:
        yield from _another(literal)
    else:
        yield _opposite(condition)


def _of_expectation(subject: Node, chain: str, name: str, arguments: list[Node]) -> Iterator[Mutation]:
    """`expect(actual).to.equal(expected)`, `actual.should.equal(expected)`."""
    # The opposite of an expectation with `not` would need to know what is allowed.
    if re.search(r"\.not\b", chain):
        return
    if name in EXPECTED and arguments:
        yield from _another(arguments[0])
    elif name in THROWS and subject.type in FUNCTIONS:
        yield _instead(subject, _escaped(f"({NOTHING})"))


def _parts(callee: Node) -> tuple[Node | None, str]:
    """What is asked, and for what: `t` and `equal` of `t.equal` and of `t['equal']`."""
    if callee.type == "member_expression":
        return callee.child_by_field_name("object"), text(callee.child_by_field_name("property"))
    if callee.type == "subscript_expression":
        index = callee.child_by_field_name("index")
        return callee.child_by_field_name("object"), (string_value(index) or "") if index is not None else ""
    return None, text(callee) if callee.type == "identifier" else ""


def _subject(owner: Node) -> Node | None:
    """What an expectation is about; None where a call is none."""
    node: Node | None = owner
    while node is not None and node.type == "member_expression":
        if text(node.child_by_field_name("property")) == "should":
            return bare(node.child_by_field_name("object"))
        node = node.child_by_field_name("object")
    if node is None or node.type != "call_expression" or text(node.child_by_field_name("function")) != "expect":
        return None
    return next(iter(inner(node.child_by_field_name("arguments"))), None)


def _another(expected: Node) -> Iterator[Mutation]:
    """Another value: one of its literals changed, or instead of it a word that nothing returns."""
    leaves = [Mutation(each.start_byte, each.end_byte, leaf=text(each)) for each in _literals(expected) or ()]
    yield from leaves or [_instead(expected, '"{0}"')]


def _silent(expected: Node, actual: Node) -> Node:
    """The side that calls nothing is what is expected: the tested code's answer must stay."""
    calls = ("call_expression", "new_expression")
    silent = [side for side in (expected, actual) if not any(each.type in calls for each in walk(side))]
    return silent[0] if len(silent) == 1 else expected


def _literals(node: Node | None) -> list[Node] | None:
    """The literals that a value is made of; None where it is made of anything else."""
    if node is not None and node.type == "pair":
        return _literals(node.child_by_field_name("value"))
    if node is not None and node.type in ("object", "array"):
        parts = [_literals(each) for each in inner(node)]
        return None if None in parts else [leaf for part in parts for leaf in part or ()]
    if node is None or (node.type == "string" and string_value(node) is None):
        return None
    return [node] if node.type in ("number", "true", "false", "string") else None


def _opposite(condition: Node) -> Mutation:
    return _instead(condition, f"!({_escaped(text(condition))})")


def _instead(node: Node, new: str) -> Mutation:
    return Mutation(node.start_byte, node.end_byte, instead=new)


def _leaves(statement: Node) -> bool:
    """Whether the function may be left here, so that what comes after is not certainly reached."""
    waiting = [statement]
    while waiting:
        each = waiting.pop()
        if each.type in LEAVES:
            return True
        if each.type not in FUNCTIONS:
            waiting += each.children
    return False


def _added(file: TestFile, unit: Unit, body: Node) -> Mutation:
    """An assertion that fails, first of all."""
    at = body.start_byte + 1
    return Mutation(at, at, instead=f" {failing(file, unit)};")


def failing(file: TestFile, unit: Unit) -> str:
    """An assertion that fails, in the manner of the file; {0} and {1} are two words."""
    parameters = unit.body.child_by_field_name("parameters") if unit.body is not None else None
    given = inner(parameters)
    given = given or inner(unit.body)[:1] if unit.body is not None and unit.body.type == "arrow_function" else given
    asked = text(given[0]) if given and given[0].type == "identifier" else ""
    if asked and re.search(rf"\b{re.escape(asked)}\.assert\.", file.source):
        return asked + '.assert.equal("{0}", "{1}")'
    if asked and re.search(rf"\b{re.escape(asked)}\.(equal|same|deepEqual|ok|end)\(", file.source):
        return asked + '.equal("{0}", "{1}")'
    if re.search(r"\b(?:const|let|var|import)\s+assert\b", file.source):
        return 'assert.equal("{0}", "{1}")'
    return _escaped("(function () { throw new Error(") + '"{0} {1}"' + _escaped("); })()")


# What


def _other(leaf: str, rng: random.Random) -> str:
    if leaf in ("true", "false"):
        return "false" if leaf == "true" else "true"
    if leaf[:1] in ("'", '"', "`"):
        inside = leaf[1:-1]
        # A changed character in an escape can spell the same value again.
        new = other_value(inside, rng) if "\\" not in inside else word(rng)
        return leaf[0] + new + leaf[-1] if leaf[0] not in new and "\n" not in new else quoted(word(rng))
    try:
        return str(int(other_value(int(leaf), rng)))
    except ValueError:
        return quoted(word(rng))


def _escaped(said: str) -> str:
    """For `str.format`."""
    return said.replace("{", "{{").replace("}", "}}")
