"""What is known about a JavaScript repository: its code, its tests, and which test reaches which function.

The engine tells what a test reached by places in a file; here they get the names of the functions that stand there.
A test is a call in its file, and goes as one. Made once for each repository and never changed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Final

from etude.forge.install.javascript import project_facts as project
from etude.forge.languages.base import (
    COPIED,
    DeletedFunctions,
    Extent,
    LocatedTest,
    Mutation,
    Repository,
    TaskFiles,
    by_file,
)
from etude.forge.languages.base import (
    stretches as runs_of_lines,
)
from etude.forge.languages.edits import edited
from etude.forge.languages.javascript import deletions
from etude.forge.languages.javascript.mutations import mutations
from etude.forge.languages.javascript.source import JavaScriptFile, ScriptDefinition
from etude.forge.languages.javascript.task_files import JAVASCRIPT
from etude.tasks.grading.withheld.estimate import estimated_bits
from etude.tasks.grading.withheld.javascript_rewrite import rewrite
from etude.tasks.javascript.parsing import ENDINGS, text
from etude.tasks.javascript.test_source import TestFile, Unit, mentioned, read, required_in
from etude.tasks.sandbox_side.node_tests import JOINT

LARGEST: Final = 1 << 20  # bytes of a file that is read
_BOUND = re.compile(
    r"(?:const|let|var)\s+(?P<names>\w+|\{[^}]*\})\s*=\s*require\(\s*['\"](?P<module>\.[^'\"]*)['\"]\s*\)"
    r"|import\s+(?P<taken>\w+|\{[^}]*\}|\*\s+as\s+\w+)\s+from\s+['\"](?P<source>\.[^'\"]*)['\"]"
)


@dataclass(frozen=True, eq=False)
class JavaScriptRepository(Repository[ScriptDefinition]):
    """A JavaScript repository as the makers of candidates see it. `traces` come as the engine reported them."""

    language: ClassVar[str] = "javascript"

    def __post_init__(self) -> None:
        object.__setattr__(self, "traces", self._named(self.traces))

    def _named(self, traces: Mapping[str, frozenset[str]]) -> dict[str, frozenset[str]]:
        places = set().union(*traces.values())
        names = {place: found for place in places if (found := self._name(place))}
        return {test: frozenset(names[place] for place in reached & names.keys()) for test, reached in traces.items()}

    def _name(self, place: str) -> str:
        """The function that stands at "path:start:end"."""
        path, start, end = place.rsplit(":", 2)
        script = self.scripts.get(path)
        found = script.around(int(start), int(end)) if script is not None else None
        return found.id if found is not None else ""

    @property
    def task_files(self) -> TaskFiles:
        return JAVASCRIPT

    @cached_property
    def scripts(self) -> dict[str, JavaScriptFile]:
        """The code of the project itself, by path."""
        return {
            path: script
            for path in self._readable
            if project.is_code(path) and not self.is_test(path)
            if (script := JavaScriptFile.read(path, self.files[path])) is not None
        }

    @cached_property
    def tests(self) -> dict[str, TestFile]:
        """Test files, with what they share."""
        texts = {path: self.files.text(path) for path in self._readable if self.is_test(path)}
        return {path: found for path, source in texts.items() if (found := read(source)) is not None}

    @property
    def _readable(self) -> list[str]:
        plain = [path for path in self.files if path.endswith(ENDINGS) and self.files.kind(path) != "link"]
        return [path for path in plain if self.files.size(path) <= LARGEST]

    @cached_property
    def symbols(self) -> dict[str, ScriptDefinition]:
        return {each.id: each for script in self.scripts.values() for each in script.definitions.values()}

    @property
    def sources(self) -> dict[str, JavaScriptFile]:
        return self.scripts

    def read(self, path: str, data: bytes) -> JavaScriptFile | None:
        return JavaScriptFile.read(path, data)

    @property
    def test_files(self) -> Collection[str]:
        return self.tests.keys()

    def is_test(self, path: str) -> bool:
        return path in self.suite.folders or project.is_test(path)

    def place(self, test: str) -> LocatedTest:
        path, _, name = test.partition("::")
        return LocatedTest(path, self.tests[path].home(name).path if path in self.tests else "")

    def collected(self, test: str) -> LocatedTest:
        return self.place(test)

    def answer_bits(self, places: Collection[LocatedTest]) -> float:
        names = by_file(places)
        known = [(self.tests[path].source, found) for path, found in names if path in self.tests]
        return sum(estimated_bits(source, found, rewrite) for source, found in known)

    def title(self, test: str) -> str:
        name = test.partition("::")[2].partition("[")[0].rpartition(JOINT)[2]
        return f'"{name}"' if " " in name else name  # most are sentences, which would run on in another one

    def written(self, path: str, data: bytes) -> dict[str, str]:
        file = read(data.decode("utf-8", "surrogateescape"))
        found: dict[str, str] = {}
        for unit in file.top.units() if file is not None else ():
            found[unit.path] = found.get(unit.path, "") + text(unit.statement)
        return found

    def is_movable(self, place: LocatedTest) -> bool:
        """Whether no other test goes with it: a call that is a statement, or a file that nobody takes anything from."""
        if place.path not in self.tests:
            return False
        if not place.name:
            return not self._is_taken(place.path)
        units = self.tests[place.path].all_at(place.name)
        others = any(each.path == place.path and each.name.startswith(place.name + JOINT) for each in self.places)
        return bool(units) and not others and all(self._goes_alone(place.path, unit) for unit in units)

    def _goes_alone(self, path: str, unit: Unit) -> bool:
        statement = unit.statement
        inside = [
            each
            for each in self.tests[path].top.units()
            if each.call is not None and statement.start_byte <= each.call.start_byte < statement.end_byte
        ]
        return statement.type == "expression_statement" and all(each.path.startswith(unit.path) for each in inside)

    def mistakes(self, symbol: ScriptDefinition) -> list[Mutation[ScriptDefinition]]:
        return mutations(self.scripts[symbol.path], symbol)

    def delete(self, symbols: Sequence[ScriptDefinition], extent: Extent) -> DeletedFunctions[ScriptDefinition]:
        return deletions.delete(self, symbols, extent)

    def tests_with(self, stretches: Collection[tuple[str, ...]]) -> Iterator[LocatedTest]:
        for place in self.places:
            file = self.tests.get(place.path)
            for unit in file.all_at(place.name) if file is not None and place.name else ():
                source = (unit.statement.text or b"").decode("utf-8", "replace")
                if not runs_of_lines(source, COPIED).isdisjoint(stretches):
                    yield place

    def without_tests(self, hidden: Collection[LocatedTest]) -> Iterator[tuple[str, bytes | None]]:
        for path, names in by_file(hidden):
            left = [place for place in self.places if place.path == path and place.name not in names]
            if not left and not self._is_taken(path):
                yield path, None
            else:
                script = JavaScriptFile(path, self.files[path])
                units = [unit for name in sorted(names - {""}) for unit in self.tests[path].all_at(name)]
                yield path, edited(self.files[path], [script.without(unit.statement) for unit in units])

    def _is_taken(self, path: str) -> bool:
        """Whether another test file takes something from this one."""
        stem = path.rpartition("/")[2].rpartition(".")[0]
        taken = [each for other, file in self.tests.items() if other != path for each in required_in(file.source)]
        return any(each.startswith(".") and re.search(rf"(^|/){re.escape(stem)}(\.\w+)?$", each) for each in taken)

    def used_names(self, tests: Sequence[str]) -> list[str]:
        found: dict[str, set[str]] = {}
        for path in sorted({test.partition("::")[0] for test in tests} & self.tests.keys()):
            source = self.tests[path].source
            mine = self.mentioned([test for test in tests if test.startswith(f"{path}::")])
            for bound in _BOUND.finditer(source):
                module, names = bound["module"] or bound["source"], bound["names"] or bound["taken"]
                if names.startswith("{"):
                    taken = {each.split(":")[0].split(" as ")[0].strip() for each in names.strip("{} \n").split(",")}
                else:
                    own = names.rpartition(" ")[2]
                    taken = set(re.findall(rf"\b{re.escape(own)}\.(\w+)", source))
                found.setdefault(module, set()).update(taken & mine)
        return [
            f"from `{module}`: " + ", ".join(f"`{name}`" for name in sorted(names))
            for module, names in sorted(found.items())
            if names
        ]

    def mentioned(self, tests: Sequence[str]) -> set[str]:
        found: set[str] = set()
        for place in {self.place(test) for test in tests}:
            file = self.tests.get(place.path)
            for unit in file.all_at(place.name) if file is not None else ():
                found |= mentioned(unit)
        return found
