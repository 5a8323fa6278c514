"""What withheld answers are worth, in bits: how hard it is to write down what the reference recorded without solving
the task.

Guessed low. A value that the rewritten test still mentions is worth a choice among what it mentions; a value that
several assertions expect counts once; true, false and None count by how they are mixed over the task, since most tests
assert what is true. A text that only has to contain something may contain many guesses, and an exception may be of many
classes at once. Pure.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from etude.tasks.grading.withheld.compare import Record, room
from etude.tasks.grading.withheld.sites import Site

MOST_OF_ONE: Final = 32.0  # bits of one value
BITS_OF_A_LETTER: Final = 2.0  # of text that is like other text
LEAST_OF_A_CHOICE: Final = 1.0  # of a word that the test mentions elsewhere


def worth(records: Iterable[tuple[Site, Record, str]]) -> float:
    """Bits over these records, each with its site and the text of the test without its answers."""
    values: dict[str, float] = {}
    mixed: Counter[str] = Counter()
    for site, record, text in records:
        if site.exposed or (site.operator == "pair" and record[2] not in (["withheld"], "<withheld>")):
            continue
        if site.operator == "raises":
            if site.option("match"):
                values.setdefault(site.option("match"), _of_one_in_many(site.option("match"), text, record))
        elif site.operator in ("finds", "finds_not"):
            mixed[str(site.operator == "finds")] += 1
        elif site.operator in ("true", "false") or record[1] in (None, True, False):
            wanted = site.expected if site.is_boolean else record[1]
            mixed[str(wanted)] += 1
        elif site.operator in ("eq", "is", "approx", "almost", "same_items", "pair", "js_same", "js_alike"):
            key = json.dumps(record[1])
            values[key] = min(values.get(key, MOST_OF_ONE), of_value(record[1], text))
        elif site.operator in ("has", "regex") and isinstance(site.expected, str):
            values.setdefault(site.expected, _of_one_in_many(site.expected, text, record))
        elif site.operator in ("starts", "ends") and isinstance(site.expected, str):
            values.setdefault(site.expected, of_text(site.expected, text))
        # Of what is less, unlike or among others, almost anything will do.
    return round(sum(values.values()) + _arrangements(mixed), 1)


def of_value(data: Any, text: str) -> float:
    """Bits of a value as it was recorded."""
    return min(MOST_OF_ONE, _of_value(data, text))


def _of_value(data: Any, text: str) -> float:
    match data:
        case None | bool():
            return 1.0
        case int() | float():
            if _mentions(text, str(data)):
                return _choice(text)
            return min(16.0, math.log2(abs(data) + 2)) if isinstance(data, int) else min(16.0, 3.0 * len(f"{data:g}"))
        case str():
            return of_text(data, text)
        case ["dict", pairs]:
            return 1.0 + sum(_of_value(each, text) for pair in pairs for each in pair)
        case ["list" | "tuple" | "set" | "frozenset", items]:
            return 1.0 + sum(_of_value(each, text) for each in items)
        case ["fields", _, pairs]:
            return 1.0 + sum(_of_value(each, text) for _, each in pairs)
        case ["bytes" | "bytearray", digits]:
            return of_text(bytes.fromhex(digits).decode("latin-1"), text)
        case ["datetime" | "date" | "time" | "timedelta", parts, *_]:
            return sum(_of_value(each, text) for each in parts)
        case ["big", *_]:
            return MOST_OF_ONE
        case ["decimal" | "path" | "uuid", said]:
            return of_text(said, text)
        case ["fraction", *_] | ["int", *_] | ["complex", *_]:
            return 8.0
    return 0.0


def of_text(said: str, text: str) -> float:
    """Words that the test mentions are worth a choice, others their letters."""
    words = re.findall(r"\w+|[^\w\s]+", said)
    choice = _choice(text)
    found = sum(choice if word in text else max(choice, BITS_OF_A_LETTER * len(word)) for word in words)
    return min(MOST_OF_ONE, found) if words else 1.0


def _of_one_in_many(said: str, text: str, record: Record) -> float:
    """A text that a record has to contain: as many guesses as there is room for are free."""
    guesses = max(1.0, room(record) / (len(said) + 1))
    return max(0.0, of_text(said, text) - math.log2(guesses))


def _choice(text: str) -> float:
    """One of the words that a test mentions. Half of it: which words come into question can be guessed."""
    strings = " ".join(re.findall(r"'[^'\n]*'|\"[^\"\n]*\"|\d+", text))
    return max(LEAST_OF_A_CHOICE, math.log2(len(set(re.findall(r"\w+", strings))) + 1) / 2)


def _mentions(text: str, number: str) -> bool:
    return re.search(rf"(?<!\d){re.escape(number)}(?!\d)", text) is not None


def _arrangements(counts: Mapping[str, int]) -> float:
    """In how many orders so many of each can come; all of one kind is no choice."""
    ways = math.lgamma(sum(counts.values()) + 1) - sum(math.lgamma(count + 1) for count in counts.values())
    return ways / math.log(2)
