"""From an assertion of JavaScript to what is recorded there and what is taken out: node's `assert`, tape, chai.

Who asserts is known by where its name comes from: a module that asserts, or the first parameter of a test. What is not
known here stays as it is written. Reads syntax, runs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from etude.tasks.grading.withheld.sites import PINNED, Operator
from etude.tasks.javascript.parsing import bare, inner, string_value, text

if TYPE_CHECKING:
    from tree_sitter import Node

STRICT: Final = frozenset(("assert/strict", "node:assert/strict"))
ASSERT: Final = frozenset(("assert", "node:assert")) | STRICT
LOOSE: Final = "assert"  # node's own, where `equal` means `==`
CHAI: Final = "chai"
EXACT: Final = "strict"  # tape's, a test's own, and node's where it is strict
_SAME: Final = frozenset(
    (
        *("strictEqual", "deepStrictEqual", "is", "strictEquals", "isEqual", "equals", "same", "isEquivalent"),
        *("deepEquals", "deepEqual", "equal"),
    )
)
_ALIKE: Final = frozenset(("looseEqual", "looseEquals", "deepLooseEqual"))
_BY_TWO_SIGNS: Final[Mapping[str, frozenset[str]]] = {  # names that mean `==`, by who asserts
    LOOSE: frozenset(("equal", "deepEqual")),
    CHAI: frozenset(("equal",)),
    EXACT: frozenset(),
}
_TRUE: Final = frozenset(("ok", "true", "assert", "isTrue", "truthy", "isOk"))
_FALSE: Final = frozenset(("notOk", "notok", "false", "isFalse", "falsy", "isNotOk"))
_EXPECTED: Final = frozenset(("equal", "equals", "eql", "eqls", "eq", "be"))  # expect(...).to.equal(...)
_PROPERTIES: Final = frozenset(("true", "false", "null", "undefined"))  # expect(...).to.be.true
_WORDS: Final = frozenset(("to", "be", "been", "is", "that", "which", "and", "has", "have", "with", "at", "a", "an"))
_PURE_CALLS: Final = frozenset(("Buffer.from", "BigInt", "Symbol.for", "Object.create", "Array.of", "Array", "Object"))
_PURE_CLASSES: Final = frozenset(("Map", "Set", "Date", "RegExp", "Uint8Array", "URL", "Error", "TypeError", "Array"))
_BUILTIN: Final = re.compile(r"(?:Number|Math)\.[A-Z_]+")
_NO_PYTHON: Final = re.compile(r"\(\?<[^=!]|\\[pPkcu]|\[\^?\]|\$\)")  # means nothing, or another thing, to Python
_BOUND: Final = re.compile(
    r"\b(?:const|let|var)\s+(\w+|\{[^}]*\})\s*=\s*require\(\s*['\"]([^'\"\n]+)['\"]\s*\)(?:\.(\w+))?"
    r"|\bimport\s+(?:\*\s*as\s+)?(\w+|\{[^}]*\})\s+from\s+['\"]([^'\"\n]+)['\"]"
)


@dataclass(frozen=True)
class ScriptAssertion:
    """What one assertion asks."""

    operator: Operator
    recorded: tuple[Node, ...]
    taken: tuple[Node, ...] = ()  # what leaves the source
    expected: Any = PINNED
    inner: Operator = "eq"
    options: tuple[tuple[str, Any], ...] = ()
    counts: str = ""  # who counts assertions, and is to be told of one
    waits: bool = False  # for a promise


@dataclass(frozen=True)
class Asserting:
    """Who asserts in a file: names of modules, and of single functions."""

    modules: Mapping[str, str]  # name -> LOOSE, CHAI or EXACT
    functions: Mapping[str, tuple[str, str]]  # name -> who, and what it is there
    expects: bool


def asserting(source: str) -> Asserting:
    """Read off what a file loads."""
    modules: dict[str, str] = {}
    functions: dict[str, tuple[str, str]] = {}
    for found in _BOUND.finditer(source):
        names, module, part = found[1] or found[4], found[2] or found[5], found[3] or ""
        if module not in ASSERT and module != CHAI:
            continue
        who = CHAI if module == CHAI else EXACT if module in STRICT or part == "strict" else LOOSE
        if names.startswith("{"):
            for each in names[1:-1].split(","):
                there, _, here = (side.strip() for side in re.sub(r"\bas\b", ":", each).partition(":"))
                if there in ("assert", "strict", "default"):
                    modules[here or there] = EXACT if there == "strict" else who
                elif there:
                    functions[here or there] = (who, there)
        elif module != CHAI or part == "assert":
            modules[names] = who
    return Asserting(modules, functions, "chai" in source or "expect" in source)


def asked_by(node: Node, who: Asserting, given: Collection[str], constants: Collection[str]) -> ScriptAssertion | None:
    """What an expression asks, where it is an assertion that is known; `given` are first parameters of the tests
    around it."""
    if node.type == "member_expression":
        return _of_property(node, who)
    callee = node.child_by_field_name("function") if node.type == "call_expression" else None
    arguments = inner(node.child_by_field_name("arguments")) if callee is not None else []
    if callee is None or any(each.type == "spread_element" for each in arguments):
        return None
    if callee.type == "identifier":
        name = text(callee)
        if name in who.modules:
            return _of_truth(arguments[0], True, "", constants) if arguments else None
        kind, there = who.functions.get(name, ("", ""))
        return _of_method(there, arguments, kind, "", constants) if kind else None
    if callee.type != "member_expression":
        return None
    owner, name = callee.child_by_field_name("object"), text(callee.child_by_field_name("property"))
    asked = text(owner)
    if asked in who.modules or asked.removesuffix(".strict") in who.modules:
        kind = EXACT if asked.endswith(".strict") else who.modules[asked]
        return _of_method(name, arguments, kind, "", constants)
    if asked in given or asked.removesuffix(".assert") in given:
        kind = LOOSE if asked.endswith(".assert") else EXACT
        return _of_method(name, arguments, kind, asked, constants)
    subject = _subject(owner, who) if owner is not None else None
    if subject is not None and name in _EXPECTED and len(arguments) >= 1:
        return _compared(subject, arguments[0], "js_same", "", constants)
    return None


def _of_method(
    name: str, arguments: list[Node], who: str, counts: str, constants: Collection[str]
) -> ScriptAssertion | None:
    """`assert.equal(actual, expected)`, `t.ok(value)`, `assert.throws(function)`."""
    if name in _SAME | _ALIKE and len(arguments) >= 2:
        loose = name in _ALIKE or name in _BY_TWO_SIGNS[who]
        return _compared(arguments[0], arguments[1], "js_alike" if loose else "js_same", counts, constants)
    if name in _TRUE | _FALSE and arguments:
        return _of_truth(arguments[0], name in _TRUE, counts, constants)
    if name in ("throws", "rejects") and arguments:
        if who == CHAI and (len(arguments) > 2 or arguments[-1].type in ("string", "template_string")):
            return None  # a text is a part of the message there, and not what to say
        return _of_throwing(name, arguments, counts)
    if name == "match" and len(arguments) >= 2 and (pattern := python_pattern(arguments[1])) is not None:
        return ScriptAssertion("regex", (arguments[0],), tuple(arguments[1:]), pattern, counts=counts)
    return None


def _compared(
    actual: Node, expected: Node, operator: Operator, counts: str, constants: Collection[str]
) -> ScriptAssertion:
    for side, other in ((expected, actual), (actual, expected)):
        if pure(side, constants) and not pure(other, constants):
            return ScriptAssertion(operator, (other,), (side,), literal_value(side), counts=counts)
    return ScriptAssertion("pair", (actual, expected), inner=operator, counts=counts)


def _of_truth(condition: Node, holds: bool, counts: str, constants: Collection[str]) -> ScriptAssertion:
    """Of a comparison with a literal the other side; else whether it holds."""
    node = bare(condition) or condition
    sign = text(node.child_by_field_name("operator")) if node.type == "binary_expression" else ""
    sides = [node.child_by_field_name("left"), node.child_by_field_name("right")]
    if holds and sign in ("===", "==") and sides[0] is not None and sides[1] is not None:
        found = _compared(sides[0], sides[1], "js_same" if sign == "===" else "js_alike", counts, constants)
        if found.taken:
            return found
    return ScriptAssertion("true" if holds else "false", (condition,), expected=holds, counts=counts)


def _of_throwing(name: str, arguments: list[Node], counts: str) -> ScriptAssertion | None:
    """`throws(function, Class)`, `throws(function, /message/)`, `throws(function, { name, message })`."""
    options: dict[str, Any] = {"classes": ()}
    waits = name == "rejects"
    if len(arguments) > 1 and arguments[1].type not in ("string", "template_string"):
        asked = arguments[1]
        if asked.type == "identifier" and text(asked)[:1].isupper():
            options["classes"] = (text(asked),)
        elif asked.type == "regex" and (pattern := python_pattern(asked)) is not None and "^" not in pattern:
            options["match"] = pattern
        elif asked.type == "object" and (found := _described(asked)) is not None:
            options |= found
        else:
            return None  # a function that decides by itself, for example
    taken = tuple(arguments[1:])
    return ScriptAssertion("raises", (arguments[0],), taken, options=tuple(options.items()), counts=counts, waits=waits)


def _described(asked: Node) -> dict[str, Any] | None:
    found: dict[str, Any] = {}
    for part in inner(asked):
        key = text(part.child_by_field_name("key")).strip("'\"") if part.type == "pair" else ""
        value = part.child_by_field_name("value")
        if value is None:
            return None
        if key == "name" and (said := string_value(value)):
            found["classes"] = (said,)
        elif key == "message" and (said := string_value(value)):
            found["match"] = f"{re.escape(said)}$"
        elif key == "message" and (pattern := python_pattern(value)) is not None and "^" not in pattern:
            found["match"] = pattern
        else:
            return None
    return found


def _of_property(node: Node, who: Asserting) -> ScriptAssertion | None:
    """`expect(actual).to.be.true`, as a statement of its own."""
    if node.parent is None or node.parent.type != "expression_statement":
        return None
    owner, name = node.child_by_field_name("object"), text(node.child_by_field_name("property"))
    subject = _subject(owner, who) if owner is not None and name in _PROPERTIES else None
    if subject is None:
        return None
    values: dict[str, Any] = {"true": True, "false": False, "null": None}
    return ScriptAssertion("js_same", (subject,), expected=values.get(name, PINNED))


def _subject(owner: Node, who: Asserting) -> Node | None:
    """What `expect(...).to` or `....should` is about; None where it is something else, or is turned round."""
    node: Node | None = owner
    while node is not None and node.type == "member_expression":
        word = text(node.child_by_field_name("property"))
        if word == "should":
            return bare(node.child_by_field_name("object")) if who.expects else None
        if word not in _WORDS | {"deep"}:
            return None
        node = node.child_by_field_name("object")
    if node is None or node.type != "call_expression" or text(node.child_by_field_name("function")) != "expect":
        return None
    given = inner(node.child_by_field_name("arguments"))
    return given[0] if given and who.expects else None


# What is expected


def pure(node: Node | None, constants: Collection[str] = ()) -> bool:
    """Whether an expression is a value that the test spells: nothing of the tested code is asked for it."""
    if node is None:
        return False
    match node.type:
        case "string" | "number" | "true" | "false" | "null" | "undefined" | "regex":
            return True
        case "identifier" | "shorthand_property_identifier":
            return text(node) in ("NaN", "Infinity", "undefined") or text(node) in constants
        case "template_string":
            return all(pure(part, constants) for each in inner(node) for part in _substituted(each))
        case "array" | "object" | "parenthesized_expression" | "spread_element" | "arguments":
            return all(pure(each, constants) for each in inner(node))
        case "pair":
            key = node.child_by_field_name("key")
            named = key is not None and (key.type != "computed_property_name" or all(map(pure, inner(key))))
            return named and pure(node.child_by_field_name("value"), constants)
        case "unary_expression":
            return pure(node.child_by_field_name("argument"), constants)
        case "binary_expression":
            sides = (node.child_by_field_name("left"), node.child_by_field_name("right"))
            return all(pure(each, constants) for each in sides)
        case "new_expression":
            known = text(node.child_by_field_name("constructor")) in _PURE_CLASSES
            # Without arguments a date is now.
            return known and bool(given := node.child_by_field_name("arguments")) and pure(given, constants)
        case "call_expression":
            return _is_pure_call(node, constants)
        case "member_expression":
            return bool(_BUILTIN.fullmatch(text(node))) or pure(node.child_by_field_name("object"), constants)
    return False


def _is_pure_call(node: Node, constants: Collection[str]) -> bool:
    callee = node.child_by_field_name("function")
    if callee is None or not pure(node.child_by_field_name("arguments"), constants):
        return False
    if text(callee) in _PURE_CALLS:
        return True
    # A method of a text or a list that is spelled there.
    return callee.type == "member_expression" and pure(callee.child_by_field_name("object"), constants)


def _substituted(part: Node) -> list[Node]:
    return inner(part) if part.type == "template_substitution" else []


def literal_value(node: Node | None) -> Any:
    """A literal as Python has it; PINNED where it is more than that."""
    node = bare(node)
    if node is None:
        return PINNED
    match node.type:
        case "string" | "template_string":
            said = string_value(node)
            return PINNED if said is None else said
        case "number":
            try:
                return int(text(node), 0)
            except ValueError:
                try:
                    return float(text(node))
                except ValueError:
                    return PINNED
        case "true" | "false":
            return node.type == "true"
        case "null":
            return None
        case "array":
            parts = [literal_value(each) for each in inner(node)]
            return PINNED if PINNED in parts else parts
        case "object":
            pairs = [
                (text(each.child_by_field_name("key")).strip("'\""), literal_value(each.child_by_field_name("value")))
                for each in inner(node)
            ]
            return PINNED if any(value is PINNED or not key for key, value in pairs) else dict(pairs)
    return PINNED


def python_pattern(node: Node) -> str | None:
    """A regular expression that means the same to Python; None for one that may not."""
    if node.type != "regex":
        return None
    said, flags = text(node.child_by_field_name("pattern")), text(node.child_by_field_name("flags"))
    if _NO_PYTHON.search(said) or set(flags) - set("igms"):
        return None
    made = f"(?{''.join(sorted({'a', *flags} - {'g'}))}){said}"
    try:
        re.compile(made)
    except (re.error, RecursionError, OverflowError):
        return None
    return made
