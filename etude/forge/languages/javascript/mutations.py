"""Small wrong changes to JavaScript functions, of the kinds that `python/mutations` has.

Each is an edit of a few bytes at a place that the parser names. What decides whether a loop comes to its end is left
alone: what never ends is no bug that a test could point at. Knows one file; runs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from etude.forge.languages.base import Mutation
from etude.forge.languages.edits import Edit
from etude.forge.languages.javascript.source import JavaScriptFile, ScriptDefinition
from etude.tasks.javascript.parsing import FUNCTIONS, bare, inner, text, walk

if TYPE_CHECKING:
    from tree_sitter import Node

COMPARISONS: Final = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "===": "!==", "!==": "==="}
TURNED: Final = ("in", "instanceof")
ARITHMETIC: Final = {"+": "-", "-": "+", "*": "/", "/": "*", "%": "/", "&": "|", "|": "&", "<<": ">>", ">>": "<<"}
SLICES: Final = ("slice", "substring", "substr", "subarray")
ENDS: Final = ("return_statement", "throw_statement", "break_statement", "continue_statement")
ASSIGNING: Final = ("assignment_expression", "augmented_assignment_expression", "update_expression")
LOOPS: Final = ("while_statement", "do_statement", "for_statement")
_NAMES: Final = ("identifier", "property_identifier", "private_property_identifier")


def mutations(script: JavaScriptFile, definition: ScriptDefinition) -> list[Mutation[ScriptDefinition]]:
    """Every change that is known for this function."""
    found: list[Mutation[ScriptDefinition]] = []
    if b"\0" in script.data[definition.first : definition.last]:  # which the texts of nodes do not have
        return found
    for node, endless in _places(definition.defined.body):
        if not endless and _can_be_lost(node):
            found.append(Mutation("lost statement", definition, script.without_statement(node)))
        for kind, change in KINDS.items():
            found += [Mutation(kind, definition, edit) for edit in change(node)]
    return found


# Where


def _places(body: Node) -> Iterator[tuple[Node, bool]]:
    """Everything in a function in which something may be wrong, and whether a loop goes round it that counts nothing:
    not the heads of loops, nor what sets a name that they ask for."""
    waiting: list[tuple[Node, frozenset[str], bool]] = [(body, frozenset(), False)]
    while waiting:
        node, deciding, endless = waiting.pop()
        if deciding & _set_by(node):
            continue
        yield node, endless
        parts = node.children
        if node.type in LOOPS:
            deciding |= _names(node.child_by_field_name("condition"))
            endless = endless or not _counts(node)
            parts = [each for each in [node.child_by_field_name("body")] if each is not None]
        waiting += ((each, deciding, endless) for each in reversed(parts))


def _names(node: Node | None) -> frozenset[str]:
    return frozenset(text(each) for each in walk(node) if each.type in _NAMES) if node is not None else frozenset()


def _set_by(node: Node) -> frozenset[str]:
    """The names that a statement or an expression gives another value."""
    if node.type == "expression_statement":
        node = next(iter(inner(node)), node)
    if node.type not in ASSIGNING:
        return frozenset()
    return _names(node.child_by_field_name("left") or node.child_by_field_name("argument"))


def _counts(loop: Node) -> bool:
    """Whether a loop goes from one number to another: `for (i = 0; i < n; i++)`."""
    if loop.type != "for_statement":
        return False
    condition, step = _condition(loop), loop.child_by_field_name("increment")
    if condition is None or step is None or step.type not in ASSIGNING:
        return False
    counter = text(condition.child_by_field_name("left"))
    ordered = text(condition.child_by_field_name("operator")) in ("<", "<=", ">", ">=")
    return condition.type == "binary_expression" and ordered and _set_by(step) == {counter}


def _condition(loop: Node) -> Node | None:
    """The condition of a loop, without its semicolon."""
    found = loop.child_by_field_name("condition")
    return next(iter(inner(found)), None) if found is not None and found.type == "expression_statement" else found


def _can_be_lost(node: Node) -> bool:
    """Whether the code still makes sense without it, to somebody who does not look closely."""
    if node.parent is None or node.parent.type not in ("statement_block", "switch_case", "switch_default"):
        return False
    if node.type == "if_statement":
        guarded = node.child_by_field_name("consequence")
        does = inner(guarded) if guarded is not None and guarded.type == "statement_block" else [guarded]
        ends = len(does) == 1 and does[0] is not None and does[0].type in ENDS
        return ends and node.child_by_field_name("alternative") is None
    expression = next(iter(inner(node)), None) if node.type == "expression_statement" else None
    if expression is None:
        return False
    if expression.type == "call_expression":
        return text(expression.child_by_field_name("function")) != "super"
    if expression.type == "assignment_expression":
        left = expression.child_by_field_name("left")
        return left is not None and left.type in ("member_expression", "subscript_expression")
    deletes = expression.type == "unary_expression" and text(expression.child_by_field_name("operator")) == "delete"
    return deletes or expression.type in ("await_expression", "augmented_assignment_expression", "update_expression")


# What


def _other_sign(node: Node, others: dict[str, str]) -> Iterator[Edit]:
    """Another operator in the place of the one between two expressions."""
    sign = node.child_by_field_name("operator") if node.type == "binary_expression" else None
    if sign is not None and text(sign) in others:
        yield Edit(sign.start_byte, sign.end_byte, others[text(sign)].encode())


def comparison(node: Node) -> Iterator[Edit]:
    yield from _other_sign(node, COMPARISONS)
    if node.type == "binary_expression" and text(node.child_by_field_name("operator")) in TURNED:
        yield from _turned(node)


def operator(node: Node) -> Iterator[Edit]:
    # Text and lists know no minus: that would give no number, and nothing to look for.
    if not _joins_text(node):
        yield from _other_sign(node, ARITHMETIC)


def _joins_text(node: Node) -> bool:
    top = node
    while top.parent is not None and top.parent.type in ("binary_expression", "parenthesized_expression"):
        top = top.parent
    return _is_sum(node) and any(each.type in ("string", "template_string", "array") for each in _summed(top))


def _is_sum(node: Node) -> bool:
    return node.type == "binary_expression" and text(node.child_by_field_name("operator")) == "+"


def _summed(node: Node) -> Iterator[Node]:
    """What a chain of operators joins."""
    waiting: list[Node | None] = [node]
    while waiting:
        each = bare(waiting.pop())
        if each is not None and each.type == "binary_expression":
            waiting += (each.child_by_field_name("left"), each.child_by_field_name("right"))
        elif each is not None:
            yield each


def junction(node: Node) -> Iterator[Edit]:
    yield from _other_sign(node, {"&&": "||", "||": "&&"})


def condition(node: Node) -> Iterator[Edit]:
    if node.type in ("if_statement", "ternary_expression"):
        tested = bare(node.child_by_field_name("condition"))
        if tested is not None:
            yield from _turned(tested)


def _turned(tested: Node) -> Iterator[Edit]:
    source = tested.text or b""
    inside = tested.child_by_field_name("argument")
    if tested.type == "unary_expression" and inside is not None and source.startswith(b"!"):
        yield Edit(tested.start_byte, inside.start_byte)
    elif tested.type in ("identifier", "member_expression", "call_expression", "subscript_expression"):
        # Only where it reads as somebody would write it: `!(a < b)` gives itself away.
        yield Edit(tested.start_byte, tested.start_byte, b"!")
    else:
        sign = tested.child_by_field_name("operator")
        # The language has no other way to turn these round.
        if sign is not None and sign.text in (b"in", b"instanceof") and b"\n" not in source:
            yield Edit(tested.start_byte, tested.end_byte, b"!(" + source + b")")


def constant(node: Node) -> Iterator[Edit]:
    if node.type in ("true", "false"):
        yield Edit(node.start_byte, node.end_byte, b"false" if node.type == "true" else b"true")
    elif node.type == "number" and re.fullmatch(r"0|[1-9]\d*", text(node)) and not _says_nothing(node):
        value = int(text(node))
        yield Edit(node.start_byte, node.end_byte, str(value + 1).encode())
        if value > 0:
            yield Edit(node.start_byte, node.end_byte, str(value - 1).encode())


def _says_nothing(node: Node) -> bool:
    """`void 0` is the same with any number."""
    return node.parent is not None and text(node.parent.child_by_field_name("operator")) == "void"


def bound(node: Node) -> Iterator[Edit]:
    """A loop that counts one too many, one too few, or from the second on."""
    tested = _condition(node) if node.type == "for_statement" and _counts(node) else None
    if tested is None:
        return
    yield from _other_sign(tested, COMPARISONS)
    for each in walk(node.child_by_field_name("initializer") or tested):
        value = each.child_by_field_name("value") or each.child_by_field_name("right")
        if each.type in ("variable_declarator", "assignment_expression") and text(value) == "0" and value is not None:
            yield Edit(value.start_byte, value.end_byte, b"1")


def swapped(node: Node) -> Iterator[Edit]:
    if node.type not in ("call_expression", "new_expression"):
        return
    one, other = (*inner(node.child_by_field_name("arguments")), None, None)[:2]
    if one is None or other is None or {one.type, other.type} != {"identifier"} or one.text == other.text:
        return
    whole = node.text or b""
    between = whole[one.end_byte - node.start_byte : other.start_byte - node.start_byte]
    yield Edit(one.start_byte, other.end_byte, (other.text or b"") + between + (one.text or b""))


def loop_end(node: Node) -> Iterator[Edit]:
    """Where the loop ends anyway."""
    if node.type not in ("break_statement", "continue_statement") or inner(node):
        return
    around = node.parent
    while around is not None and around.type not in (*LOOPS, *FUNCTIONS, "for_in_statement", "switch_statement"):
        around = around.parent
    if around is not None and (around.type == "for_in_statement" or _counts(around)):
        old, new = (b"break", b"continue") if node.type == "break_statement" else (b"continue", b"break")
        yield Edit(node.start_byte, node.start_byte + len(old), new)


def sliced(node: Node) -> Iterator[Edit]:
    callee = node.child_by_field_name("function") if node.type == "call_expression" else None
    if callee is None or text(callee.child_by_field_name("property")) not in SLICES:
        return
    given = inner(node.child_by_field_name("arguments"))
    if len(given) == 1 and given[0].type != "spread_element":
        yield Edit(given[0].start_byte, given[0].start_byte, b"0, ")


KINDS: Final[dict[str, Callable[[Node], Iterator[Edit]]]] = {
    "comparison": comparison,
    "operator": operator,
    "and/or": junction,
    "condition": condition,
    "constant": constant,
    "off by one": bound,
    "swapped arguments": swapped,
    "break/continue": loop_end,
    "slice": sliced,
}
