"""What to search for: the deleted pieces, cut into functions, without what the workspace still shows of them.

A stub that kept its signature, or a function in which one operator was changed, still says most of what the original
said. Only what really went is searched for, so a bug of one token is searched for by the few shingles around it. Knows
source text; no files and no layers.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from textwrap import dedent

import numpy as np

from etude.corpus.word_hashes import Hashes, hash_runs
from etude.forge.leaks.bytecode import code_of_source, code_runs
from etude.forge.leaks.deleted_code import Deleted, defined_in, parse_python
from etude.forge.leaks.shingles import RUN, code_tokens, script_tokens, string_tokens
from etude.tasks.javascript.parsing import ENDINGS

WORDS = 12  # names of a unit that are looked for before anything is compared

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Unit:
    """One function of what was deleted, or a stretch that is none."""

    path: str  # of the file it was in
    name: str  # qualified; "" for a stretch
    shingles: Hashes  # what went, sorted
    codes: Hashes  # the same of its bytecode; all of it where only an operator was changed, which no name tells
    whole: Hashes  # its shingles, those that are still there included
    module: Hashes  # shingles of its file as it is now: what stands around it
    module_codes: Hashes
    words: tuple[bytes, ...]  # its longest names: a text without most of them is no copy

    def __str__(self) -> str:
        return f"{self.path}:{self.name}" if self.name else self.path


def search_units(deleted: Sequence[Deleted], read: Callable[[str], str | None]) -> list[Unit]:
    """The units to search for. `read` gives a file of the workspace as it is now, None where there is none."""
    units: list[Unit] = []
    files = {path: _Now(path, read(path) or "") for path in dict.fromkeys(piece.path for piece in deleted)}
    for piece in deleted:
        now = files[piece.path]
        script = piece.path.endswith(ENDINGS)
        for name, text in [(piece.name, piece.source)] if script else _parts(piece):
            left = now.shows(name)
            whole, codes = _shingles(text, script), _codes(text)
            # What the workspace still shows of this symbol is no secret.
            shingles = np.setdiff1d(whole, _shingles(left, script), assume_unique=True)
            gone = np.setdiff1d(codes, _codes(left), assume_unique=True)
            around = now.shingles, now.codes
            # Where only an operator changed, all names are still there: the whole bytecode is searched for then.
            units.append(Unit(piece.path, name, shingles, gone if len(gone) else codes, whole, *around, _words(text)))
    return units


@dataclass(frozen=True)
class _Now:
    """A file of the workspace as it is, from which several pieces may have gone."""

    path: str
    text: str

    @cached_property
    def shingles(self) -> Hashes:
        return _shingles(self.text, self.path.endswith(ENDINGS))

    @cached_property
    def codes(self) -> Hashes:
        return _codes(self.text)

    @cached_property
    def _definitions(self) -> dict[str, list[str]] | None:
        """The texts of each name; None for a file that cannot be parsed."""
        if not self.path.endswith(ENDINGS) and parse_python(self.text) is None:
            return None
        found: dict[str, list[str]] = {}
        for name, text in defined_in(self.path, self.text):
            found.setdefault(name, []).append(dedent(text))
        return found

    def shows(self, name: str) -> str:
        """What the file shows of a symbol: all definitions of its name. Of a stretch, or a broken file: everything."""
        if not name or self._definitions is None:
            return self.text
        return "\n\n".join(self._definitions.get(name, ()))


def _parts(piece: Deleted) -> Iterator[tuple[str, str]]:
    """(name, text) of every function in a deleted piece, and of what a class has beside its functions."""
    text = dedent(piece.source)
    tree = parse_python(text)
    tops = [node for node in tree.body if isinstance(node, Definition)] if tree is not None else []
    if tree is None or not tops:
        yield piece.name, text
        return
    lines = text.splitlines(keepends=True)
    loose = list(lines)
    for node in tops:
        own = piece.name if len(tops) == 1 and piece.name else node.name
        yield from _of(node, own, lines)
        _blank(node, loose)
    # Statements between functions are a piece of their own, without a name.
    if rest := "".join(loose).strip():
        yield "", rest


def _of(node: Definition, name: str, lines: list[str]) -> Iterator[tuple[str, str]]:
    """A function as it is; of a class its functions one by one, then the rest of it."""
    if not isinstance(node, ast.ClassDef):
        yield name, _lines_of(node, lines)
        return
    rest = list(lines)
    for part in node.body:
        if isinstance(part, Definition):
            yield from _of(part, f"{name}.{part.name}", lines)
            _blank(part, rest)
    yield name, _lines_of(node, rest)


def _lines_of(node: Definition, lines: list[str]) -> str:
    return dedent("".join(lines[node.lineno - 1 : node.end_lineno]))


def _blank(node: Definition, lines: list[str]) -> None:
    # Decorators begin above the definition.
    first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
    for number in range(first - 1, node.end_lineno or first):
        lines[number] = "\n"


def _shingles(text: str, script: bool) -> Hashes:
    """Of the code, and of its long strings; docstrings, which a stub keeps and a copy may drop, are nobody's."""
    if script:
        sides = [script_tokens(text.encode("utf-8", "surrogateescape"))]
    else:
        data = _without_docstrings(text).encode("utf-8", "surrogateescape")
        sides = [code_tokens(data), string_tokens(data)]
    runs = [hash_runs(tokens, RUN) for tokens in sides if len(tokens) >= RUN]
    return np.unique(np.concatenate(runs)) if runs else np.empty(0, np.uint64)


def _without_docstrings(text: str) -> str:
    tree = parse_python(text)
    lines = text.splitlines(keepends=True)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Module | Definition) and ast.get_docstring(node, clean=False) is not None:
            doc = node.body[0]
            for number in range(doc.lineno - 1, doc.end_lineno or doc.lineno):
                lines[number] = "\n" if number >= doc.lineno else lines[number][: doc.col_offset] + "\n"
    return "".join(lines)


def _words(text: str) -> tuple[bytes, ...]:
    found = sorted(set(re.findall(r"[^\W\d]\w{3,}", _without_docstrings(text))), key=lambda word: (-len(word), word))
    return tuple(word.encode("utf-8", "surrogateescape") for word in found[:WORDS])


def _codes(text: str) -> Hashes:
    """Bytecode's runs of everything defined in a text, the module around it left out."""
    found = [code_runs(code) for code in code_of_source(text) if code.qualname != "<module>"]
    return np.unique(np.concatenate(found)) if found else np.empty(0, np.uint64)
