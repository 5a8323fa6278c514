"""A refactoring as a candidate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from etude.forge.steps.candidate import Candidate
from etude.tasks.format.config import RefactorKind


@dataclass(frozen=True, kw_only=True)
class Refactoring(Candidate):
    """Something (`pieces`) that gets another name or place; `how` is the kind. The workspace stays as it is."""

    origin: str = "refactor"
    how: RefactorKind
    changes: Mapping[str, bytes | None] = field(default_factory=dict)
    old: str  # a name; for a module its path
    new: str
    edits: Mapping[str, bytes | None] = field(repr=False)  # code, tests and documents afterwards
    leftover_tests: tuple[str, bytes] = field(repr=False)  # the file of tests that nothing stayed behind
    dotted: tuple[str, str] = ("", "")  # of a module, as it is imported

    @property
    def key(self) -> str:
        """Known before anybody has run it."""
        return self.key_of(self.how, self.old, self.new, *(piece.id for piece in self.pieces))

    @property
    def difficulty(self) -> float:
        """How often it is mentioned, and over how many files."""
        return 0.5 + 0.6 * math.log2(1 + self.lines) + 0.3 * min(len(self.edits), 12)

    @property
    def all_edits(self) -> dict[str, bytes | None]:
        """With the tests that nothing stayed behind."""
        path, text = self.leftover_tests
        return {**self.edits, path: text}
