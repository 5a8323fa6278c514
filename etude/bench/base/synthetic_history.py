"""Small histories that nobody wrote: modules of constants and one-line functions, changed a few times.

For measuring where there is no repository at hand, with models too small for real files. The same seed gives the same
histories, and what the file must be in the end is known.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from etude.bench.base.git_history import History, tidy

NOUNS = (
    *("area", "batch", "cache", "delay", "depth", "flag", "host", "index", "level", "limit", "offset", "page"),
    *("port", "queue", "range", "rate", "retry", "scale", "score", "size", "speed", "step", "total", "width"),
)
VERBS = (
    *("add", "bound", "check", "clip", "count", "find", "fold"),
    *("join", "load", "make", "pick", "read", "send", "sort"),
)
OPERATORS = ("+", "-", "*", "//", "%")


@dataclass
class _Constant:
    name: str
    value: int

    def __str__(self) -> str:
        return f"{self.name} = {self.value}\n"


@dataclass
class _Function:
    name: str
    argument: str
    operator: str
    value: int

    def __str__(self) -> str:
        return f"def {self.name}({self.argument}):\n    return {self.argument} {self.operator} {self.value}\n"


def invent_histories(seed: int) -> Iterator[History]:
    """Without end. Three to eight changes each."""
    number = 0
    while True:
        rng = random.Random(f"{seed}/{number}")
        number += 1
        parts: list[_Constant | _Function] = []
        for _ in range(rng.randint(3, 6)):
            parts.append(_invent(rng, parts))
        texts = ["\n".join(map(str, parts))]
        for _ in range(rng.randint(3, 8)):
            _change(rng, parts)
            texts.append("\n".join(map(str, parts)))
        history = tidy(f"{rng.choice(NOUNS)}_{rng.choice(NOUNS)}.py", texts)
        if history.changes >= 3:
            yield history


def _invent(rng: random.Random, others: list[_Constant | _Function]) -> _Constant | _Function:
    taken = {part.name for part in others}
    while True:
        made: _Constant | _Function
        if rng.random() < 0.5:
            made = _Constant(f"{rng.choice(NOUNS)}_{rng.choice(NOUNS)}".upper(), rng.randint(1, 999))
        else:
            name = f"{rng.choice(VERBS)}_{rng.choice(NOUNS)}"
            made = _Function(name, rng.choice(NOUNS), rng.choice(OPERATORS), rng.randint(1, 99))
        if made.name not in taken:
            return made


def _change(rng: random.Random, parts: list[_Constant | _Function]) -> None:
    kind = rng.choice(("value", "value", "name", "add", "remove", "move"))
    part = rng.choice(parts)
    if kind == "value":
        part.value = rng.randint(1, 999 if isinstance(part, _Constant) else 99)
    elif kind == "name":
        part.name = next(other.name for other in iter(lambda: _invent(rng, parts), None) if type(other) is type(part))
    elif kind == "remove" and len(parts) > 2:
        parts.remove(part)
    elif kind == "move":
        parts.remove(part)
        parts.insert(rng.randint(0, len(parts)), part)
    else:
        parts.insert(rng.randint(0, len(parts)), _invent(rng, parts))
