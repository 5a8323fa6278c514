"""The entries of a packaging configuration, with the lines that each stands on: pyproject.toml, setup.cfg, setup.py.

Reads texts and takes entries out of them or exchanges a word in one; all other lines stay byte for byte. Knows the
three forms, and nothing about what an entry means or who builds from it.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final

from etude.tasks.grading.packaging_config import SECTIONS, TOOLS

FILES = ("pyproject.toml", "setup.cfg", "setup.py")
TARGET: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")  # what an entry point leads to: module:name


@dataclass(frozen=True)
class ConfigEntry:
    """One key with its value: `table` is ("project", "scripts"), ("options.extras_require",), or ("setup",)."""

    path: str
    table: tuple[str, ...]
    key: str
    start: int  # of its text in the file, in characters, whole lines where it has them for itself
    end: int
    text: str = field(repr=False)
    value: Any = field(default=None, compare=False)  # where the form says it; else the text behind the key

    @property
    def name(self) -> str:
        return ".".join((*self.table, self.key))


def entries(path: str, text: str) -> list[ConfigEntry]:
    """Those that are about packaging; none where the file cannot be read."""
    if path == "pyproject.toml":
        return list(_toml(path, text))
    return list(_ini(path, text) if path == "setup.cfg" else _setup(path, text))


def without(text: str, gone: Sequence[ConfigEntry]) -> str:
    """The text without these entries, and without the heads of tables that have no other."""
    for each in sorted(gone, key=lambda one: one.start, reverse=True):
        text = text[: each.start] + text[each.end :]
    return _without_empty_tables(text, {each.table for each in gone if each.path != "setup.py"})


def exchanged(text: str, entry: ConfigEntry, old: str, new: str) -> str | None:
    """The text with one word of an entry exchanged, where it stands there once."""
    if entry.text.count(old) != 1:
        return None
    return text[: entry.start] + entry.text.replace(old, new) + text[entry.end :]


def _toml(path: str, text: str) -> Iterator[ConfigEntry]:
    try:
        tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return
    lines = text.splitlines(keepends=True)
    offsets = [0, *accumulate(map(len, lines))]
    table: tuple[str, ...] = ()
    number = 0
    while number < len(lines):
        line = lines[number]
        if head := re.match(r"\s*\[([^\[\]]+)\]\s*(#.*)?$", line):
            table = tuple(part.strip().strip("\"'") for part in _dotted(head[1]))
            number += 1
            continue
        if line.lstrip().startswith("[["):
            table = ("",)  # an entry of a list of tables: left alone
        if not line.strip() or line.lstrip().startswith(("#", "[")):
            number += 1
            continue
        end = _statement_end(lines, number)
        if end is None:
            return
        statement = "".join(lines[number:end])
        key = statement.partition("=")[0].strip()
        parts = [part.strip("\"'") for part in _dotted(key)]
        value: Any = tomllib.loads(statement)
        for part in parts:
            value = value[part]
        owner = (*table, *parts[:-1])
        if owner[:1] == ("project",) or (owner[:1] == ("tool",) and owner[1:2] and owner[1] in TOOLS):
            yield ConfigEntry(path, owner, parts[-1], offsets[number], offsets[end], statement, value)
        number = end


def _dotted(key: str) -> list[str]:
    return [part.strip() for part in re.findall(r'"[^"]*"|\'[^\']*\'|[^.\s]+', key)]


def _statement_end(lines: list[str], start: int) -> int | None:
    """The line behind a key and its value: so many lines as make a document by themselves."""
    for end in range(start + 1, len(lines) + 1):
        try:
            tomllib.loads("".join(lines[start:end]))
        except tomllib.TOMLDecodeError:
            continue
        return end
    return None


def _ini(path: str, text: str) -> Iterator[ConfigEntry]:
    section, at = "", 0
    open_entry: tuple[str, str, int, list[str]] | None = None  # section, key, start, lines

    def closed() -> Iterator[ConfigEntry]:
        if open_entry is not None and SECTIONS.fullmatch(open_entry[0]):
            name, key, start, lines = open_entry
            while lines and not lines[-1].strip():
                lines.pop()
            whole = "".join(lines)
            value = whole.partition("=")[2].strip()
            yield ConfigEntry(path, (name,), key, start, start + len(whole), whole, value)

    for line in text.splitlines(keepends=True):
        if line.startswith("["):
            yield from closed()
            open_entry, section = None, line.strip().strip("[]")
        elif line[:1].isspace() or line.startswith(("#", ";")):
            if open_entry is not None:
                open_entry[3].append(line)
        elif "=" in line:
            yield from closed()
            open_entry = (section, line.partition("=")[0].strip(), at, [line])
        at += len(line)
    yield from closed()


def _setup(path: str, text: str) -> Iterator[ConfigEntry]:
    """Keyword arguments of the one call of `setup`."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _called(node) == "setup"]
    if len(calls) != 1 or not text.isascii():
        return
    offsets = [0, *accumulate(map(len, text.splitlines(keepends=True)))]
    for keyword in calls[0].keywords:
        if keyword.arg is None or keyword.value.end_lineno is None or keyword.value.end_col_offset is None:
            continue
        start = offsets[keyword.lineno - 1] + keyword.col_offset
        end = offsets[keyword.value.end_lineno - 1] + keyword.value.end_col_offset
        rest = re.compile(r"[ \t]*,?[ \t]*(#[^\n]*)?\n?").match(text, end)
        first = text.rfind("\n", 0, start) + 1
        if rest is not None and not text[first:start].strip():
            start, end = first, rest.end()
        elif rest is not None and "," in rest[0]:
            end = rest.start() + rest[0].index(",") + 1
        else:
            continue
        try:
            value = ast.literal_eval(keyword.value)
        except (ValueError, TypeError, RecursionError):
            value = None
        yield ConfigEntry(path, ("setup",), keyword.arg, start, end, text[start:end], value)


def _called(node: ast.Call) -> str:
    return str(getattr(node.func, "id", getattr(node.func, "attr", "")))


def _without_empty_tables(text: str, tables: set[tuple[str, ...]]) -> str:
    lines = text.splitlines(keepends=True)
    kept: list[str] = []
    for number, line in enumerate(lines):
        head = re.match(r"\s*\[([^\[\]]+)\]", line)
        if head and {tuple(part.strip("\"'") for part in _dotted(head[1])), (head[1],)} & tables:
            rest = (each for each in lines[number + 1 :] if each.strip() and not each.startswith(("#", ";")))
            if next(rest, "[").lstrip().startswith("["):
                continue
        kept.append(line)
    return "".join(kept)
