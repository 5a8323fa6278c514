"""A grammar of turns that call offered functions, with arguments that fit their schemas.

How a model writes calls is found by writing some in its dialect. Two ways are known: arguments as one JSON object
(Hermes, Qwen, DeepSeek, Kimi), and each argument between marks of its own, its value as text (this project's format).
The grammar is in the language of `llguidance`, over bytes and marks, so that any tokens may spell it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from etude.core.policy import Assistant, Call, User
from etude.serve.openai.grammar import SPACING
from etude.serve.openai.request_models import ToolFunction
from etude.serve.openai.responses import argument_types, resolved
from etude.serve.openai.streaming import token_bytes
from etude.tokens.dialect import Dialect

MOST_FORCED = 8  # calls in one turn
_NAME, _KEY, _TEXT = "zed_function", "zed", "x y"
_JSON = json.dumps({_KEY: _TEXT}).encode()
_OPEN_WORDS = ("additionalProperties", "patternProperties", "$ref", "allOf", "anyOf", "oneOf")

Item = bytes | int  # text, or the id of a mark


class ForcedCalls(NamedTuple):
    opening: list[int]  # stands behind the prompt
    grammar: str  # of all that follows, up to the end of the turn


class _Marks(NamedTuple):
    """The ids before the name of an argument and before its value; none where arguments are JSON."""

    name: int
    value: int


def forced_calls(dialect: Dialect, functions: Sequence[ToolFunction], most: int = MOST_FORCED) -> ForcedCalls | None:
    """None where the dialect writes arguments in neither of the two ways."""
    ids, arguments, marks = _turn(dialect, 1), _JSON, None
    if sum(item.count(_JSON) for item in _items(dialect, ids) if isinstance(item, bytes)) != 1:
        arguments, marks = b"", _marks(_items(dialect, ids))
        if marks is None:
            return None
    # One turn shows all: what stands before the first call, between two calls, and behind the last.
    ids = _turn(dialect, most, bare=marks is not None)
    pieces = _split(_items(dialect, ids), _NAME.encode())
    if len(pieces) != most + 1:
        return None
    opening = _within(dialect, ids, pieces[0])
    pieces[0] = _behind(pieces[0], sum(_length(dialect, token) for token in opening))
    # A call is what stands before its name, the name, what stands before its arguments, and those.
    befores, middles = [pieces[0]], []
    for piece in pieces[1:]:
        middle, *rest = _split(piece, arguments) if arguments else ([], piece)
        if len(rest) != 1:
            return None
        middles.append(middle)
        befores.append(rest[0])
    lines = ["start: call0"]
    for place, middle in enumerate(middles):
        more = f" | call{place + 1}" if place + 1 < most else ""
        lines.append(f"call{place}: {_literal(befores[place])} called{place} (end{more})")
        named = [f"{_quoted(function.name)} {_literal(middle)}" for function in functions]
        calls = (f"{call} arguments{number}" for number, call in enumerate(named))
        lines.append(f"called{place}: " + " | ".join(calls))
    lines.append(f"end: {_literal(befores[most])}")
    for number, function in enumerate(functions):
        lines += _arguments(number, _schema(function), marks)
    return ForcedCalls(opening, "\n".join([*lines, "TEXT: /(?s:.+)/", ""]))


def _turn(dialect: Dialect, count: int, bare: bool = False) -> list[int]:
    """A turn of calls without its end."""
    call = Call(_NAME, {} if bare else {_KEY: _TEXT})
    ids = list(dialect.turn_ids(Assistant(calls=(call,) * count), [User("?")]))
    while ids and ids[-1] in dialect.stop_ids:
        ids.pop()
    return ids


def _marks(items: Sequence[Item]) -> _Marks | None:
    for place in range(len(items) - 3):
        name, key, value, text = items[place : place + 4]
        if (key, text) == (_KEY.encode(), _TEXT.encode()) and isinstance(name, int) and isinstance(value, int):
            return _Marks(name, value)
    return None


def _split(items: Sequence[Item], at: bytes) -> list[list[Item]]:
    """The items between the places where a text stands."""
    pieces: list[list[Item]] = [[]]
    for item in items:
        first, *others = item.split(at) if isinstance(item, bytes) else (item,)
        pieces[-1] += [first] if first != b"" else []
        pieces += [[other] if other else [] for other in others]
    return pieces


def _within(dialect: Dialect, ids: Sequence[int], items: Sequence[Item]) -> list[int]:
    """The first ids that write nothing but these items."""
    left = sum(len(item) if isinstance(item, bytes) else 1 for item in items)
    opening: list[int] = []
    for token in ids:
        left -= _length(dialect, token)
        if left < 0:
            break
        opening.append(token)
    return opening


def _length(dialect: Dialect, token: int) -> int:
    """In bytes; a mark counts as one."""
    return len(token_bytes(dialect, token)) or 1


def _items(dialect: Dialect, ids: Sequence[int]) -> list[Item]:
    """Ids as text and marks."""
    items: list[Item] = []
    for token in ids:
        data = token_bytes(dialect, token)
        if data and items and isinstance(last := items[-1], bytes):
            items[-1] = last + data
        else:
            items.append(data or token)
    return items


def _behind(items: Sequence[Item], skipped: int) -> list[Item]:
    """Without the first bytes and marks; a mark counts as one."""
    left: list[Item] = []
    for item in items:
        length = len(item) if isinstance(item, bytes) else 1
        if skipped < length:
            left.append(item[skipped:] if isinstance(item, bytes) else item)
        skipped = max(0, skipped - length)
    return left


def _literal(items: Sequence[Item]) -> str:
    return " ".join(f"<[{item}]>" if isinstance(item, int) else _quoted(item.decode()) for item in items) or '""'


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _schema(function: ToolFunction) -> dict[str, Any]:
    """Of the arguments. What it does not name does not come, unless it speaks of such arguments itself."""
    schema = {"type": "object", **(function.parameters or {})}
    return schema if any(word in schema for word in _OPEN_WORDS) else schema | {"additionalProperties": False}


def _arguments(number: int, schema: dict[str, Any], marks: _Marks | None) -> list[str]:
    if marks is None:
        return [f"arguments{number}: {_json(schema)}"]
    lines, parts = [], []
    types = argument_types(schema)
    required = schema.get("required")
    for place, (name, wanted) in enumerate(schema.get("properties", {}).items()):
        rule = f"argument{number}x{place}"
        value = _value(wanted, schema, types[name])
        lines.append(f"{rule}: <[{marks.name}]> {_quoted(name)} <[{marks.value}]> {value}")
        parts.append(rule if isinstance(required, list) and name in required else f"{rule}?")
    return [f"arguments{number}: {' '.join(parts) or _literal([])}", *lines]


def _value(wanted: dict[str, Any], root: dict[str, Any], types: Sequence[str]) -> str:
    """A value as text: a string is not quoted, all else is JSON."""
    found = resolved(wanted, root)
    options = found.get("enum", [found["const"]] if "const" in found else None)
    if isinstance(options, list) and options:
        texts = [one if isinstance(one, str) else json.dumps(one) for one in options]
        return "(" + " | ".join(_quoted(text) for text in texts) + ")"
    if not types or "string" in types:
        return "TEXT?"
    shared = {word: root[word] for word in ("$defs", "definitions") if word in root}
    return _json(shared | wanted)


def _json(schema: dict[str, Any]) -> str:
    return "%json " + json.dumps(schema | {"x-guidance": SPACING})
