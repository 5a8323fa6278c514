"""Tests of a Python repository as text: which can be taken out of their files, the files without them, what they name.

Knows sources; runs nothing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from etude.forge.languages.base import COPIED, LocatedTest, by_file, stretches
from etude.forge.languages.edits import Edit
from etude.forge.languages.python.source import Defined, Module, identifiers
from etude.tasks.grading.inherited_tests import classes, collected, imported

if TYPE_CHECKING:
    from etude.forge.languages.python.repository import PythonRepository

STOPWATCHES: Final = {"timeit", "default_timer"} | {
    f"{clock}{unit}" for clock in ("perf_counter", "process_time", "thread_time", "monotonic") for unit in ("", "_ns")
}
WITHOUT_TESTS: Final = ("TestCase", "object")  # how classes are called that bring no tests


def is_movable(repository: PythonRepository, place: LocatedTest) -> bool:
    """Whether a test can be taken out of its file: it is written there once, and whoever inherits it is known."""
    module = repository.tests.get(place.path)
    if module is not None and not place.name:
        return not _is_imported(repository, place.path) and not place.path.endswith("conftest.py")
    found = module.definitions.get(place.name) if module is not None else None
    if module is None or found is None or found.repeated:
        return False
    heirs = repository.heirs.get(found.owner.rpartition(".")[2], set()) - {place.path}
    return not heirs & repository.files_of_lost(found.short)


def inherits_from_package(repository: PythonRepository, path: str, owner: str) -> bool:
    """Whether a class of the tests, or one that it inherits from, has a base that no test file writes and that may have
    tests of its own."""
    todo, seen = [(path, owner)], set[tuple[str, str]]()
    while todo:
        each = todo.pop()
        text = repository.tests[each[0]].text
        node = classes(text).get(each[1])
        if node is None or each in seen:
            continue
        seen.add(each)
        for base in node.bases:
            local = base.id if isinstance(base, ast.Name) else base.attr if isinstance(base, ast.Attribute) else ""
            _, name = imported(text).get(local, ("", local))
            files = [each[0]] if local in classes(text) else repository.files_with_class(name)
            if not files and not name.endswith(WITHOUT_TESTS):
                return True
            todo += [(file, local if file == each[0] else name) for file in files]
    return False


def timing_tests(repository: PythonRepository) -> set[str]:
    """Green tests that take the time themselves, or in a helper: they fail when the machine is busy."""
    timing = {
        f"{path}:{name}"
        for path, module in repository.tests.items()
        for name, each in module.definitions.items()
        if not each.uses.isdisjoint(STOPWATCHES)
    }
    own = {test: f"{place.path}:{place.name}" for test in repository.green for place in [repository.place(test)]}
    return {
        test
        for test in repository.green
        if own[test] in timing or not timing.isdisjoint(repository.traces.get(test, ()))
    }


def without_tests(repository: PythonRepository, hidden: Collection[LocatedTest]) -> Iterator[tuple[str, bytes | None]]:
    """The files that hold hidden tests, without them; None for a file that has no other test."""
    for path, names in by_file(hidden):
        module = repository.tests[path]
        left = [place for place in repository.places if place.path == path and place.name not in names]
        if not left and not _is_imported(repository, path):
            yield path, None
        else:
            yield path, module.edited(_edits(module, names))
    for path in _data(repository, {place.path for place in hidden if not place.name}):
        yield path, None


def _data(repository: PythonRepository, hidden: Collection[str]) -> Iterator[str]:
    """Data beside the tests that hidden files name, by name or without its ending, and no other test file does."""
    if not hidden:
        return
    theirs = set().union(*(repository.words[path] for path in hidden))
    others = set().union(*(words for path, words in repository.words.items() if path not in hidden))
    for path in repository.files:
        name = path.rpartition("/")[2]
        words = {name, name.partition(".")[0]}
        if path not in repository.tests and repository.is_test(path) and words & theirs and not words & others:
            yield path


def _edits(module: Module, names: set[str]) -> Iterator[Edit]:
    for name in sorted(names):
        found = module.definitions[name]
        owner = module.definitions.get(found.owner) if found.owner else None
        if owner is None:
            yield module.without(found)
            continue
        inside = [f"{owner.name}.{each.name}" for each in owner.node.body if isinstance(each, Defined)]
        rest = [each for each in owner.code if not isinstance(each, Defined)]
        if rest or not names.issuperset(inside):
            yield module.without(found)
        elif len(re.findall(rf"\b{re.escape(owner.short)}\b", module.text)) == 1 and not owner.alone:
            yield module.without(owner)
        else:
            yield module.without_body(owner, b"pass")


def _is_imported(repository: PythonRepository, path: str) -> bool:
    """Whether another test file takes something from this one."""
    stem = re.escape(path.removesuffix(".py").rpartition("/")[2])
    takes = re.compile(rf"(?m)^\s*(from\s+\S*\b{stem}\b|(from\s+\S+\s+)?import\s.*\b{stem}\b)")
    return any(takes.search(each.text) for other, each in repository.tests.items() if other != path)


def tests_with(repository: PythonRepository, copied: Collection[tuple[str, ...]]) -> Iterator[LocatedTest]:
    """Tests that contain one of these runs of lines. What helpers of theirs contain is for the audit to find."""
    firsts = {stretch[0] for stretch in copied}
    for path, module in repository.tests.items():
        if not any(first in module.text for first in firsts):
            continue
        for name, each in module.definitions.items():
            if LocatedTest(path, name) not in repository.places:
                continue
            if not stretches(module.source(each), COPIED).isdisjoint(copied):
                yield LocatedTest(path, name)


def used_names(repository: PythonRepository, tests: Sequence[str]) -> list[str]:
    """What test functions take from the project, as they import it."""
    found: dict[str, set[str]] = {}
    for path in sorted({LocatedTest(*collected(test)).path for test in tests}):
        module = repository.tests.get(path)
        if module is None:
            continue
        mentioned: set[str] = set()
        for test in tests:
            place = LocatedTest(*collected(test))
            each = module.definitions.get(place.name) if place.path == path else None
            mentioned |= each.uses if each is not None else set()
        if not mentioned:
            continue
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ImportFrom) and (repository.resolve(path, node) or _is_package(repository, node)):
                names = {alias.name for alias in node.names if (alias.asname or alias.name) in mentioned}
                if names:
                    found.setdefault(_module_name(repository, path, node), set()).update(names)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    top = (alias.asname or alias.name).partition(".")[0]
                    if top in mentioned and _top(repository, alias.name):
                        found.setdefault(alias.name, set()).update(_attributes(module.tree, top, mentioned))
    return [
        f"from `{name}`: " + ", ".join(f"`{each}`" for each in sorted(names))
        for name, names in sorted(found.items())
        if names
    ]


def _module_name(repository: PythonRepository, path: str, node: ast.ImportFrom) -> str:
    """The whole name, also where an import is relative: `from .` tells a reader of the instruction nothing."""
    dotted = "." * node.level + (node.module or "")
    files = repository.resolve(path, node) if node.level else []
    if not files:
        return dotted
    file = files[0].removesuffix(".py").removesuffix("/__init__")
    # The longest first: with the roots "" and "src", src/shop is shop.
    roots = sorted((f"{root}/" for root in repository.environment.paths if root), key=len, reverse=True)
    root = next((root for root in roots if file.startswith(root)), "")
    return file.removeprefix(root).replace("/", ".")


def _attributes(tree: ast.Module, top: str, mentioned: set[str]) -> Iterator[str]:
    """What is asked of a module by its name: `json.dumps` gives `dumps`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in mentioned and ast.unparse(node.value) == top:
            yield node.attr


def _is_package(repository: PythonRepository, node: ast.ImportFrom) -> bool:
    return not node.level and _top(repository, node.module or "")


def _top(repository: PythonRepository, name: str) -> bool:
    """Whether a dotted name belongs to the project."""
    first = name.partition(".")[0]
    roots = [f"{root}/" if root else "" for root in repository.environment.paths or ("",)]
    return any(
        f"{root}{first}.py" in repository.modules or f"{root}{first}/__init__.py" in repository.modules
        for root in roots
    )


def mentioned(repository: PythonRepository, tests: Sequence[str]) -> set[str]:
    """Every name in the source of these tests."""
    found: set[str] = set()
    for place in {LocatedTest(*collected(test)) for test in tests}:
        module = repository.tests.get(place.path)
        each = module.definitions.get(place.name) if module is not None else None
        found |= set(identifiers(each.node)) if each is not None else set()
    return found
