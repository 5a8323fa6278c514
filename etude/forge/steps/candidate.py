"""What an origin proposes, before anybody has tried it. Knows no tests' outcomes and no task."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from etude.forge.languages.base import Repository, Symbol
from etude.forge.steps.choose_functions import LEAST_PLACES, LEAST_TESTS


@dataclass(frozen=True)
class RemovedCode:
    """A function or class that was taken away or changed, as the repository had it."""

    path: str
    name: str
    source: str = field(repr=False)  # what must not be found anywhere
    signature: str = ""
    doc: str = ""
    lines: int = 0
    gone: bool = False  # the name itself is not there any more

    @classmethod
    def of(cls, repository: Repository[Any], symbol: Symbol, *, gone: bool = False) -> RemovedCode:
        source = repository.sources[symbol.path].source(symbol)
        return cls(symbol.path, symbol.name, source, symbol.signature, symbol.doc, symbol.size, gone)

    @property
    def id(self) -> str:
        return f"{self.path}:{self.name}"


@dataclass(frozen=True)
class Candidate:
    """A repository with something missing or wrong in it."""

    origin: str  # the label of its origin
    how: str  # "bodies", "symbols", "slice"; the kinds of bugs; a commit's hash
    changes: Mapping[str, bytes | None] = field(repr=False)  # files of the workspace as the agent finds them
    pieces: tuple[RemovedCode, ...]
    expected: frozenset[str] = field(repr=False, default=frozenset())  # tests that could notice
    about: str = ""  # what somebody wrote about it: a commit's subject
    lines: int = 0  # how many the reference writes
    try_all: bool = False  # run every test when it is tried, not only those that are expected to notice
    least_tests: int = LEAST_TESTS  # that have to notice
    least_places: int = LEAST_PLACES  # test functions that have to; with one it is held out, and none is shown

    @property
    def key(self) -> str:
        """The same for the same changes, in every process."""
        total = hashlib.sha256(self.origin.encode())
        for path, data in sorted(self.changes.items()):
            total.update(f"\0{path}\0".encode() + (data if data is not None else b"\0gone"))
        return f"{self.origin}-{total.hexdigest()[:12]}"

    def key_of(self, *parts: str) -> str:
        """A key for candidates whose changes are not known when they are proposed."""
        return f"{self.origin}-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:12]}"

    @property
    def difficulty(self) -> float:
        """A guess from what the reference writes: lines, functions, files, and whether signatures are left."""
        documented = sum(bool(piece.doc) for piece in self.pieces) / max(1, len(self.pieces))
        missing = 0.8 if any(piece.gone for piece in self.pieces) else 0.0
        spread = 0.8 * (len(self.changes) - 1) + 0.3 * (len(self.pieces) - 1)
        return math.log2(1 + self.lines) + min(spread, 3.0) + missing - 0.5 * documented


@dataclass(frozen=True)
class LeftOut:
    """What an origin looked at and does not propose, and why: told so that nothing vanishes without a line."""

    key: str  # as a candidate's
    origin: str
    how: str
    reason: str  # the same words for the same kind of trouble
    detail: str = ""
    count: int = 1  # how many it stands for
