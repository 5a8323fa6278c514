"""Text to words: identifiers in their parts, small letters, without the commonest endings.

`parseHTTPResponses` and "parsing of an HTTP response" have the same three words. One pass of a pattern without
backtracking, so a hostile file costs no more than its length.
"""

from __future__ import annotations

import re
from functools import lru_cache

PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_a-zA-Z]+|\d+")
LONGEST = 30  # characters of a word; longer ones are data
# Words of questions, not of code. Keywords of languages stay: idf weighs them down where they are common.
STOP = frozenset(
    re.findall(
        r"\w+",
        """a an the of to in on at by is are was were be been it its this that these those and or as with for from into
        if then than when which who what where how do does did not no can could should will would may must i we you he
        she they there here such so but about only also s t""",
    )
)


def split_words(text: str) -> list[str]:
    """The words of a text, in order, stop words left out."""
    found = (stem(part.lower()) for part in PART.findall(text) if len(part) <= LONGEST)
    return [word for word in found if word not in STOP]


@lru_cache(maxsize=1 << 16)
def stem(word: str) -> str:
    """Without a plural's or a verb's ending: crude, and the same for questions and code."""
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    for ending in ("ing", "ed", "es", "s"):
        kept = word[: -len(ending)]
        if word.endswith(ending) and len(kept) >= 3 and not word.endswith("ss"):
            if ending in ("ing", "ed") and kept[-1] == kept[-2] and kept[-1] not in "lsz":
                kept = kept[:-1]  # planned, running
            return kept.removesuffix("e") if len(kept) > 3 else kept
    return word.removesuffix("e") if len(word) > 4 else word
