"""What names mean all over a repository: where each is defined, bound, imported from elsewhere or asked of an object.

Made once for each repository. A name that is bound in one place only, and asked of nothing foreign, can be exchanged by
tokens. Files that are no Python count as words. Knows sources; changes nothing.
"""

from __future__ import annotations

import ast
import collections.abc
import datetime
import io
import logging
import pathlib
import re
import threading
import unittest
import unittest.mock
from collections import Counter
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Final

from etude.forge.languages.python.repository import PythonRepository
from etude.forge.languages.python.source import Module
from etude.tasks.grading.submission import STEERING

DOCUMENTS: Final = (".md", ".rst", ".txt")
CHANGES: Final = re.compile(r"(^|/)(change|history|news|release|upgrad|migrat|authors|licen[cs]e)[^/]*$", re.IGNORECASE)
LARGEST: Final = 1 << 20  # bytes of a document


@dataclass(frozen=True)
class Uses:
    """A repository's names."""

    repository: PythonRepository

    @cached_property
    def python(self) -> dict[str, Module]:
        """Every Python file: the project's code, its stubs, its tests, and what lies aside."""
        repository = self.repository
        found = {**repository.modules, **repository.stubs, **repository.tests}
        for path in repository.files:
            if path.endswith(".py") and path not in found and repository.files.kind(path) != "link":
                module = Module.read(path, repository.files[path])
                if module is not None:
                    found[path] = module
        return found

    @cached_property
    def documents(self) -> dict[str, str]:
        """Texts that speak of the code as it is now: what tells of the past stays as it is."""
        found = {}
        for path in self.repository.files:
            plain = self.repository.files.kind(path) == "file" and self.repository.files.size(path) < LARGEST
            # A changelog says what was; a rename does not change the past.
            past = CHANGES.search(path) or ".egg-info/" in path
            if path.endswith(DOCUMENTS) and plain and not past and not self.repository.is_test(path):
                try:
                    found[path] = self.repository.files[path].decode()
                except UnicodeDecodeError:
                    continue
        return found

    @cached_property
    def settings(self) -> str:
        """All other texts that may name code: nobody edits these, so what they name keeps its name."""
        texts = []
        for path in self.repository.files:
            other = path not in self.python and path not in self.documents and not CHANGES.search(path)
            steering = STEERING.search(path) and path not in self.repository.tests
            if (other or steering) and ".egg-info/" not in path and self.repository.files.size(path) < LARGEST:
                texts.append(self.repository.files[path].decode("utf-8", "replace"))
        return "\n".join(texts)

    @cached_property
    def setting_words(self) -> frozenset[str]:
        return frozenset(re.findall(r"\w+", self.settings))

    @cached_property
    def words(self) -> frozenset[str]:
        """Every word of every text: what is not here is free."""
        documents = (word for text in self.documents.values() for word in re.findall(r"\w+", text))
        return self.setting_words.union(documents, *(module.words for module in self.python.values()))

    @cached_property
    def defined(self) -> Counter[str]:
        """How many functions and classes have a name, stubs left out."""
        return Counter(
            node.name
            for path, module in self.python.items()
            # A stub repeats what its module defines.
            if path not in self.repository.stubs
            for node in ast.walk(module.tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        )

    @cached_property
    def bound(self) -> frozenset[str]:
        """Names that are parameters, variables, keywords or attributes somewhere, or come from elsewhere."""
        found: set[str] = set()
        for path, module in self.python.items():
            for node in ast.walk(module.tree):
                found.update(self._bound(path, node))
        return frozenset(found)

    def _bound(self, path: str, node: ast.AST) -> list[str]:
        if isinstance(node, ast.arg | ast.keyword):
            return [node.arg or ""]
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            return [node.id]
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
            return [node.attr]
        if isinstance(node, ast.Global | ast.Nonlocal):
            return node.names
        if isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar):
            return [node.name or ""]
        if isinstance(node, ast.Import):
            # Each part of a dotted import binds or asks a name.
            return [part for each in node.names for part in f"{each.name}.{each.asname or ''}".split(".")]
        if isinstance(node, ast.ImportFrom):
            own = bool(self.repository.resolve(path, node)) or bool(node.level) or self.is_own(node.module or "")
            names = [each.asname for each in node.names if each.asname]
            # Names from elsewhere are not ours to rename, wherever they appear.
            return names if own else [*names, *(each.name for each in node.names), *(node.module or "").split(".")]
        return []

    def is_own(self, dotted: str) -> bool:
        """Whether a dotted name begins with a package of the project."""
        return dotted.partition(".")[0] in self.tops

    @cached_property
    def tops(self) -> frozenset[str]:
        return frozenset(self.dotted(path).partition(".")[0] for path in self.repository.modules)

    def dotted(self, path: str) -> str:
        """What a file is called in an import."""
        # The longest root first: `src/pkg` before `src`.
        roots = sorted((root.strip("/") for root in self.repository.environment.paths or ("",)), key=len, reverse=True)
        root = next((root for root in roots if root and path.startswith(f"{root}/")), "")
        parts = path.removeprefix(f"{root}/").removesuffix(".py").split("/")
        return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)

    @cached_property
    def holders(self) -> dict[str, set[str]]:
        """For each attribute that is asked for, the last names of what it is asked of; "" is any expression."""
        found: dict[str, set[str]] = {}
        for module in self.python.values():
            for node in ast.walk(module.tree):
                if isinstance(node, ast.Attribute):
                    found.setdefault(node.attr, set()).add(last_name(node.value))
        return found

    @cached_property
    def module_names(self) -> frozenset[str]:
        """What code calls modules of the project."""
        found = {part for path in self.repository.modules for part in self.dotted(path).split(".")}
        for path, module in self.python.items():
            for node in ast.walk(module.tree):
                if isinstance(node, ast.Import):
                    found |= {each.asname for each in node.names if each.asname and self.is_own(each.name)}
                elif isinstance(node, ast.ImportFrom) and (node.level or self.is_own(node.module or "")):
                    found |= {each.asname for each in node.names if each.asname and self._is_module(path, node, each)}
        return frozenset(found)

    def _is_module(self, path: str, node: ast.ImportFrom, alias: ast.alias) -> bool:
        whole = ast.ImportFrom(".".join(filter(None, [node.module, alias.name])), [], node.level)
        return bool(self.repository.resolve(path, whole))

    @cached_property
    def prefixes(self) -> tuple[str, ...]:
        """Texts that names are put together from: methods that are found that way keep their names."""
        found = set()
        for module in self.python.values():
            for node in ast.walk(module.tree):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    # `getattr(self, "visit_" + name)` and the like.
                    found.update(re.findall(r"^([a-z]\w*_)(?:%s|\{\}|$)", node.value))
        return tuple(sorted(found))


def last_name(node: ast.expr) -> str:
    """What stands behind the last dot; nothing for what is no name."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


@cache
def known_attributes() -> frozenset[str]:
    """What objects of the language and its library have: a method of the same name may be theirs."""
    kinds = (
        *(str, bytes, bytearray, list, tuple, dict, set, frozenset, int, float, complex, object, type, slice, range),
        *(BaseException, SyntaxError, OSError, re.Pattern, re.Match, pathlib.Path, datetime.datetime),
        *(io.StringIO, io.BytesIO, io.TextIOWrapper, logging.Logger, threading.Thread, threading.Lock().__class__),
        *(unittest.TestCase, unittest.mock.Mock, collections.deque, Counter, collections.OrderedDict, ast.NodeVisitor),
        *((lambda: None).__class__, re.__class__, collections.abc.Generator),
    )
    return frozenset(name for kind in kinds for name in dir(kind))
