"""What a family of katas is given and what it hands back.

A family is a function from a `Pick` (seeded draws, each from the words and numbers of one side of the split) to a
`Draft`: small modules with the functions whose bodies will be deleted, and a way to draw inputs for each of them.
Knows nothing about repositories, tests or tasks.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from etude.core.errors import EtudeError
from etude.forge.katas.vocabulary import DATA, LETTERS, MARKS, Pool, invent, is_held_out, side

Level = Literal[1, 2, 3]
Choice = TypeVar("Choice")
Edges = tuple[tuple[Any, ...], ...]


@dataclass(frozen=True)
class Function:
    """A function whose body is taken away. The docstring says everything that the body has to do."""

    name: str
    arguments: str
    doc: str  # sentences; the first starts with "Return", more lines give rules
    body: str  # lines without the function's own indentation
    draw: Callable[[], tuple[Any, ...]]  # arguments of one call, different ones each time
    edges: Edges = ()  # arguments that the tests must contain
    wrong: str = ""  # a body that a careless hand could have left behind
    head: str = ""  # constants that stand above it in its module
    uses: tuple[str, ...] = ()  # functions of the draft's other modules that it calls


@dataclass(frozen=True)
class Draft:
    """One function, or two that lie in two modules: (module's name, function) each, callees first."""

    modules: tuple[tuple[str, Function], ...]


Pair = tuple[Function, Function]  # the second calls the first


@dataclass(frozen=True)
class Family:
    """A function that draws functions, and what is known about all of its draws."""

    name: str
    level: Level
    about: str  # one line for the table of families
    themes: tuple[Pool, ...]  # one for each module of a draft: modules are named after something of their theme
    draw: Callable[[Pick], Function | Pair]
    unseen: bool = False  # held out whole: no task of it is ever for training

    def make(self, pick: Pick) -> Draft:
        drawn = self.draw(pick)
        if isinstance(drawn, Function):
            functions: tuple[Function, ...] = (drawn,)
        else:
            functions = (drawn[0], replace(drawn[1], uses=(drawn[0].name,)))
        return Draft(tuple((pick.word(pool), each) for pool, each in zip(self.themes, functions, strict=True)))


def family(
    level: Level, about: str, *themes: Pool, unseen: bool = False
) -> Callable[[Callable[[Pick], Function | Pair]], Family]:
    """Makes a family of the function below, named like it."""
    return lambda draw: Family(draw.__name__, level, about, themes, draw, unseen)


WIDE, LARGEST = 20, 999  # a range that goes to WIDE is of amounts, which may as well be larger; below are sizes


class Pick:
    """Draws for one task. Names never repeat within a task; every parameter is on one side of the split.

    `invented` is the share of words that come from no list, of numbers larger than a family needs, and of marks of two
    signs: a model that has only seen the numbers of one side learns that there are no others.
    """

    def __init__(self, rng: random.Random, *, held_out: bool, invented: float = 0.0) -> None:
        self.rng = rng
        self.held_out = held_out
        self.invented = invented
        self.names: list[str] = []
        self.values: list[str] = []
        self.choices: list[str] = []
        self._words: set[str] = set()

    def word(self, pool: Pool) -> str:
        """An identifier that this task does not use yet."""
        mine = side(pool, self.held_out)
        for _ in range(200):
            word = self._draw(mine)
            if word not in self._words:
                self._words.add(word)
                self.names.append(word)
                return word
        raise EtudeError(f"a kata needs more words than its list has, which starts with {', '.join(mine[:5])}")

    def name(self, pool: Pool, *verbs: str) -> str:
        """A function's name, such as add_fee."""
        name = f"{self.rng.choice(verbs)}_{self.word(pool)}"
        self.names[-1] = name
        return name

    def number(self, low: int, high: int) -> int:
        """A parameter from low to high, both included."""
        value = self.rng.choice(self._values(low, high))
        self.values.append(str(value))
        return value

    def numbers(self, count: int, low: int, high: int) -> list[int]:
        """Different parameters, in rising order."""
        drawn = sorted(self.rng.sample(self._values(low, high), count))
        self.values.extend(map(str, drawn))
        return drawn

    def constant(self, low: int, high: int, pool: Pool) -> tuple[str, str]:
        """How a number is written in code and docstring, and the line above the function that this needs, if any."""
        value = self.number(low, high)
        if self.rng.random() < 0.65:
            return str(value), ""
        name = self.word(pool).upper()
        self.names[-1] = name
        return name, f"{name} = {value}"

    def mark(self, avoid: str = "", *, single: bool = False) -> str:
        """A sign as a parameter, or two in a row where that is allowed."""
        signs = [mark for mark in MARKS if mark not in avoid]
        mark = self.rng.choice([sign for sign in signs if is_held_out(sign) == self.held_out])
        if not single and self._invents():
            while is_held_out(mark := "".join(self.rng.sample(signs, 2))) != self.held_out:
                pass
        self.values.append(mark)
        return mark

    def string(self) -> str:
        """A word as a parameter."""
        value = self.text(1)
        self.values.append(value)
        return value

    def strings(self, count: int) -> list[str]:
        """Different words as parameters."""
        words = self.rng.sample(side(DATA, self.held_out), count)
        self.values.extend(words)
        return words

    def letters(self, count: int) -> str:
        """A few letters as one parameter."""
        while is_held_out(letters := "".join(self.rng.sample(LETTERS, count))) != self.held_out:
            pass
        self.values.append(letters)
        return letters

    def letter(self) -> str:
        """One letter as a parameter, another one each time."""
        mine = [one for one in LETTERS if is_held_out(one) == self.held_out and one not in self.values]
        self.values.append(self.rng.choice(mine))
        return self.values[-1]

    def choose(self, *options: Choice) -> Choice:
        """One of a family's small differences in behaviour, which both sides share."""
        number = self.rng.randrange(len(options))
        self.choices.append(str(number))
        return options[number]

    # Test data: drawn anew for each call, not parameters.

    def integer(self, low: int, high: int) -> int:
        return self.rng.randint(low, high)

    def integers(self, least: int, most: int, low: int, high: int) -> list[int]:
        return [self.rng.randint(low, high) for _ in range(self.rng.randint(least, most))]

    def text(self, words: int, joint: str = " ") -> str:
        mine = side(DATA, self.held_out)
        return joint.join(self._draw(mine) for _ in range(words))

    def texts(self, least: int, most: int) -> list[str]:
        return [self.text(1) for _ in range(self.rng.randint(least, most))]

    def _draw(self, words: Sequence[str]) -> str:
        return invent(self.rng, self.held_out) if self._invents() else self.rng.choice(words)

    def _values(self, low: int, high: int) -> list[int]:
        if high >= WIDE and self._invents() and high < LARGEST:
            low, high = high + 1, LARGEST
        values = [value for value in range(low, high + 1) if is_held_out(value) == self.held_out]
        if not values:
            raise EtudeError(f"no number from {low} to {high} is on this side of the split")
        return values

    def _invents(self) -> bool:
        return bool(self.invented) and self.rng.random() < self.invented


def show(value: Any) -> str:
    """A value as Python source, with double quotes around strings."""
    if isinstance(value, str):
        plain = value.isprintable() and '"' not in value and "\\" not in value
        return f'"{value}"' if plain else json.dumps(value, ensure_ascii=False)
    if isinstance(value, list):
        return "[" + ", ".join(map(show, value)) + "]"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(show, value)) + (",)" if len(value) == 1 else ")")
    if isinstance(value, dict):
        return "{" + ", ".join(f"{show(key)}: {show(item)}" for key, item in value.items()) + "}"
    if isinstance(value, set):  # sorted: the order of a set changes from one process to the next
        return "{" + ", ".join(sorted(map(show, value))) + "}" if value else "set()"
    return repr(value)
