"""The rungs of the ladder: what is wrong in a task of each, what its instruction names, and how many bits it takes.

    1   one token of a short function is wrong; the failing test, the file and the function are named
    2   one token is wrong; neither the test nor the place is named
    3   a body of one line is gone; the function and a failing test are named
    4   a body of two or three lines is gone; likewise

Bits are log2 of what a searcher has to try in what the instruction points at: edits of one token in the named function
(1) or in all of the package's code (2); texts of the missing tokens, each drawn from the tokens of its file (3, 4).
Knows code; runs nothing.
"""

from __future__ import annotations

import io
import math
import tokenize
from collections import Counter
from dataclasses import dataclass
from typing import Final

from etude.forge.languages.python.one_token import one_token_mistakes
from etude.forge.languages.python.repository import PythonRepository
from etude.forge.languages.python.source import Definition, Module

MOST_LINES: Final = 25  # of a function, its signature and docstring counted: a small model reads it whole
MOST_CHARACTERS: Final = 1600  # of the same, some 500 tokens


@dataclass(frozen=True)
class Rung:
    """What tasks of a rung have in common."""

    number: int
    origin: str  # label of the origin whose kind of task it is: "bug" or "deletion"
    names_test: bool
    names_place: bool
    lines: tuple[int, int] = (0, 0)  # of the body that is gone


RUNGS: Final = {
    1: Rung(1, "bug", names_test=True, names_place=True),
    2: Rung(2, "bug", names_test=False, names_place=False),
    3: Rung(3, "deletion", names_test=True, names_place=True, lines=(1, 1)),
    4: Rung(4, "deletion", names_test=True, names_place=True, lines=(2, 3)),
}


def is_short(module: Module, definition: Definition) -> bool:
    """Whether somebody with a small context can read a function whole."""
    lines = definition.last - definition.first + 1
    return lines <= MOST_LINES and len(module.source(definition)) <= MOST_CHARACTERS


def search_bits(module: Module, definition: Definition) -> float:
    """log2 of the edits of one token that a function can have: of a broken one, those that could mend it."""
    return math.log2(max(1, len(one_token_mistakes(module, definition))))


def package_bits(repository: PythonRepository) -> float:
    """The same of all functions that tests reach: what is left to try where no place is named."""
    functions = [repository.definitions[name] for name in repository.reach if name in repository.definitions]
    mistakes = (one_token_mistakes(repository.modules[each.path], each) for each in functions if each.deletable)
    return math.log2(max(1, sum(map(len, mistakes))))


def text_bits(module: Module, missing: str) -> float:
    """What the tokens of a missing text are worth, each by how often its file has it."""
    known = Counter(tokens(module.text))
    total = sum(known.values()) + len(known) + 1
    return sum(-math.log2((known[token] + 1) / total) for token in tokens(missing))


def tokens(text: str) -> list[str]:
    """The tokens of a piece of Python, without comments and layout."""
    found: list[str] = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in (tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING):
                found.append(token.string)
    except (tokenize.TokenError, SyntaxError, IndentationError):  # a piece need not be whole: what was read counts
        pass
    return found
