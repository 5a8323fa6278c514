"""Levels of quality by rules: thresholds on what can be counted in a text, a table of them for each level.

    rules = [{ most_mean_line = 60, least_letters = 0.55 }, { least_comments = 0.1 }]

A document is of level 1 when it meets the first table, of level 2 when it meets the second as well, and so on. Filters
(filters.py) decide what is in the corpus at all; these decide which phase of training reads it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from etude.core.errors import EtudeError
from etude.core.settings import QualitySettings
from etude.corpus.filters import KIND

Rules = Sequence[Mapping[str, float]]

COMMENT = re.compile(r"^\s*(?:#|//|/\*|\*|--)", re.MULTILINE)


def _shares(text: str) -> tuple[float, float]:
    """Of letters and of digits among what is not white space."""
    kinds = np.bincount(KIND[np.frombuffer(text.encode(), np.uint8)], minlength=4)
    visible = max(1, int(kinds[1:].sum()))
    return float(kinds[1]) / visible, float(kinds[2]) / visible


def _full_lines(text: str) -> list[str]:
    return [line for line in text.split("\n") if line.strip()]


def _distinct_lines(text: str) -> float:
    lines = _full_lines(text)
    return len(set(lines)) / max(1, len(lines))


def _comments(text: str) -> float:
    """The share of lines that are a comment, or inside a string of three quotes."""
    quoted = sum(len(_full_lines(part)) for part in text.split('"""')[1::2])
    return min(1.0, (quoted + len(COMMENT.findall(text))) / max(1, len(_full_lines(text))))


MEASURES: dict[str, Callable[[str], float]] = {
    "letters": lambda text: _shares(text)[0],
    "digits": lambda text: _shares(text)[1],
    "characters": len,
    "line": lambda text: max(map(len, text.split("\n"))),
    "mean_line": lambda text: len(text) / (text.count("\n") + 1),
    "distinct_lines": _distinct_lines,
    "comments": _comments,
}
KEYS = [f"{bound}_{name}" for name in MEASURES for bound in ("least", "most")]


def level_by_rules(text: str, rules: Rules) -> int:
    """How many tables the text meets before the first that it does not."""
    for level, table in enumerate(rules):
        if not all(_is_met(text, key, limit) for key, limit in table.items()):
            return level
    return len(rules)


def _is_met(text: str, key: str, limit: float) -> bool:
    bound, _, name = key.partition("_")
    found = MEASURES[name](text)
    return found >= limit if bound == "least" else found <= limit


def check_quality(settings: QualitySettings) -> None:
    for key in (key for table in settings.rules for key in table):
        if key not in KEYS:
            raise EtudeError(f"corpus.quality.rules has {key!r}, which is no rule: the rules are {', '.join(KEYS)}")


def highest_level(settings: QualitySettings) -> int:
    """The highest level that a document can have."""
    counts = [len(settings.rules)] if settings.rules else []
    counts += [len(settings.levels)] if settings.labels else []
    return min(counts, default=0)


def check_phase(section: str, quality: int, settings: QualitySettings) -> None:
    """Refuses a phase that asks for a level which no document can have, before the phases that come first."""
    if quality > (highest := highest_level(settings)):
        raise EtudeError(
            f"{section}.quality is {quality}, but the corpus has levels up to {highest}: "
            "lower it, or give corpus.quality more rules or levels"
        )
