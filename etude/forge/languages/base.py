"""What making tasks has to know about a repository, whatever it is written in: the protocol of a language.

A `Symbol` is something that can be taken away; a `Repository` has the symbols, knows which test reaches which, how
code is deleted or broken, and what taking tests out of their files means; a `TaskFiles` is what its tasks look like
from outside. `table` names the languages. Knows no language, no candidate, and runs nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Final, Generic, Literal, Protocol, TypeVar

from etude.forge.environments.environment import Environment, Suite
from etude.forge.languages.edits import Edit
from etude.tasks.format import config
from etude.tasks.format.file_tree import Files


class Symbol(Protocol):
    """A function, method or class of the repository."""

    @property
    def path(self) -> str: ...

    @property
    def name(self) -> str:
        """Qualified: "Class.method"."""
        ...

    @property
    def id(self) -> str:
        """ "path:name"."""
        ...

    @property
    def short(self) -> str: ...

    @property
    def owner(self) -> str:
        """What it belongs to, or nothing."""
        ...

    @property
    def doc(self) -> str: ...

    @property
    def uses(self) -> frozenset[str]:
        """Every name in it."""
        ...

    @property
    def signature(self) -> str:
        """What stands before its body."""
        ...

    @property
    def size(self) -> int:
        """Lines of code."""
        ...

    @property
    def deletable(self) -> bool:
        """Whether taking its body away leaves something that only fails when it is called."""
        ...


S = TypeVar("S", bound=Symbol)
Extent = Literal["bodies", "symbols", "class"]  # what a deletion takes of its functions, as far as it can
COPIED: Final = 4  # neighbouring lines of deleted code that a test may not contain


class Source(Protocol[S]):
    """A file of code, parsed."""

    data: bytes

    @property
    def definitions(self) -> Mapping[str, S]:
        """By qualified name."""
        ...

    def source(self, definition: S) -> str:
        """A definition's text."""
        ...

    def edited(self, edits: Iterable[Edit]) -> bytes: ...


@dataclass(frozen=True)
class LocatedTest:
    """The function behind a test's id."""

    path: str
    name: str  # "Class.test", without parameters; nothing where the file makes its tests as it runs: the whole file


@dataclass(frozen=True)
class Mutation(Generic[S]):
    """One small change that makes a function wrong, and what kind of mistake it is."""

    kind: str
    definition: S
    edit: Edit


@dataclass(frozen=True)
class DeletedFunctions(Generic[S]):
    """Files without some functions. Whether they are still of their language is for the caller to read."""

    changes: Mapping[str, bytes]
    symbols: tuple[S, ...]  # what is missing now, without the methods of classes that went whole
    gone: frozenset[str]  # ids of those whose very name is not there any more
    importers: frozenset[str] = frozenset()  # test files that cannot be loaded without them


@dataclass(frozen=True)
class TaskFiles:
    """What tasks of a language look like."""

    suite: config.Suite
    fence: str  # what Markdown calls the language
    endings: tuple[str, ...]  # of its files
    lock: str  # where a task keeps it
    test_script: bytes  # for Harbor's own verifier; ours reads the ids in task.toml and never runs it
    dockerfile: Callable[[Repository[Any]], bytes]


@dataclass(frozen=True, eq=False)
class Repository(ABC, Generic[S]):
    """A repository as the makers of candidates see it."""

    language: ClassVar[str]  # as origins name it

    name: str
    version: str
    files: Files
    environment: Environment
    green: tuple[str, ...]  # ids of tests that passed each time
    traces: Mapping[str, frozenset[str]] = field(repr=False)  # test id -> "path:name" of what it reaches; "" collecting
    took: Mapping[str, float] = field(default_factory=dict, repr=False)  # seconds by test id, and of reading each file

    # What a language says

    @property
    @abstractmethod
    def task_files(self) -> TaskFiles: ...

    @property
    @abstractmethod
    def symbols(self) -> Mapping[str, S]:
        """Everything that the project defines, by "path:name"."""

    @property
    @abstractmethod
    def sources(self) -> Mapping[str, Source[S]]:
        """The code of the project itself, by path."""

    @abstractmethod
    def read(self, path: str, data: bytes) -> Source[S] | None:
        """A file as it was or might be; None for what is not of the language."""

    @property
    @abstractmethod
    def test_files(self) -> Collection[str]: ...

    @abstractmethod
    def is_test(self, path: str) -> bool:
        """Whether a file belongs to the tests."""

    @abstractmethod
    def place(self, test: str) -> LocatedTest:
        """Where a test is written."""

    @abstractmethod
    def collected(self, test: str) -> LocatedTest:
        """Where a test is found, which another place may have written."""

    @abstractmethod
    def title(self, test: str) -> str:
        """What somebody in a hurry calls a test."""

    @abstractmethod
    def written(self, path: str, data: bytes) -> Mapping[str, str]:
        """What a test file holds, by the names of places, with the text of each."""

    @abstractmethod
    def is_movable(self, place: LocatedTest) -> bool:
        """Whether a test can be taken out of its file."""

    @abstractmethod
    def mistakes(self, symbol: S) -> list[Mutation[S]]:
        """Every small wrong change that is known for a function."""

    @abstractmethod
    def delete(self, symbols: Sequence[S], extent: Extent) -> DeletedFunctions[S]:
        """Without these functions: their bodies; or all of them, or of their class, where nothing else needs it."""

    @abstractmethod
    def tests_with(self, stretches: Collection[tuple[str, ...]]) -> Iterator[LocatedTest]:
        """Tests that contain one of these runs of `COPIED` lines."""

    @abstractmethod
    def without_tests(self, hidden: Collection[LocatedTest]) -> Iterator[tuple[str, bytes | None]]:
        """The files that hold hidden tests, without them; None for a file that has no other test."""

    @abstractmethod
    def used_names(self, tests: Sequence[str]) -> list[str]:
        """What tests take from the project, a line for each module."""

    @abstractmethod
    def mentioned(self, tests: Sequence[str]) -> set[str]:
        """Every name in the source of these tests."""

    def stands_in_tests(self, test: str) -> bool:
        """Whether a test is written in a file of tests. One in the code itself, a doctest, goes with what is deleted
        and can be edited by whoever it should grade: no task asks for it."""
        return self.collected(test).path in self.test_files

    def answer_bits(self, places: Collection[LocatedTest]) -> float | None:
        """What the expected values in these tests are worth, by their text; None where none are withheld."""
        return None

    def timing_tests(self) -> set[str]:
        """Green tests that take the time themselves: what they say depends on how busy the machine is."""
        return set()

    # What follows from that

    @property
    def suite(self) -> Suite:
        return self.environment.suite

    @property
    def code(self) -> Collection[str]:
        """The files of the project itself."""
        return self.sources.keys()

    @cached_property
    def places(self) -> dict[LocatedTest, tuple[str, ...]]:
        """The green ids of each test function."""
        found: dict[LocatedTest, list[str]] = {}
        for test in self.green:
            found.setdefault(self.place(test), []).append(test)
        return {place: tuple(ids) for place, ids in found.items()}

    @cached_property
    def bits(self) -> dict[str, int]:
        """A bit for each green test: sets of tests are numbers."""
        return {test: 1 << number for number, test in enumerate(self.green)}

    @cached_property
    def reach(self) -> dict[str, int]:
        """For each function that tests reach, which ones do."""
        found: dict[str, int] = {}
        for test in self.green:
            for name in self.traces.get(test, ()):
                known = outermost(name)
                found[known] = found.get(known, 0) | self.bits[test]
        return {name: tests for name, tests in found.items() if name in self.symbols}

    def reaching(self, names: Iterable[str]) -> int:
        """The tests that reach any of these functions."""
        tests = 0
        for name in names:
            tests |= self.reach[name]
        return tests

    def named(self, tests: int) -> list[str]:
        """The ids of a set of tests, in their order."""
        found = []
        while tests:
            lowest = tests & -tests
            found.append(self.green[lowest.bit_length() - 1])
            tests ^= lowest
        return found

    def masked(self, tests: Iterable[str]) -> int:
        return sum(self.bits[test] for test in set(tests) if test in self.bits)

    @cached_property
    def early(self) -> frozenset[str]:
        """Functions that run while tests are collected: without one of these nothing can be imported."""
        return frozenset(map(outermost, self.traces.get("", ())))


def by_file(places: Collection[LocatedTest]) -> list[tuple[str, set[str]]]:
    """The names of test functions by their file, in the order of the files."""
    found: dict[str, set[str]] = {}
    for place in places:
        found.setdefault(place.path, set()).add(place.name)
    return sorted(found.items())


def outermost(name: str) -> str:
    """The function that a traced one is written in: "path:f" for "path:f.<locals>.g"."""
    return name.partition(".<locals>")[0]


def stretches(source: str, lines: int) -> set[tuple[str, ...]]:
    """Runs of so many neighbouring lines that say something, without their indentation."""
    kept = [line.strip() for line in source.splitlines() if len(line.strip()) > 3]
    return {tuple(kept[start : start + lines]) for start in range(len(kept) - lines + 1)}
