"""A file in pieces: one for each definition, so that a long file is found by what one function of it does.

Lines that look like definitions, in any language, begin a piece; nothing is parsed, as the file may be anybody's.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from etude.harness.code_search.words import split_words

DEFINITION = re.compile(
    r"[ \t]*(?:(?:export|default|public|private|static|async|pub|final|abstract) +)*"
    r"(?:def|class|function|func|fn|interface|struct|impl|trait|module|type|macro_rules!) *([\w.]+)"
)
LONGEST = 80  # lines of a piece
MOST_CHUNKS = 400  # of a file; the rest of it is one more piece
NAME_WEIGHT = 3  # a word in the name of a definition counts so often
PATH_WEIGHT = 2


@dataclass(frozen=True)
class Chunk:
    """A piece of a file and the words in it."""

    line: int  # where it begins, from 1
    name: str  # of the definition; empty for what stands outside one
    words: Counter[str]


def chunks_of(path: str, text: str) -> list[Chunk]:
    """The pieces of a file; the first is its path, which is found like any other."""
    found = [Chunk(1, "", _weighted(path.rpartition(".")[0] or path, PATH_WEIGHT))]
    begin, name, lines = 0, "", text.split("\n")
    for number, line in enumerate([*lines, ""]):
        definition = DEFINITION.match(line) if len(found) <= MOST_CHUNKS else None
        too_long = number - begin >= LONGEST and len(found) <= MOST_CHUNKS
        if (definition or too_long or number == len(lines)) and number > begin:
            words = Counter(split_words("\n".join(lines[begin:number])))
            if words:
                found.append(Chunk(begin + 1, name, words + _weighted(name, NAME_WEIGHT - 1)))
            begin = number
        if definition:
            name = definition[1]
    return found


def _weighted(text: str, times: int) -> Counter[str]:
    return Counter({word: count * times for word, count in Counter(split_words(text)).items()})
