"""A recorded value against what is expected, outside of the process that recorded it.

What was recorded is hostile text: it becomes exact builtin values, bounded in size, or counts as wrong. What equals the
reference's own record is right; anything else is asked what the test asked. Starts nothing but a bounded search for a
pattern.
"""

from __future__ import annotations

import datetime
import decimal
import fractions
import json
import math
import operator
import re
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any, Final

from etude.tasks.grading.withheld import javascript_values
from etude.tasks.grading.withheld.sites import PINNED, Operator, Site
from etude.tasks.sandbox_side import wire_values
from etude.tasks.sandbox_side.recorder import LONGEST_VALUE

Record = list[Any]  # [site, value, ...] as the recorder wrote it
WITHHELD: Final = (["withheld"], "<withheld>")  # as it is, and as text
MOST_EXPONENT: Final = 10_000  # of a decimal, and digits of a fraction: comparing larger ones may take hours
MOST_ITEMS: Final = 2_000  # compared without regard to order
SEARCH_SECONDS: Final = 20.0  # most of it for a busy machine to start an interpreter
SEARCH_CPU_SECONDS: Final = 1  # of a search itself: each test with a pattern may cost one
# Where many values will do, a record may be so much longer than the reference's, in characters of JSON: a text that
# holds every word there is has any word in it.
MOST_TIMES: Final = 4
SPARE: Final = 200
ROOMY: Final[tuple[Operator, ...]] = ("has", "regex", "finds", "raises")
FOUND: Final = 3
NOT_FOUND: Final = 4
_SEARCH: Final = (
    f"import re, resource, sys; resource.setrlimit(resource.RLIMIT_CPU, ({SEARCH_CPU_SECONDS},) * 2); "
    "flags, size, rest = sys.stdin.read().split('\\0', 2); at = int(size); "
    f"sys.exit({FOUND} if re.search(rest[:at], rest[at:], int(flags)) else {NOT_FOUND})"
)


@dataclass(frozen=True)
class Opaque:
    """A value of a class that this process does not have, equal to another only by what it is made of."""

    tag: str
    parts: str


@dataclass(frozen=True)
class Fields:
    """An object that is equal to another of its class whose fields are equal."""

    kind: str
    values: dict[str, Any]


@dataclass(frozen=True)
class Pattern:
    """A compiled regular expression for text."""

    text: str
    flags: int


class Unreadable(Exception):
    """It is no record of ours, or its value has no plain form."""


def comparable(site: Site, record: Record) -> bool:
    """Whether every value of a record has a plain form."""
    if site.is_javascript:
        return all(map(javascript_values.readable, record[1:]))
    try:
        for part in record[1:]:
            _value(part)
    except Unreadable:
        return False
    return True


def records_match(sites: Mapping[int, Site], found: Sequence[Record], reference: Sequence[Record]) -> int | None:
    """None where a test recorded what it should; else the number of a site where it did not."""
    by_site: dict[int, list[Record]] = {}
    for record in found:
        if not (isinstance(record, list) and record and type(record[0]) is int and record[0] in sites):
            return -1
        by_site.setdefault(record[0], []).append(record)
    wanted: dict[int, list[Record]] = {}
    for record in reference:
        wanted.setdefault(record[0], []).append(record)
    for number in sorted(wanted.keys() | by_site.keys()):
        given, theirs = by_site.get(number, []), list(wanted.get(number, []))
        if len(given) != len(theirs):
            return number
        for record in given:
            # In any order: what a test reads from a mapping may come in another one.
            same = next((each for each in theirs if matches(sites[number], record, each)), None)
            if same is None:
                return number
            theirs.remove(same)
    return None


def matches(site: Site, record: Record, reference: Record) -> bool:
    """Whether a recorded value is what the test asks for, where the reference recorded this."""
    # The reference passed the test with it. As text: 1, 1.0 and true are different values.
    if json.dumps(record) == json.dumps(reference):
        return True
    # No longer than a recorder writes: hashing and comparing what is can take for hours.
    bounded = all(len(json.dumps(each)) <= LONGEST_VALUE for each in record[1:])
    return bounded and len(record) == len(reference) and holds(site, record, reference)


def holds(site: Site, record: Record, reference: Record) -> bool:
    """The same by what the test asks alone, also for the reference's own record."""
    try:
        # The message of an exception that nothing is asked of may be as long as it likes.
        asked = record[:2] if site.operator == "raises" and site.option("match") is None else record
        if site.operator in ROOMY and len(json.dumps(asked)) > room(reference):
            return False
        if site.operator == "raises":
            return _raised(site, record, reference)
        if site.is_javascript:
            return _holds_in_javascript(site, record, reference)
        return _holds(site, record, reference)
    except (Unreadable, TypeError, ValueError, ArithmeticError, RecursionError, AttributeError):
        return False


def room(reference: Record) -> int:
    """Characters that a record may have where the reference recorded this, and any that contains something will do."""
    return MOST_TIMES * len(json.dumps(reference)) + SPARE


def _holds(site: Site, record: Record, reference: Record) -> bool:
    value = _value(record[1])
    if site.operator == "pair":
        # Where the second value was taken out, the reference's first one stands for it.
        if reference[2] in WITHHELD:
            return bool(record[2] == reference[2] and site.inner == "eq" and value == _value(reference[1]))
        return bool(_COMPARE[site.inner](value, _value(record[2])))
    expected = _value(reference[1]) if site.expected is PINNED else site.expected
    match site.operator:
        case "true" | "false":
            return value is site.expected
        case "is":
            return type(value) is type(expected) and bool(value == expected)
        case "is_not":
            return not (type(value) is type(expected) and bool(value == expected))
        case "in":
            return value in expected
        case "not_in":
            return value not in expected
        case "has" | "has_not":
            # Of a range, membership of another type would be a search through all of it.
            if not isinstance(value, str | bytes | list | tuple | set | frozenset | dict):
                return False
            return (expected in value) is (site.operator == "has")
        case "starts":
            return isinstance(value, str | bytes) and value.startswith(expected)
        case "ends":
            return isinstance(value, str | bytes) and value.endswith(expected)
        case "approx":
            return _near(value, expected, site.option("rel"), site.option("abs"))
        case "almost":
            return _almost(value, expected, site.option("places"), site.option("delta"))
        case "same_items":
            return _same_items(value, expected)
        case "regex" | "regex_not":
            return isinstance(value, str) and _search(expected, value) is (site.operator == "regex")
        case "finds" | "finds_not":
            return isinstance(value, str | Pattern) and _finds(value, expected) is (site.operator == "finds")
    return bool(_COMPARE[site.operator](value, expected))


def _holds_in_javascript(site: Site, record: Record, reference: Record) -> bool:
    equal = javascript_values.same if "js_same" in (site.operator, site.inner) else javascript_values.alike
    return equal(record[1], (record if site.operator == "pair" else [*reference, reference[1]])[2])


_COMPARE: Final[dict[Operator, Callable[[Any, Any], Any]]] = {
    **{"eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt},
    **{"ge": operator.ge},
}


def _raised(site: Site, record: Record, reference: Record) -> bool:
    """[site, classes of the exception, its message]; `nothing` has no classes."""
    kinds, theirs = _value(record[1]), _value(reference[1])
    if not isinstance(kinds, list) or not isinstance(theirs, list) or not isinstance(record[2], str):
        return False
    wanted = [kind for kind in theirs if kind.rpartition(".")[2] in (site.option("classes") or ())] or theirs[:1]
    if not any(kind in kinds for kind in wanted):
        return False
    pattern = site.option("match")
    return pattern is None or record[2] == reference[2] or _search(pattern, record[2]) is True


def _finds(pattern: str | Pattern, text: str) -> bool | None:
    """Whether a pattern of the tested code's finds something in a text; None for what is no pattern."""
    if isinstance(pattern, str):
        return _search(pattern, text)
    # Without DEBUG, which prints.
    return _search(pattern.text, text, pattern.flags & ~int(re.DEBUG))


def _search(pattern: str, text: str, flags: int = 0) -> bool | None:
    """In a process of its own: pattern or text is hostile, and a search can take for ever. None: it came to no end."""
    try:
        return _searched(pattern, text, flags)
    except subprocess.TimeoutExpired:  # of a busy machine, as a search has less processor time: not remembered
        return None


@lru_cache(maxsize=256)  # a record is compared with each of the reference's, and each search starts an interpreter
def _searched(pattern: str, text: str, flags: int) -> bool | None:
    given = f"{flags}\0{len(pattern)}\0{pattern}{text}".encode("utf-8", "surrogatepass")
    command = [sys.executable, "-I", "-S", "-X", "utf8", "-c", _SEARCH]
    code = subprocess.run(command, input=given, timeout=SEARCH_SECONDS, capture_output=True).returncode
    return {FOUND: True, NOT_FOUND: False}.get(code)


def _near(value: Any, expected: Any, rel: float | None, absolute: float | None) -> bool:
    """As pytest's approx: numbers within a tolerance, also in sequences and mappings."""
    if isinstance(expected, dict):
        if not isinstance(value, dict) or value.keys() != expected.keys():
            return False
        return all(_near(value[key], each, rel, absolute) for key, each in expected.items())
    if isinstance(expected, list | tuple):
        if not isinstance(value, list | tuple) or len(value) != len(expected):
            return False
        return all(_near(one, each, rel, absolute) for one, each in zip(value, expected, strict=True))
    if isinstance(expected, bool) or not isinstance(expected, int | float) or not isinstance(value, int | float):
        return bool(value == expected)
    if value == expected:
        return True
    if math.isinf(expected) or math.isnan(expected):
        return False
    least = 1e-12 if absolute is None else absolute
    share = (0.0 if absolute is not None else 1e-6) if rel is None else rel
    return abs(value - expected) <= max(share * abs(expected), least)


def _almost(value: Any, expected: Any, places: int | None, delta: float | None) -> bool:
    if value == expected:
        return True
    difference = abs(value - expected)
    return bool(difference <= delta) if delta is not None else round(difference, 7 if places is None else places) == 0


def _same_items(value: Any, expected: Any) -> bool:
    if not isinstance(value, list | tuple | set | frozenset | dict) or len(value) != len(expected):
        return False
    left = list(expected)
    if len(left) > MOST_ITEMS:
        return False
    for item in value:
        if item not in left:
            return False
        left.remove(item)
    return True


def _value(data: Any) -> Any:
    try:
        return wire_values.decode(data, _read)
    except Unreadable:
        raise
    except Exception as error:
        raise Unreadable(str(error)) from error


def _read(data: list[Any]) -> Any:
    """What `sandbox_side/recorder.py` spells beside plain values."""
    match data:
        case ["datetime", at, offset]:
            return datetime.datetime(*at).replace(tzinfo=_zone(offset))
        case ["date", at]:
            return datetime.date(*at)
        case ["time", at, offset]:
            return datetime.time(*at).replace(tzinfo=_zone(offset))
        case ["timedelta", parts]:
            return datetime.timedelta(*parts)
        case ["decimal", text]:
            made = decimal.Decimal(text)
            exponent = made.as_tuple().exponent
            if isinstance(exponent, int) and abs(exponent) + len(text) > MOST_EXPONENT:
                raise Unreadable("a decimal that is too large")
            return made
        case ["fraction", over, under]:
            if len(over) + len(under) > MOST_EXPONENT:
                raise Unreadable("a fraction that is too large")
            return fractions.Fraction(int(over, 16), int(under, 16))
        case ["uuid", text]:
            return uuid.UUID(text)
        case ["path", text]:
            return PurePosixPath(text)
        case ["fields", str(kind), pairs]:
            return Fields(kind, {name: _value(each) for name, each in pairs})
        case ["pattern", str(text), int(flags)]:
            return Pattern(text, flags)
        case ["enum" | "pattern" | "class" | "single" | "big" | "withheld" as tag, *parts]:
            return Opaque(tag, json.dumps(parts))
    raise Unreadable(str(data[:1]))


def _zone(offset: float | None) -> datetime.timezone | None:
    return None if offset is None else datetime.timezone(datetime.timedelta(seconds=offset))
