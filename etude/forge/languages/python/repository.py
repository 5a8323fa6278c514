"""What is known about a Python repository: its code, its tests, and which test reaches which function.

Made once for each repository and never changed. Knows nothing about tasks; where the traces come from is `baseline`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from etude.forge.languages.base import DeletedFunctions, Extent, LocatedTest, Mutation, Repository, TaskFiles
from etude.forge.languages.python import deletions
from etude.forge.languages.python import tests as python_tests
from etude.forge.languages.python.mutations import mutations
from etude.forge.languages.python.source import Definition, Module, identifiers
from etude.forge.languages.python.task_files import PYTHON
from etude.tasks.grading.inherited_tests import InheritedTests, collected
from etude.tasks.grading.withheld.estimate import estimated_bits

TEST_FOLDERS = ("test", "tests")
TEST_FILE = re.compile(r"(^|/)(test_[^/]*|[^/]*_tests?|tests?|conftest)\.py$")
# Folders whose code belongs to the project and is not what it does.
ASIDE = ("doc", "docs", "example", "examples", "benchmark", "benchmarks", "scripts", "tools", "ci", ".github")
ASIDE_FILES = ("setup.py", "noxfile.py", "tasks.py", "fabfile.py", "conf.py")


@dataclass(frozen=True, eq=False)
class PythonRepository(Repository[Definition]):
    """A Python repository as the makers of candidates see it."""

    language: ClassVar[str] = "python"

    @property
    def task_files(self) -> TaskFiles:
        return PYTHON

    @property
    def symbols(self) -> dict[str, Definition]:
        return self.definitions

    @property
    def sources(self) -> dict[str, Module]:
        return self.modules

    def read(self, path: str, data: bytes) -> Module | None:
        return Module.read(path, data)

    @property
    def test_files(self) -> Collection[str]:
        return self.tests.keys()

    def collected(self, test: str) -> LocatedTest:
        return place_of(test)

    def stands_in_tests(self, test: str) -> bool:
        path, name = collected(test)
        # pytest names doctests by their module: tests/test_a.py::tests.test_a.helper
        module = path.removesuffix(".py").rpartition("/")[2]
        is_doctest = re.fullmatch(rf"(.*\.)?{re.escape(module)}(\..*)?", test.partition("::")[2].partition("[")[0])
        return path in self.tests and not (is_doctest and name not in self.tests[path].definitions)

    def title(self, test: str) -> str:
        return place_of(test).name.rpartition(".")[2]

    def written(self, path: str, data: bytes) -> dict[str, str]:
        module = Module.read(path, data)
        return {name: module.source(each) for name, each in module.definitions.items()} if module is not None else {}

    def is_movable(self, place: LocatedTest) -> bool:
        return python_tests.is_movable(self, place)

    def mistakes(self, symbol: Definition) -> list[Mutation[Definition]]:
        return mutations(self.modules[symbol.path], symbol)

    def delete(self, symbols: Sequence[Definition], extent: Extent) -> DeletedFunctions[Definition]:
        return deletions.delete(self, symbols, extent)

    def answer_bits(self, places: Collection[LocatedTest]) -> float:
        names: dict[str, set[str]] = {}
        for place in places:
            names.setdefault(place.path, set()).add(place.name)
        return sum(estimated_bits(self.tests[path].text, found) for path, found in names.items() if path in self.tests)

    def timing_tests(self) -> set[str]:
        return python_tests.timing_tests(self)

    def tests_with(self, stretches: Collection[tuple[str, ...]]) -> Iterator[LocatedTest]:
        return python_tests.tests_with(self, stretches)

    def without_tests(self, hidden: Collection[LocatedTest]) -> Iterator[tuple[str, bytes | None]]:
        return python_tests.without_tests(self, hidden)

    def used_names(self, tests: Sequence[str]) -> list[str]:
        return python_tests.used_names(self, tests)

    def mentioned(self, tests: Sequence[str]) -> set[str]:
        return python_tests.mentioned(self, tests)

    @cached_property
    def modules(self) -> dict[str, Module]:
        """The code of the project itself, by path."""
        return self._read(lambda path: path.endswith(".py") and not self.is_test(path) and not _is_aside(path))

    @cached_property
    def stubs(self) -> dict[str, Module]:
        """Type stubs beside the code."""
        return self._read(lambda path: path.endswith(".pyi") and not self.is_test(path))

    @cached_property
    def tests(self) -> dict[str, Module]:
        """Test files, with what they share (`conftest.py`)."""
        return self._read(lambda path: path.endswith(".py") and self.is_test(path))

    def is_test(self, path: str) -> bool:
        """Whether a file belongs to the tests."""
        folders = path.split("/")[:-1]
        inside = any(path.startswith(f"{folder}/") for folder in self._test_folders)
        given = path in self.suite.folders
        return given or inside or TEST_FILE.search(path) is not None or any(each in TEST_FOLDERS for each in folders)

    @cached_property
    def _test_folders(self) -> list[str]:
        """Folders that the suite is started on, as far as they hold tests and not the project with its tests."""
        found = []
        for folder in (each.strip("/") for each in self.suite.folders):
            names = [path for path in self.files if path.startswith(f"{folder}/") and path.endswith(".py")]
            doubtful = [
                path for path in names if not set(path.split("/")[:-1]) & set(TEST_FOLDERS) and "/__init__" not in path
            ]
            tests = [path for path in doubtful if TEST_FILE.search(path)]
            if folder not in ("", ".") and tests and 2 * len(tests) >= len(doubtful):
                found.append(folder)
        return found

    @cached_property
    def definitions(self) -> dict[str, Definition]:
        """Every function, method and class of the project, by "path:name"."""
        return {each.id: each for module in self.modules.values() for each in module.definitions.values()}

    def place(self, test: str) -> LocatedTest:
        """Where a test is written: an inherited one in the class that it comes from."""
        place = place_of(test)
        return LocatedTest(place.path, "") if place.path in self._making_tests else self._homes.get(place) or place

    @cached_property
    def _homes(self) -> dict[LocatedTest, LocatedTest | None]:
        return {place: self._home(place) for place in dict.fromkeys(map(place_of, self.green))}

    @cached_property
    def _making_tests(self) -> frozenset[str]:
        """Files of tests that stand in no source, made from data for example; what an installed package has written
        and a class inherits from there was not made here."""
        written = {name.rpartition(".")[2] for module in self.tests.values() for name in module.definitions}
        return frozenset(
            place.path
            for place in self._lost
            if place.name.rpartition(".")[2] not in written
            and not python_tests.inherits_from_package(self, place.path, place.name.rpartition(".")[0])
        )

    @cached_property
    def _lost(self) -> list[LocatedTest]:
        """Where tests are collected whose source was not found."""
        return [place for place, home in self._homes.items() if home is None and place.path in self.tests]

    def files_with_class(self, name: str) -> list[str]:
        """Test files that write a class of this name."""
        return [path for path, module in self.tests.items() if name in module.definitions]

    def files_of_lost(self, name: str) -> set[str]:
        """Files with a test of this name whose source was not found."""
        return {place.path for place in self._lost if place.name.rpartition(".")[2] == name}

    def _home(self, place: LocatedTest) -> LocatedTest | None:
        if place.path not in self.tests:
            return None
        home = LocatedTest(*self._heritage.home(place.path, place.name))
        return home if home.name in self.tests[home.path].definitions else None

    @cached_property
    def _heritage(self) -> InheritedTests:
        return InheritedTests({path: module.text for path, module in self.tests.items()})

    @cached_property
    def words(self) -> dict[str, set[str]]:
        """Names that the texts in each test file could mean: whole, and the parts of paths."""
        return {
            path: {
                word
                for node in ast.walk(module.tree)
                if isinstance(node, ast.Constant) and isinstance(node.value, str)
                for word in node.value.split("/")
            }
            for path, module in self.tests.items()
        }

    @cached_property
    def heirs(self) -> dict[str, set[str]]:
        """For each name that a class of the tests inherits from, the files of those classes."""
        found: dict[str, set[str]] = {}
        for path, module in self.tests.items():
            for node in ast.walk(module.tree):
                for base in node.bases if isinstance(node, ast.ClassDef) else ():
                    for name in identifiers(base):
                        found.setdefault(name, set()).add(path)
        return found

    def resolve(self, path: str, node: ast.ImportFrom) -> list[str]:
        """The files of the project that `from X import` could mean."""
        parts = node.module.split(".") if node.module else []
        if node.level:
            folders = path.split("/")[: -node.level]
            bases = ["/".join([*folders, *parts])]
        else:
            bases = ["/".join([*filter(None, root.split("/")), *parts]) for root in self.environment.paths or ("",)]
        possible = [f"{base}{ending}".lstrip("/") for base in bases for ending in (".py", "/__init__.py")]
        return [each for each in possible if each in self.modules]

    def _read(self, matches: Callable[[str], bool]) -> dict[str, Module]:
        found = {}
        for path in self.files:
            if self.files.kind(path) != "link" and matches(path):
                module = Module.read(path, self.files[path])
                if module is not None:
                    found[path] = module
        return found


def place_of(test: str) -> LocatedTest:
    """Where the function of an id stands: `a/test_b.py::C::test_d[e]`."""
    return LocatedTest(*collected(test))


def _is_aside(path: str) -> bool:
    first, _, rest = path.partition("/")
    return path in ASIDE_FILES or (bool(rest) and (first in ASIDE or first.startswith(".")))
