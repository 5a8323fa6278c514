"""Values that a process of JavaScript recorded, compared as its assertions do.

The recorder writes one text for values that are strictly equal: keys, maps and sets in order, numbers as JSON has them
(`sandbox_side/report.cjs`). So strict equality is equality of the text, which `compare` asks first; what `==` lets pass
beside it is here. Pure.
"""

from __future__ import annotations

import json
from typing import Any, Final

OTHER: Final = "other"  # has no plain form
_NOTHING: Final = (None, ["undefined"])
_MINUS_ZERO: Final = ["num", "-0"]


def readable(data: Any) -> bool:
    """Whether a value has a plain form, all the way down."""
    if not isinstance(data, list):
        return not isinstance(data, dict)
    if not data or data[0] == OTHER:
        return False
    return all(map(readable, _parts(data)))


def same(one: Any, other: Any) -> bool:
    """As `===`, and as deep strict equality."""
    return json.dumps(one) == json.dumps(other)


def alike(one: Any, other: Any) -> bool:
    """As `==`, and as deep equality by it: texts and numbers of one value, objects of other classes."""
    one, other = (0 if each == _MINUS_ZERO else each for each in (one, other))
    if same(one, other) or (one in _NOTHING and other in _NOTHING):
        return True
    if isinstance(one, list) and isinstance(other, list):
        return _alike_objects(one, other)
    if isinstance(one, list) or isinstance(other, list) or one is None or other is None:
        return False
    if isinstance(one, str) and isinstance(other, str):
        return one == other
    first, second = _number(one), _number(other)
    return first is not None and first == second


def _alike_objects(one: list[Any], other: list[Any]) -> bool:
    if one[:1] in (["dict"], ["fields"]) and other[:1] in (["dict"], ["fields"]):
        first, second = _entries(one), _entries(other)
        return first.keys() == second.keys() and all(alike(first[key], second[key]) for key in first)
    if one[:1] == other[:1] == ["list"] and len(one[1]) == len(other[1]):
        return all(alike(a, b) for a, b in zip(one[1], other[1], strict=True))
    return False


def _entries(data: list[Any]) -> dict[str, Any]:
    return {str(key): value for key, value in data[-1]}


def _number(value: Any) -> float | None:
    if isinstance(value, str):
        try:
            # Of Python's spellings only those that JavaScript has.
            return float(value) if value.strip() and "_" not in value else 0.0
        except ValueError:
            return None
    return float(value)


def _parts(data: list[Any]) -> list[Any]:
    """What a tagged value is made of."""
    match data:
        case ["dict" | "fields" | "map", *_, pairs] if isinstance(pairs, list):
            return [each for pair in pairs if isinstance(pair, list) for each in pair]
        case ["list" | "set", items] if isinstance(items, list):
            return items
    return []
