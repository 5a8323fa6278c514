"""Another sensible name for something: one of its words is exchanged for one that means much the same.

A name none of whose words is known gets no other name. Knows words; no code.
"""

from __future__ import annotations

import builtins
import keyword
import random
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final

TABLE: Final = Path(__file__).with_name("synonyms.txt")  # verbs, an empty line, nouns


def other_name(name: str, taken: Callable[[str], bool], rng: random.Random) -> str | None:
    """The name with one word exchanged, in its own spelling, that is not `taken`; None where no word is known."""
    parts = words_of(name)
    verbs, nouns = _tables()
    first = next((number for number, part in enumerate(parts) if part.strip("_")), 0)
    known = [verbs if number == first and name == name.lower() else {} for number in range(len(parts))]
    choices = [
        (number, word)
        for number, part in enumerate(parts)
        if not any(each.isdigit() for each in parts[max(0, number - 1) : number + 2])  # base64url is one word
        for word in (known[number] | nouns).get(part.lower(), ())
    ]
    for place, word in rng.sample(choices, len(choices)):
        made = "".join([*parts[:place], _as(parts[place], word, name), *parts[place + 1 :]])
        if made.isidentifier() and not is_pythons(made) and not taken(made):
            return made
    return None


@cache
def _tables() -> tuple[dict[str, tuple[str, ...]], ...]:
    """For each verb that is known, and for each noun, others for it."""
    blocks = [block.splitlines()[1:] for block in TABLE.read_text().split("\n\n")]
    return tuple({line.split()[0]: tuple(line.split()[1:]) for line in block} for block in blocks)


def words_of(name: str) -> list[str]:
    """The pieces of a name: words, and the underscores between them."""
    return re.findall(r"_+|[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)


def is_distinct(name: str) -> bool:
    """Whether a name is no ordinary word, so that it means the same in a sentence as in code."""
    return "_" in name.strip("_") or re.search(r"[a-z0-9][A-Z]", name) is not None


def is_pythons(name: str) -> bool:
    """Whether the language has a meaning for it."""
    return keyword.iskeyword(name) or keyword.issoftkeyword(name) or hasattr(builtins, name)


def _as(like: str, word: str, name: str) -> str:
    """A word spelled as the one that it replaces."""
    if like.isupper() and len(like) > 1:
        return word.upper()
    if "_" not in name.strip("_") and name != name.lower():  # CamelCase, or its cousin
        joined = "".join(piece.capitalize() for piece in word.split("_"))
        return joined if like[0].isupper() else joined[0].lower() + joined[1:]
    return word.capitalize() if like[0].isupper() else word
