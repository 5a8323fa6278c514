"""What a test without its answers calls: it records the value that the tested code gave, and the test goes on.

Nothing here knows what is expected, so there is no verdict to read, to ask or to bend. Values leave as JSON, bounded in
size. A dataclass is recorded by its fields; a value whose comparison its own class decides, as something that cannot be
compared. Knows pytest only where a test waits for an exception.
"""

from __future__ import annotations

import builtins
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import hashlib
import json
import pathlib
import re
import sys
import types
import uuid
from types import TracebackType
from typing import Any, Final

from etude.tasks.sandbox_side import wire_values

LONGEST_VALUE: Final = 16_000  # characters; of a longer one a digest is kept
LONGEST_TEST: Final = 200_000
MOST_TEXT: Final = 2_000  # characters of an exception's message
_BUILTIN: Final[tuple[Any, ...]] = (str, int, float, list, tuple, dict, set, frozenset, bytes, bytearray)
_STANDARD: Final = (collections.OrderedDict, collections.Counter, collections.defaultdict)
_VIEWS: Final[tuple[type, ...]] = (type({}.keys()), type({}.items()))


class Withheld:
    """Stands where an expected value was."""

    def __repr__(self) -> str:
        return "<withheld>"


class Recorder:
    """The records of the test that runs."""

    def __init__(self) -> None:
        self._records: list[Any] = []
        self._size = 0

    def install(self) -> None:
        """Under the names that rewritten tests call."""
        vars(builtins).update(_etude_seen=self.seen, _etude_raises=self.raises, _etude_withheld=Withheld())

    def seen(self, site: int, *values: Any) -> None:
        self._add([site, *map(_encoded, values)])

    def raises(self, site: int) -> Raises:
        return Raises(self, site)

    def _add(self, record: list[Any]) -> None:
        self._size += len(json.dumps(record))
        # A test that records without end is cut: what is missing never passes.
        if self._size <= LONGEST_TEST:
            self._records.append(record)

    def take(self) -> str:
        """What was recorded since the last time."""
        records, self._records, self._size = self._records, [], 0
        return json.dumps(records)


class Raises:
    """In the place of `pytest.raises` and `self.assertRaises`: any exception will do, and which one is recorded."""

    def __init__(self, recorder: Recorder, site: int) -> None:
        self._recorder, self._site = recorder, site

    def __enter__(self) -> Any:
        import pytest

        self._info: Any = pytest.ExceptionInfo.for_later()
        return self._info

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if kind is None or error is None:
            self._recorder.seen(self._site, "nothing")
            return False
        # A skipped test, for example, stays one.
        if kind.__module__.startswith("_pytest") or issubclass(kind, KeyboardInterrupt):
            return False
        try:
            said = str(error)[:MOST_TEXT]
        except Exception:  # the agent's own __str__
            said = ""
        self._recorder.seen(self._site, [_class_name(each) for each in kind.__mro__], said)
        self._info.fill_unfilled((kind, error, trace))
        self._info.exception = error  # as unittest calls it
        return True


def _encoded(value: Any) -> Any:
    """A value as JSON; `["other", class]` for what has no plain form."""
    try:
        made = wire_values.encode(value, _other) if _is_plain(value) else ["other", _class_name(type(value))]
        text = json.dumps(made)
    except Exception:  # nested too deeply, or an attribute of the agent's that raises
        return ["other", "unreadable"]
    if len(text) > LONGEST_VALUE:
        return ["big", hashlib.sha256(text.encode()).hexdigest(), len(text)]
    return made


def _is_plain(value: Any, depth: int = 0) -> bool:
    """Whether builtin comparison decides, all the way down: a class with its own `__eq__` may mean another thing."""
    if depth > wire_values.DEEPEST:
        return False
    kind = type(value)
    base = next((base for base in _BUILTIN if issubclass(kind, base)), None)
    if base is None:
        fields = _fields(value)
        return fields is None or all(_is_plain(each, depth + 1) for _, each in fields)
    if kind.__eq__ is not base.__eq__ and kind not in _STANDARD and not _is_mock_call(kind):
        return False
    # Through the builtin itself: a subclass may give other items than it holds.
    items: Any = (each for pair in dict.items(value) for each in pair) if base is dict else ()
    if base in (list, tuple, set, frozenset):
        items = base.__iter__(value)
    return all(_is_plain(each, depth + 1) for each in items)


def _is_mock_call(kind: type) -> bool:
    """A call that a mock remembers: a tuple of its name, arguments and keywords, equal to another with the same."""
    return kind.__qualname__ == "_Call" and kind is getattr(sys.modules.get("unittest.mock"), "_Call", None)


def _fields(value: Any) -> list[tuple[str, Any]] | None:
    """Of an object that is equal to another of its class with equal fields: those fields. None for any other."""
    kind = type(value)
    if kind is types.SimpleNamespace:
        return sorted(vars(value).items())
    written = getattr(getattr(kind.__eq__, "__code__", None), "co_filename", "")
    # By who wrote its `__eq__`: a class of these may have one of its own.
    if dataclasses.is_dataclass(value) and written == "<string>":
        names = [field.name for field in dataclasses.fields(value) if field.compare]
    elif written.startswith("<attrs generated"):
        names = [field.name for field in kind.__attrs_attrs__ if field.eq]
    else:
        return None
    return [(name, getattr(value, name, None)) for name in names]


def _other(value: Any) -> list[Any]:
    kind = type(value)
    if (fields := _fields(value)) is not None:
        return ["fields", _class_name(kind), [[name, wire_values.encode(each, _other)] for name, each in fields]]
    match value:
        case datetime.datetime() if kind is datetime.datetime:
            at = [value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond]
            return ["datetime", at, _offset(value.utcoffset())]
        case datetime.date() if kind is datetime.date:
            return ["date", [value.year, value.month, value.day]]
        case datetime.time() if kind is datetime.time:
            return ["time", [value.hour, value.minute, value.second, value.microsecond], _offset(value.utcoffset())]
        case datetime.timedelta() if kind is datetime.timedelta:
            return ["timedelta", [value.days, value.seconds, value.microseconds]]
        case decimal.Decimal() if kind is decimal.Decimal:
            return ["decimal", str(value)]
        case fractions.Fraction() if kind is fractions.Fraction:
            return ["fraction", format(value.numerator, "x"), format(value.denominator, "x")]
        case uuid.UUID() if kind is uuid.UUID:
            return ["uuid", value.hex]
        case pathlib.PurePath():
            return ["path", str(value)]
        case enum.Enum():
            return ["enum", _class_name(kind), value.name]
        case re.Pattern():
            return ["pattern", wire_values.encode(value.pattern, _other), value.flags]
        case Withheld():
            return ["withheld"]
        case type():
            return ["class", _class_name(value)]
    if isinstance(value, _VIEWS):
        return ["set", [wire_values.encode(each, _other) for each in list(value)]]  # type: ignore[call-overload]
    if value is NotImplemented or value is ...:
        return ["single", repr(value)]
    return ["other", _class_name(kind)]


def _offset(offset: datetime.timedelta | None) -> float | None:
    return None if offset is None else offset.total_seconds()


def _class_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
