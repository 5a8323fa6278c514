"""Whether code is a copy of other code: by the kinds of its instructions, whatever its names, texts and numbers are.

A test that compares the tested code with a copy of it finds mistakes without asking what the code should do. Pasted,
packed or written to a file first, the copy is compiled by the same interpreter in the end, and what it does stands in
the same order. Instructions that depend on where a name lives are taken for one. Knows code objects alone.
"""

from __future__ import annotations

import dis
from collections.abc import Collection, Iterator
from types import CodeType
from typing import Final

WINDOW: Final = 16  # instructions in a row; of a shorter function all of them
LEAST: Final = 10  # instructions of a function that has something to copy
ALIKE: Final = 0.7  # of a function's windows
SHARE: Final = 0.5  # of all instructions that are watched

_NAMES: Final = ("LOAD_FAST", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLOSURE", "LOAD_CLASSDEREF")
_STORES: Final = ("STORE_FAST", "STORE_GLOBAL", "STORE_NAME", "STORE_DEREF")
_SILENT: Final = (
    *("CACHE", "RESUME", "NOP", "PUSH_NULL", "PRECALL", "EXTENDED_ARG", "COPY_FREE_VARS", "MAKE_CELL", "KW_NAMES"),
)


def _table() -> tuple[bytes, bytes]:
    """What each instruction is taken for, and those that are left out."""
    kinds = bytearray(range(256))
    for name, number in dis.opmap.items():
        if number > 255:
            continue  # a name of the compiler's, which no code has
        base = next((each for each in (*_NAMES, *_STORES) if name.startswith(each)), "")
        if base:
            kinds[number] = dis.opmap["LOAD_NAME" if base in _NAMES else "STORE_NAME"]
    silent = bytes(dis.opmap[name] for name in _SILENT if dis.opmap.get(name, 256) < 256)
    return bytes(kinds), silent


class Copies:
    """Functions that may not be run a second time."""

    def __init__(
        self, texts: dict[str, str], names: dict[str, Collection[str]], own: Collection[CodeType] = ()
    ) -> None:
        """`names` are qualified names of functions, by the file of `texts` that has them; `own` is the code that tests
        are about, which is loaded as often as they like."""
        table, silent = _table()
        # Held here, and no function written in Python: tests can replace all of those, also in `builtins`.
        size, made, integer, code_type = len, set, range, CodeType

        def shape(code: CodeType) -> bytes:
            return code.co_code[::2].translate(table, silent)

        def windows(said: bytes) -> set[bytes]:
            wide = size(said) if size(said) < WINDOW else WINDOW
            return made([said[at : at + wide] for at in integer(size(said) - wide + 1)])

        self._watched = [
            (windows(said), size(said))
            for path, text in texts.items()
            for name, code in _functions(compile(text, path, "exec", dont_inherit=True))
            if name in names.get(path, ()) and size(said := shape(code)) >= LEAST
        ]
        watched, least = self._watched, SHARE * sum(count for _, count in self._watched)

        def found_in(code: CodeType) -> bool:
            """Whether this code, or what is defined in it, holds copies of most that is watched."""
            for each in own:
                if each == code:
                    return False
            shapes, waiting = made(), [code]
            while waiting:
                each = waiting.pop()
                shapes.add(shape(each))
                waiting += [inner for inner in each.co_consts if type(inner) is code_type]
            copied = 0
            for known, count in watched:
                wide = count if count < WINDOW else WINDOW
                there = made([said[at : at + wide] for said in shapes for at in integer(size(said) - wide + 1)])
                copied += count if size(known & there) >= ALIKE * size(known) else 0
            return bool(watched) and copied >= least

        self.found_in = found_in


def _functions(code: CodeType, before: str = "") -> Iterator[tuple[str, CodeType]]:
    """Functions and methods by their qualified names."""
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield before + each.co_name, each
            yield from _functions(each, f"{before}{each.co_name}.")
