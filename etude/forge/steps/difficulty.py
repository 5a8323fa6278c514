"""How hard a task is likely to be, from 1 to 5, before anybody has tried it.

A guess from what the reference writes: lines, functions and files, whether signatures are left, how large the
functions are in which a bug hides; for a question from what has to be read, for tests and docstrings from what they are
about, for a refactoring from how far it reaches. Pass rates replace it once there are some. Knows a candidate only.
"""

from __future__ import annotations

import math
from typing import Final

from etude.forge.steps.candidate import Candidate, Documenting, Question, Refactoring, Testing

STEPS: Final = (3.2, 4.6, 6.0, 7.6)  # scores at which the next level begins


def score(candidate: Candidate) -> float:
    pieces = candidate.pieces
    if isinstance(candidate, Question):
        # What has to be read: the patch, or the functions that it could be; and how far apart they lie.
        places = {name.partition(":")[0] for name in candidate.choices}
        return 0.6 * math.log2(1 + candidate.lines) + 0.3 * len(candidate.choices) + 0.4 * (len(places) - 1)
    if isinstance(candidate, Testing | Documenting):
        return 1.0 + 0.6 * math.log2(1 + candidate.lines) + 0.6 * (len(pieces) - 1)
    if isinstance(candidate, Refactoring):  # how often it is mentioned, and over how many files
        return 0.5 + 0.6 * math.log2(1 + candidate.lines) + 0.3 * min(len(candidate.edits), 12)
    files = len(candidate.changes)
    documented = sum(bool(piece.doc) for piece in pieces) / max(1, len(pieces))
    if candidate.origin == "bug":
        around = sum(piece.lines for piece in pieces)
        return 0.5 + 0.9 * candidate.lines + 0.5 * math.log2(1 + around) + 0.7 * (files - 1)
    missing = 0.8 if any(piece.gone for piece in pieces) else 0.0
    spread = 0.8 * (files - 1) + 0.3 * (len(pieces) - 1)
    return math.log2(1 + candidate.lines) + min(spread, 3.0) + missing - 0.5 * documented


def level(candidate: Candidate) -> int:
    found = score(candidate)
    return 1 + sum(found >= step for step in STEPS)
