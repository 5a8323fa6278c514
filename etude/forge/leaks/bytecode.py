"""Names and constants of compiled Python, read without running or unmarshalling anything.

A `.pyc` is data that somebody else wrote, and the interpreter's own reader trusts what it reads. So this reads the
format itself: every length is checked against what is left, depth and number of values are bounded, and what does
not fit ends in `BadBytecode`. All layouts of code objects from Python 3.8 on are known; newer ones are tried with
the newest.
"""

from __future__ import annotations

import marshal
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import MAGIC_NUMBER
from typing import Any, Final

import numpy as np

from etude.corpus.word_hashes import Hashes, hash_runs, hash_words

HEADER: Final = 16  # bytes before the code, from Python 3.7 on
DEEPEST: Final = 60  # values in values
MOST: Final = 2_000_000  # values of one file
RUN: Final = 5  # names in a row that a piece of code is known by
MAGIC_TAIL: Final = b"\r\n"

_FLAG: Final = 0x80


class BadBytecode(Exception):
    """This is no bytecode that can be read safely."""


@dataclass(frozen=True)
class Code:
    """One code object: what it is called and what its instructions speak of, in their order."""

    qualname: str
    words: tuple[str, ...]  # global names and attributes, locals that are no arguments, texts and numbers


def looks_like_bytecode(data: bytes) -> bool:
    """By the magic number's form and the code object after the header."""
    return len(data) > HEADER and data[2:4] == MAGIC_TAIL and data[HEADER] & ~_FLAG == ord("c")


def read_bytecode(data: bytes) -> list[Code]:
    """Every code object of a `.pyc`."""
    if not looks_like_bytecode(data):
        raise BadBytecode("it has no header of compiled Python")
    magic = int.from_bytes(data[:2], "little")
    reader = _Reader(data, HEADER, magic)
    return list(_codes(reader.value(0), ""))


def code_of_source(source: str) -> list[Code]:
    """The code objects of source, compiled and never run; none for what is no Python."""
    try:
        compiled = compile(source, "<deleted>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    # Through our own reader, so that both sides are read the same way.
    return read_bytecode(MAGIC_NUMBER + bytes(HEADER - len(MAGIC_NUMBER)) + marshal.dumps(compiled))


def code_runs(code: Code) -> Hashes:
    """Numbers that a piece of code is recognised by; few words count as a whole, together with the name."""
    words = [word.encode("utf-8", "surrogatepass") for word in code.words]
    if len(words) < RUN:
        name = code.qualname.rpartition(".")[2].encode("utf-8", "surrogatepass")
        # A tiny function is known by its name too, or every getter would equal every other.
        words = [b"def " + name, *words]
    return np.unique(hash_runs(hash_words([b"bytecode", *words]), len(words) + 1 if len(words) <= RUN else RUN))


def _codes(value: Any, outer: str) -> Iterator[Code]:
    """A code object and those among its constants. Comprehensions and lambdas belong to what they stand in."""
    if not isinstance(value, dict):
        return
    name = str(value["qualname"] or (f"{outer}.{value['name']}" if outer else value["name"]))
    words: list[str] = []
    inner: list[dict[str, Any]] = []
    _collect(value, words, inner, 0)
    yield Code(name, tuple(words))
    for each in inner:
        yield from _codes(each, name if outer or value["name"] != "<module>" else "")


def _collect(value: dict[str, Any], words: list[str], inner: list[dict[str, Any]], depth: int) -> None:
    words.extend(str(name) for name in value["names"])
    words.extend(str(name) for name in value["locals"][value["argcount"] :] if not str(name).startswith("."))
    # The first text may be the docstring, which stays visible where only a body went.
    for number, constant in enumerate(value["consts"]):
        if isinstance(constant, dict):
            # Lambdas and comprehensions belong to the code around them; from 3.12 on the latter are compiled into it.
            if str(constant["name"]).startswith("<") and depth < DEEPEST:
                _collect(constant, words, inner, depth + 1)
            else:
                inner.append(constant)
        else:
            words.extend(_texts(constant, number == 0))


def _texts(constant: Any, first: bool) -> Iterator[str]:
    if isinstance(constant, str) and not first and len(constant) > 1:
        yield constant
    elif _says_something(constant):
        yield repr(constant)
    elif isinstance(constant, tuple):
        for each in constant:
            yield from _texts(each, False)


def _says_something(constant: Any) -> bool:
    if isinstance(constant, bytes):
        return len(constant) > 1
    # Small numbers are in every function.
    return isinstance(constant, int | float) and not isinstance(constant, bool) and abs(constant) > 2


class _Reader:
    """One pass over marshalled data."""

    def __init__(self, data: bytes, at: int, magic: int) -> None:
        self._data = data
        self._at = at
        self._magic = magic
        self._refs: list[Any] = []
        self._left = MOST

    def value(self, depth: int) -> Any:
        self._left -= 1
        if depth > DEEPEST or self._left < 0:
            raise BadBytecode("it is nested too deeply or holds too many values")
        tag = self._take(1)[0]
        keep, kind = bool(tag & _FLAG), chr(tag & ~_FLAG)
        place = -1
        if keep:
            place = len(self._refs)
            # A place is kept before the value is read: values refer to each other by the order in which they begin.
            self._refs.append(None)
        found = self._of_kind(kind, depth)
        if place >= 0:
            self._refs[place] = found
        return found

    def _of_kind(self, kind: str, depth: int) -> Any:
        match kind:
            case "N" | "0" | "S" | "." | "F" | "T":
                return {"F": False, "T": True}.get(kind)
            case "i":
                return self._long()
            case "I":
                return struct.unpack("<q", self._take(8))[0]
            case "l":
                size = abs(self._long())
                self._take(2 * size)
                return 1 << 40 if size else 0  # its digits do not matter
            case "g":
                return struct.unpack("<d", self._take(8))[0]
            case "f":
                return self._take(self._take(1)[0]).decode("ascii", "replace")
            case "y":
                return self._take(16)
            case "x":
                self._take(self._take(1)[0])
                return self._take(self._take(1)[0])
            case "s":
                return self._take(self._long())
            case "t" | "u" | "a" | "A":
                return self._take(self._long()).decode("utf-8", "surrogateescape")
            case "z" | "Z":
                return self._take(self._take(1)[0]).decode("utf-8", "surrogateescape")
            case "(" | "[" | "<" | ">":
                return tuple(self.value(depth + 1) for _ in range(self._count(self._long())))
            case ")":
                return tuple(self.value(depth + 1) for _ in range(self._take(1)[0]))
            case "{":
                return self._mapping(depth)
            case ":":
                return (self.value(depth + 1), self.value(depth + 1), self.value(depth + 1))
            case "r":
                number = self._long()
                # The reader of the interpreter trusts this number.
                if not 0 <= number < len(self._refs):
                    raise BadBytecode("it refers to a value that it does not have")
                return self._refs[number]
            case "c":
                return self._code(depth)
        raise BadBytecode(f"it holds a value of the unknown kind {kind!r}")

    def _mapping(self, depth: int) -> tuple[Any, ...]:
        found: list[Any] = []
        while True:
            if self._at < len(self._data) and self._data[self._at] & ~_FLAG == ord("0"):
                self._at += 1
                return tuple(found)
            found += [self.value(depth + 1), self.value(depth + 1)]

    def _code(self, depth: int) -> dict[str, Any]:
        new = self._magic >= 3451  # 3.11: one table of names for all kinds of locals, and a qualified name
        numbers = [self._long() for _ in range(5 if new else 6)]
        self.value(depth + 1)  # instructions
        consts, names, local = (self.value(depth + 1) for _ in range(3))
        self.value(depth + 1)  # kinds of locals, or free variables
        if not new:
            self.value(depth + 1)  # cells
        self.value(depth + 1)  # file
        name = self.value(depth + 1)
        qualname = self.value(depth + 1) if new else ""
        self._long()
        self.value(depth + 1)  # lines
        if new:
            self.value(depth + 1)  # exceptions
        if not all(isinstance(each, tuple) for each in (consts, names, local)):
            raise BadBytecode("a piece of code has no tables")
        # 3.8 on: arguments, positional-only ones among them, keyword-only ones
        arguments = min(max(numbers[0], 0) + max(numbers[2], 0), len(local))
        return {
            "name": name,
            "qualname": qualname,
            "argcount": arguments,
            "names": names,
            "locals": local,
            "consts": consts,
        }

    def _count(self, count: int) -> int:
        if not 0 <= count <= len(self._data) - self._at:  # every value takes a byte
            raise BadBytecode("a list is longer than the file")
        return count

    def _long(self) -> int:
        return int.from_bytes(self._take(4), "little", signed=True)

    def _take(self, count: int) -> bytes:
        if count < 0 or count > len(self._data) - self._at:
            raise BadBytecode("it ends in the middle of a value")
        self._at += count
        return self._data[self._at - count : self._at]
