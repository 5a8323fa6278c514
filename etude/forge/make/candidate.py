"""What a way of breaking something proposes, before anybody has tried it. Knows no tests' outcomes and no task."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Origin = Literal["deletion", "bug", "commit"]


@dataclass(frozen=True)
class Piece:
    """A function or class that was taken away or changed, as the repository had it."""

    path: str
    name: str
    source: str = field(repr=False)  # what must not be found anywhere
    signature: str = ""
    doc: str = ""
    lines: int = 0
    gone: bool = False  # the name itself is not there any more

    @property
    def id(self) -> str:
        return f"{self.path}:{self.name}"


@dataclass(frozen=True)
class Candidate:
    """A repository with something missing or wrong in it."""

    origin: Origin
    how: str  # "bodies", "symbols", "slice"; the kinds of bugs; a commit's hash
    changes: Mapping[str, bytes | None] = field(repr=False)  # files of the workspace as the agent finds them
    pieces: tuple[Piece, ...]
    expected: frozenset[str] = field(repr=False, default=frozenset())  # tests that could notice
    about: str = ""  # what somebody said about it: a commit's subject
    lines: int = 0  # how many the reference writes

    @property
    def key(self) -> str:
        """The same for the same changes, in every process."""
        total = hashlib.sha256(self.origin.encode())
        for path, data in sorted(self.changes.items()):
            total.update(f"\0{path}\0".encode() + (data if data is not None else b"\0gone"))
        return f"{self.origin}-{total.hexdigest()[:12]}"
