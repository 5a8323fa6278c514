"""What the agent is asked, in three prompt styles, and how an instruction in a hurry looks. Knows no candidate."""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from etude.tasks.format.config import PromptStyle

LONGEST_DOC: Final = 40  # lines of a quoted docstring
TYPOS: Final = 0.1  # share of terse instructions with one
SLIPS: Final = ("swapped", "left out", "doubled", "neighbour")
_ROWS: Final = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
NEIGHBOURS: Final = {
    key: [row[near] for near in (at - 1, at + 1) if 0 <= near < len(row)] for row in _ROWS for at, key in enumerate(row)
}  # keys beside each other


@dataclass(frozen=True)
class Instructions:
    """A category of the published taxonomy, and the instruction in each style: in a hurry, as an ordinary request or
    issue, as a full specification."""

    category: str
    terse: str
    plain: str
    detailed: str

    @property
    def by_style(self) -> dict[PromptStyle, str]:
        return {"terse": self.terse, "plain": self.plain, "detailed": self.detailed}


def with_typo(text: str, rng: random.Random, names: Collection[str] = ()) -> str:
    """With a slip of the keyboard in one ordinary word, now and then; never in a name."""
    found = re.finditer(r"(?<![\w{`./])[a-z]{5,}(?![\w}`./(])", text)
    words = [word for word in found if word[0] not in names]
    if not words or rng.random() >= TYPOS:
        return text
    word = rng.choice(words)
    at = rng.randrange(word.start() + 1, word.end() - 2)
    slip = rng.choice(SLIPS)
    here, following = text[at], text[at + 1]
    if slip == "swapped" and here != following:
        return text[:at] + following + here + text[at + 2 :]
    if slip == "doubled":
        return text[:at] + here + text[at:]
    if slip == "neighbour" and here in NEIGHBOURS:
        return text[:at] + rng.choice(NEIGHBOURS[here]) + text[at + 1 :]
    return text[:at] + text[at + 1 :]


def listed(names: Sequence[str]) -> str:
    """Names in a sentence: `a`, `b` and `c`."""
    quoted = [f"`{name}`" for name in names]
    return " and ".join([", ".join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted)


def code_block(code: str, fence: str = "python") -> str:
    return f"```{fence}\n{code}\n```"


def quoted_doc(doc: str) -> str:
    """A docstring as a quotation below what it belongs to; nothing where there is none."""
    lines = doc.strip().splitlines()[:LONGEST_DOC]
    return "\n\n" + "\n".join(f"> {line}".rstrip() for line in lines) if lines else ""


def last_line(text: str) -> str:
    """What a failing test's output ends with, to be quoted."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:160].replace("`", "'") if lines else ""
