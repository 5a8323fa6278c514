"""What a way of making tasks proposes, before anybody has tried it. Knows no tests' outcomes and no task."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from etude.tasks.format.config import AnswerKind

Origin = Literal["deletion", "bug", "commit", "question", "testing", "documentation", "refactor", "devops"]


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

    @property
    def id(self) -> str:
        return f"{self.path}:{self.name}"


@dataclass(frozen=True)
class Candidate:
    """A repository with something missing or wrong in it."""

    origin: Origin
    how: str  # "bodies", "symbols", "slice"; the kinds of bugs; a commit's hash
    changes: Mapping[str, bytes | None] = field(repr=False)  # files of the workspace as the agent finds them
    pieces: tuple[RemovedCode, ...]
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


@dataclass(frozen=True)
class Question(Candidate):
    """Something to find out, with `changes` of the workspace or none; `how` is the kind of question."""

    kind: AnswerKind = "name"
    accepted: tuple[str, ...] = ()  # functions as path:name
    choices: tuple[str, ...] = ()  # functions that it could be, the right ones among them
    test: str = ""  # the test that it is about
    without: Mapping[str, bytes | None] = field(default_factory=dict, repr=False)  # a patch without its bug
    patch: str = field(default="", repr=False)
    said: Mapping[str, str] = field(default_factory=dict, repr=False)  # failing tests and what they said
    guesses: tuple[str, ...] = ()  # answers of somebody who does not look closely, all of them wrong

    @property
    def key(self) -> str:
        """The same for the same question, in every process."""
        asked = "\0".join([self.how, self.test, self.patch, *self.accepted, "", *self.choices])
        return f"{self.origin}-{hashlib.sha256(asked.encode()).hexdigest()[:12]}"


@dataclass(frozen=True)
class Testing(Candidate):
    """Functions (`pieces`) that tests are wanted for. The rest is known once mistakes are; `changes` then has the test
    files without those that notice them."""

    file: str = ""  # where the tests are wanted
    reference: bytes = field(default=b"", repr=False)  # the removed tests as that file
    mutants: tuple[Mapping[str, bytes], ...] = field(
        default=(), repr=False
    )  # files that a mistake changes, a mapping each
    removed: tuple[RemovedCode, ...] = field(default=(), repr=False)  # the tests that go

    @property
    def key(self) -> str:
        """Known before anybody has found mistakes in the functions."""
        asked = "\0".join(piece.id for piece in self.pieces)
        return f"{self.origin}-{hashlib.sha256(asked.encode()).hexdigest()[:12]}"


@dataclass(frozen=True)
class Documenting(Candidate):
    """Functions (`pieces`) of one file that docstrings with examples are wanted for; `changes` has it without them."""

    mutants: tuple[Mapping[str, bytes], ...] = field(default=(), repr=False)  # as `Testing` has them
    removed: tuple[RemovedCode, ...] = field(default=(), repr=False)  # the docstrings that go, and their examples alone


@dataclass(frozen=True)
class Refactoring(Candidate):
    """Something (`pieces`) that gets another name or place; `how` is the kind. The workspace stays as it is."""

    old: str = ""  # a name; for a module its path
    new: str = ""
    edits: Mapping[str, bytes | None] = field(default_factory=dict, repr=False)  # code, tests and documents afterwards
    proof: tuple[str, bytes] = field(default=("", b""), repr=False)  # the file of tests that nothing stayed behind
    dotted: tuple[str, str] = ("", "")  # of a module, as it is imported

    @property
    def key(self) -> str:
        """Known before anybody has run it."""
        asked = "\0".join([self.how, self.old, self.new, *(piece.id for piece in self.pieces)])
        return f"{self.origin}-{hashlib.sha256(asked.encode()).hexdigest()[:12]}"
