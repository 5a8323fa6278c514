"""Where a test is written that several classes inherit: whoever changes its source changes it for all of them.

Classes are looked for in the file of the test first, then in the test file that it imports them from, then among all of
them, by name. What comes from an installed package has no home here. Reads sources, runs nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from etude.core.errors import EtudeError
from etude.tasks.grading.test_source import is_super, parsed

Written = ast.FunctionDef | ast.AsyncFunctionDef


def collected(test: str) -> tuple[str, str]:
    """File and `Class.method` of a test's id: where it is collected, and it may be written elsewhere."""
    if "::" in test:
        path, *rest = test.partition("[")[0].split("::")
        return path, ".".join(rest)
    if test.count(".") < 2:
        raise EtudeError(f"{test!r} is no test's id: write module.Class.method, or path.py::test for pytest")
    module, kind, method = test.rsplit(".", 2)
    return f"{module.replace('.', '/')}.py", f"{kind}.{method}"


class InheritedTests:
    """The classes of a suite's files, read when they are asked for."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self.sources = sources

    def home(self, path: str, name: str) -> tuple[str, str]:
        """File and `Class.method` of the function that runs as this test; the same again where none is found."""
        owner, _, method = name.rpartition(".")
        for file, own in self._meant(path, owner or method):
            found = self._find(file, own, method, set()) if owner else (file, own)
            if found is not None:
                return found
        return path, name

    def _meant(self, path: str, name: str) -> Iterator[tuple[str, str]]:
        """The file that a test's class or function is written in: this one, or one that it is imported from."""
        source = self.sources[path]
        if name not in imported(source) or name in _defined(source):
            yield path, name
        else:
            yield from self._elsewhere(path, name)

    def _find(self, path: str, owner: str, method: str, seen: set[tuple[str, str]]) -> tuple[str, str] | None:
        node = classes(self.sources[path]).get(owner)
        # `seen` ends a loop of classes that inherit each other, which broken code may write.
        if node is None or (path, owner) in seen:
            return None
        seen.add((path, owner))
        own = next((part for part in node.body if isinstance(part, Written) and part.name == method), None)
        # One that only adds to what it inherits fails with it, so it belongs there.
        if own is None or _asks_above(own):
            for base in node.bases:
                for location in self._classes(path, owner, base):
                    found = self._find(*location, method, seen)
                    if found is not None:
                        return found
        return (path, f"{owner}.{method}") if own is not None else None

    def _classes(self, path: str, owner: str, base: ast.expr) -> Iterator[tuple[str, str]]:
        """The classes that a base of `owner` could be."""
        local = base.id if isinstance(base, ast.Name) else base.attr if isinstance(base, ast.Attribute) else ""
        # A class whose base is called like itself has imported that.
        if isinstance(base, ast.Name) and local != owner and local in classes(self.sources[path]):
            yield path, local
            return
        yield from self._elsewhere(path, local)

    def _elsewhere(self, path: str, local: str) -> Iterator[tuple[str, str]]:
        """What an imported name could be, that of the module which is named first."""
        module, name = imported(self.sources[path]).get(local, ("", local))
        named = [
            other
            for other, text in self.sources.items()
            # A text search first: parsing every file of a suite for each base costs too much.
            if other != path and f" {name}" in text and name in _defined_or_none(text)
        ]
        yield from ((other, name) for other in sorted(named, key=lambda other: _stem(other) != module))


def classes(source: str) -> dict[str, ast.ClassDef]:
    """The classes at the top of a module."""
    return {node.name: node for node in parsed(source).body if isinstance(node, ast.ClassDef)}


def _defined(source: str) -> set[str]:
    """The names of the classes and functions at the top of a module."""
    return {node.name for node in parsed(source).body if isinstance(node, ast.ClassDef | Written)}


def _defined_or_none(source: str) -> set[str]:
    try:
        return _defined(source)
    except (SyntaxError, ValueError, RecursionError):  # data that is called like a module
        return set()


def imported(source: str) -> dict[str, tuple[str, str]]:
    """What a module calls a name that it imports -> the last part of the module that it is from, and its name there."""
    found = [node for node in parsed(source).body if isinstance(node, ast.ImportFrom)]
    return {
        alias.asname or alias.name: ((node.module or "").rpartition(".")[2], alias.name)
        for node in found
        for alias in node.names
    }


def _stem(path: str) -> str:
    return path.rpartition("/")[2].removesuffix(".py")


def _asks_above(function: Written) -> bool:
    """Whether it calls what it overrides: `super().test_x()`."""
    return any(
        isinstance(node, ast.Attribute) and node.attr == function.name and is_super(node.value)
        for node in ast.walk(function)
    )
