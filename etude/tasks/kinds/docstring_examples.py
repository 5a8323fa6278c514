"""Examples in docstrings, read from source text alone: what code says about itself when it runs can be anything.

Finds a function's docstring, its parameters and its examples, says what is missing, and writes the examples as a file
of tests. Knows Python text; runs nothing.
"""

from __future__ import annotations

import ast
import doctest
import io
import re
import tokenize
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

LONGEST: Final = 20_000  # characters of a docstring
FILE: Final = "test_examples_of_docstrings.py"  # what the examples are called while they run, at the workspace's top
EXAMPLES: Final = "<doctest examples"  # how the file names of examples start while they run, as doctest gives them

Function = ast.FunctionDef | ast.AsyncFunctionDef
_UNREADABLE: Final = (SyntaxError, ValueError, RecursionError, MemoryError)
# An example shows what a function does. What looks at how it is written, or finds names by texts, is none.
_LOOKING: Final = {
    *("inspect", "dis", "ast", "marshal", "linecache", "tokenize", "gc", "ctypes", "importlib", "builtins", "pickle"),
    *("eval", "exec", "compile", "getattr", "vars", "globals", "attrgetter", "methodcaller", "getsource", "unittest"),
    *("__code__", "__globals__", "__closure__", "__dict__", "__loader__", "__spec__", "__builtins__", "__import__"),
    *("__getattribute__", "__subclasses__", "__wrapped__", "__reduce__", "__reduce_ex__", "_getframe", "__file__"),
    *("doctest", "pytest", "pkgutil", "zipimport", "runpy"),
    # Another interpreter reads the files as they were: what that says is no example either.
    *("subprocess", "multiprocessing", "popen", "system", "create_subprocess_exec", "create_subprocess_shell"),
}
_SUITE: Final = re.compile(r"^(tests?|conftest|test_\w+|\w+_tests?)$")  # modules that know what is right
_INSIDE: Final = re.compile(r"^(co|gi|cr|ag|tb|f)_[a-z]+$")
_TESTS: Final = """import doctest
import importlib


def tried(module, text):
    names = dict(vars(importlib.import_module(module)))
    case = doctest.DocTestParser().get_doctest(text, names, "examples", None, None)
    try:
        doctest.DebugRunner(verbose=False).run(case)
    except doctest.DocTestFailure as failure:
        said = f"{failure.example.source.strip()} gives {failure.got.strip()}"
        raise AssertionError(said[:200]) from None
    except doctest.UnexpectedException as failure:
        said = f"{failure.exc_info[1]!r} comes of {failure.example.source.strip()}"
        raise AssertionError(said[:200]) from None
"""


@dataclass(frozen=True)
class Documented:
    """A function as its source has it."""

    name: str  # qualified
    doc: str
    parameters: tuple[str, ...]

    @cached_property
    def examples(self) -> list[doctest.Example]:
        """Those that are run; none where they cannot be read."""
        try:
            found = doctest.DocTestParser().get_examples(self.doc[:LONGEST])
        except ValueError:
            return []
        return [each for each in found if not each.options.get(doctest.SKIP)]

    @property
    def shown(self) -> int:
        """Examples that expect something, and name the function there or right above."""
        short, count = self.name.rpartition(".")[2], 0
        names: set[str] = set()
        for each in self.examples:
            names |= _names(each.source)
            if each.want:
                # A want of dots alone is satisfied by anything.
                count += short in names and bool(each.want.strip(" .\n"))
                names = set()
        return count

    @property
    def looks(self) -> list[str]:
        """Names of what looks at code instead of using it, and of tests that are asked instead."""
        found = {name for each in self.examples for name in _names(each.source, texts=True)}
        asked = {name for each in self.examples for name in _imported(each.source) if _SUITE.match(name)}
        return sorted(asked | {name for name in found if name in _LOOKING or _INSIDE.match(name)})

    @property
    def unnamed(self) -> list[str]:
        """Parameters that the docstring does not mention."""
        words = set(re.findall(r"\w+", self.doc))
        return [name for name in self.parameters if name not in words]


def read_documented(source: str, name: str) -> Documented | None:
    """The function of this qualified name; None where there is none, or no Python."""
    try:
        body = ast.parse(source).body
        node: ast.stmt | None = None
        for part in name.split("."):
            found = [each for each in body if isinstance(each, Function | ast.ClassDef) and each.name == part]
            node, body = (found[-1], found[-1].body) if found else (None, [])
        if not isinstance(node, Function):
            return None
        given = node.args
    except _UNREADABLE:
        return None
    named = [
        *given.posonlyargs,
        *given.args,
        *given.kwonlyargs,
        *(each for each in (given.vararg, given.kwarg) if each),
    ]
    parameters = tuple(each.arg for each in named if each.arg not in ("self", "cls"))
    return Documented(name, ast.get_docstring(node) or "", parameters)


def decoded(data: bytes) -> str | None:
    """A file as Python reads it, in the encoding that it names itself; None where Python cannot."""
    try:
        return data.decode(tokenize.detect_encoding(io.BytesIO(data).readline)[0])
    except (SyntaxError, UnicodeDecodeError, LookupError):
        return None


def differs_in_code(before: str, after: str) -> bool:
    """Whether two texts differ in more than docstrings, comments and layout."""
    try:
        return _bare(before) != _bare(after)
    except _UNREADABLE:
        return True


def examples_file(module: str, documented: Sequence[Documented]) -> bytes:
    """The examples as a file of tests, one for each docstring."""
    tests = [
        f"\n\ndef test_{number}():\n    tried({module!r}, {each.doc[:LONGEST]!r})\n"
        for number, each in enumerate(documented)
    ]
    return (_TESTS + "".join(tests)).encode("utf-8", "backslashreplace")


def module_name(path: str, roots: Sequence[str]) -> str:
    """What a file of the workspace is imported as, where imports start from these folders."""
    inside = [root.strip("/") for root in roots if root.strip("/") and path.startswith(f"{root.strip('/')}/")]
    rest = path[len(max(inside, key=len)) + 1 :] if inside else path
    return rest.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _names(source: str, texts: bool = False) -> set[str]:
    """Names, attributes and imports of an example; with `texts` the words of its strings too."""
    try:
        tree = ast.parse(source)
    except _UNREADABLE:
        # What cannot be parsed is taken word by word: it may still run as an example.
        return set(re.findall(r"\w+", source))
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.MatchClass):
            found.update(node.kwd_attrs)
        elif isinstance(node, ast.alias):
            found.update(node.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            found.update((node.module or "").split("."))
        elif texts and isinstance(node, ast.Constant) and isinstance(node.value, str):
            # `getattr(f, "__code__")` has the name in a string.
            found.update(re.findall(r"_\w+|co_\w+", node.value))
    return found


def _imported(source: str) -> set[str]:
    """All parts of the names that an example imports."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except _UNREADABLE:
        return set()
    whole = [alias.name for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names]
    whole += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return {part for name in whole for part in name.split(".")}


def _bare(source: str) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | Function) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.dump(tree)
