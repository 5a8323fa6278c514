"""Checks a value against a table in JSON schema, and refuses it with a sentence that names the field.

Knows the part of JSON schema that the tables use and nothing of what the fields mean. One word is ours: `x-refused` is
the sentence for a field whose values, other than the harmless ones, would change the meaning of the answer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from etude.serve.openai.errors import Refusal

Schema = Mapping[str, Any]

_NAMES = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "null": "null",
    "array": "a list",
    "object": "an object",
}


def check(value: Any, schema: Schema, where: str = "") -> None:
    """Raises the refusal of the first thing that does not fit."""
    if "x-refused" in schema:
        if not fits(value, {key: rule for key, rule in schema.items() if key != "x-refused"}):
            raise Refusal(400, schema["x-refused"], param=where or None, code="unsupported_value")
        return
    if "anyOf" in schema:
        _any_of(value, schema, where)
        return
    _type(value, schema, where)
    if "enum" in schema and not any(value == other and type(value) is type(other) for other in schema["enum"]):
        known = ", ".join(repr(other) for other in schema["enum"])
        raise _wrong(where, f"is {_short(value)}; it must be one of: {known}")
    if isinstance(value, str):
        _text(value, schema, where)
    elif isinstance(value, list):
        _list(value, schema, where)
    elif isinstance(value, dict):
        _object(value, schema, where)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        _number(value, schema, where)


def fits(value: Any, schema: Schema) -> bool:
    try:
        check(value, schema)
    except Refusal:
        return False
    return True


def _type(value: Any, schema: Schema, where: str) -> None:
    allowed = schema.get("type")
    if allowed is None:
        return
    kinds = [allowed] if isinstance(allowed, str) else allowed
    if not any(_is(value, kind) for kind in kinds):
        wanted = " or ".join(_NAMES[kind] for kind in kinds)
        raise _wrong(where, f"must be {wanted}, not {_short(value)}")


def _is(value: Any, kind: str) -> bool:
    match kind:
        case "string":
            return isinstance(value, str)
        case "integer":
            return type(value) is int or (type(value) is float and value.is_integer())
        case "number":
            return type(value) is int or (type(value) is float and math.isfinite(value))
        case "boolean":
            return isinstance(value, bool)
        case "null":
            return value is None
        case "array":
            return isinstance(value, list)
        case _:
            return isinstance(value, dict)


def _any_of(value: Any, schema: Schema, where: str) -> None:
    """Says what is wrong with the one alternative that was meant, where that can be told."""
    options = schema["anyOf"]
    if any(fits(value, option) for option in options):
        return
    if key := schema.get("x-told-apart-by"):  # a field whose one value names the alternative
        _type(value, {"type": "object"}, where)
        named = {option["properties"][key]["enum"][0]: option for option in options}
        said = value.get(key)
        if not isinstance(said, str) or said not in named:
            raise _wrong(f"{where}.{key}", f"is {_short(said)}; it must be one of: {', '.join(named)}")
        check(value, named[said], where)
    meant = [option for option in options if "type" in option and fits(value, {"type": option["type"]})]
    if len(meant) == 1:
        check(value, meant[0], where)
    wanted = schema.get("x-wanted")
    if wanted is None:
        kinds = [kind for option in options for kind in _kinds(option)]
        wanted = " or ".join(dict.fromkeys(_NAMES[kind] for kind in kinds))
    raise _wrong(where, f"must be {wanted}, not {_short(value)}")


def _kinds(schema: Schema) -> list[str]:
    kinds = schema.get("type", [])
    return [kinds] if isinstance(kinds, str) else list(kinds)


def _text(value: str, schema: Schema, where: str) -> None:
    if len(value) < schema.get("minLength", 0):
        raise _wrong(where, "must not be empty")
    if len(value) > schema.get("maxLength", math.inf):
        raise _wrong(where, f"has {len(value)} characters; the most is {schema['maxLength']}")
    if "pattern" in schema and not re.search(schema["pattern"], value):
        raise _wrong(where, f"is {_short(value)}; it must match {schema['pattern']}")


def _list(value: list[Any], schema: Schema, where: str) -> None:
    if len(value) < schema.get("minItems", 0):
        raise _wrong(where, "must not be empty")
    if len(value) > schema.get("maxItems", math.inf):
        raise _wrong(where, f"has {len(value)} entries; the most is {schema['maxItems']}")
    items = schema.get("items")
    if items is None:
        return
    # token ids, of which there may be a million: if the ends fit, all do
    ids = items.get("type") == "integer" and value and set(map(type, value)) == {int}
    if ids and fits(min(value), items) and fits(max(value), items):
        return
    for index, item in enumerate(value):
        check(item, items, f"{where}[{index}]")


def _object(value: dict[str, Any], schema: Schema, where: str) -> None:
    """Fields that are known come first: a wrong `type` says more than what is missing or unknown because of it."""
    inside = f"{where}." if where else ""
    properties: Mapping[str, Schema] = schema.get("properties", {})
    for name in properties:
        if name in value:
            check(value[name], properties[name], inside + name)
    for name in schema.get("required", ()):
        if name not in value:
            raise Refusal(400, f"'{inside}{name}' is missing", param=f"{inside}{name}", code="missing_field")
    if len(value) > schema.get("maxProperties", math.inf):
        raise _wrong(where, f"has {len(value)} entries; the most is {schema['maxProperties']}")
    others = schema.get("additionalProperties", True)
    for name in value.keys() - properties.keys() if others is not True else ():
        field = inside + (name if len(name) <= 64 else name[:61] + "...")
        if others is False:
            raise Refusal(400, f"'{field}' is not known here", param=field, code="unknown_field")
        check(value[name], others, field)


def _number(value: float, schema: Schema, where: str) -> None:
    if value < schema.get("minimum", -math.inf):
        raise _wrong(where, f"is {value}; the least is {schema['minimum']}")
    if value > schema.get("maximum", math.inf):
        raise _wrong(where, f"is {value}; the most is {schema['maximum']}")


def _wrong(where: str, what: str) -> Refusal:
    return Refusal(400, f"'{where}' {what}" if where else f"the body {what}", param=where or None, code="invalid_value")


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else ascii(value)
    return text if len(text) <= 40 else text[:37] + "..."
