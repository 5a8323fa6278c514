"""The words that katas are made of (`vocabulary.toml`), and the one rule that keeps training and evaluation apart.

A word is held out when its CRC-32 is a multiple of three, a number when it is itself a multiple of three. The rule
looks at nothing else, so the two sides stay apart however many lists a word is in. Beside the lists there are words
without end, invented: who meets new ones all the time learns to copy a word; a few hundred would be learnt by heart.
"""

from __future__ import annotations

import random
import tomllib
import zlib
from functools import cache
from keyword import iskeyword
from pathlib import Path
from typing import Final, NewType

Pool = NewType("Pool", str)  # the name of a list of words

PACKAGES: Final = Pool("packages")
MONEY, TITLES, AMOUNTS, GOODS, ROWS = map(Pool, ("money", "titles", "amounts", "goods", "rows"))
CODES, TIMES, PLACES = map(Pool, ("codes", "times", "places"))
NUMBER, TEXT, LIST, WORDLIST, RECORDS = map(Pool, ("number", "text", "list", "wordlist", "records"))
TABLE, FIELD, MEASURE, WHOLE = map(Pool, ("table", "field", "measure", "whole"))
DATA: Final = Pool("data")
LOCALS: Final = Pool("locals")

MARKS: Final = "-_.:/|+~#;=*@&^!><?,$%"  # separators, fill characters and comment signs
LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"


def is_held_out(value: str | int) -> bool:
    """Which side a word or a number is on: no task for training uses one that is held out, and the other way round."""
    return (zlib.crc32(value.encode()) if isinstance(value, str) else value) % 3 == 0


@cache
def word_lists() -> dict[str, tuple[str, ...]]:
    """All lists by name, in the order in which words are invented from them."""
    found = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
    return {name: tuple(words.split()) for name, words in found.items()}


@cache
def side(pool: Pool | None, held_out: bool) -> tuple[str, ...]:
    """The words of a list, or of all lists, that one side may use."""
    lists = word_lists()
    words = lists[pool] if pool else [word for name in lists if name != LOCALS for word in lists[name]]
    return tuple(word for word in dict.fromkeys(words) if is_held_out(word) == held_out and word not in lists[LOCALS])


def invent(rng: random.Random, held_out: bool) -> str:
    """A word that is in no list but could be: the head of one word and the tail of another, such as `comrket`."""
    words = side(None, held_out)
    while True:
        first, second = rng.choice(words), rng.choice(words)
        word = first[: rng.randint(2, 5)] + second[-rng.randint(2, 5) :]
        apart = word not in word_lists()[LOCALS] and not iskeyword(word)
        if 4 <= len(word) <= 8 and is_held_out(word) == held_out and apart:
            return word
