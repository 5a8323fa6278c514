"""Text as a set of token shingles: what a copy keeps in common with its original, however it was laid out.

A token is a word or one character of punctuation; white space, quotes, commas, parentheses and backslashes are none,
so neither another layout nor another way of quoting hides a copy. A shingle is a run of eight tokens. Comments, as
Python and as scripts have them, and long strings are taken out of the code around them and looked at by themselves:
added ones hide nothing, and code that was copied into one is seen as well.

Knows bytes and numbers, no files and no tasks. The numbers are the same in every process and on every machine.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from etude.corpus.word_hashes import Hashes, hash_runs

RUN: Final = 8  # tokens of a shingle
BLOCK: Final = 1 << 20  # bytes hashed at once: 8 MB for each array of numbers
ESCAPED: Final = 6  # escaped line ends from which on a text may hold another one as a string

_KINDS: Final = np.zeros(256, np.uint8)  # 0 nothing, 1 part of a word, 2 a token of its own
_KINDS[[*range(48, 58), *range(65, 91), *range(97, 123), 95, *range(128, 256)]] = 1
_KINDS[[ord(one) for one in "!#$%&*+-./:;<=>?@[]^`{|}~"]] = 2
# An inverse is needed: it takes the place of a word in its block out of the hash.
_FACTOR: Final = 0x9E37_79B9_7F4A_7C15  # odd, so that it has an inverse modulo 2**64

_ASIDE = re.compile(rb'"""(.*?)"""|\'\'\'(.*?)\'\'\'|#([^\n]*)', re.DOTALL)
# As scripts have comments; what looks like one in a text or an address is looked at by itself all the same.
_SCRIPT_ASIDE = re.compile(rb"/\*(.*?)\*/|(?<![:\"'`\\])//([^\n]*)", re.DOTALL)
PYTHON: Final = (".py", ".pyi")
_PROMPT = re.compile(rb"(?m)^[ \t]*(?:>>>|\.\.\.)(?:[ \t]|$)|^[+\-|](?![+\-])")
_NUMBERED = re.compile(rb"(?m)^[ \t]*\d+[ \t]*[:|]?[ \t]")
_TAG = re.compile(rb"<[^<>]{1,400}>")
_ESCAPE = re.compile(rb"\\(?:[\\nrt\"']|u00[23][0-9a-fA-F])")


def text_shingles(data: bytes, name: str = "") -> Hashes:
    """The distinct shingles of a text, in all forms in which it may hold code. Sorted."""
    return _distinct([hash_runs(tokens, RUN) for tokens in _forms(data, name) if len(tokens) >= RUN])


def text_marks(data: bytes, name: str, window: int) -> Hashes:
    """Few of a text's shingles, chosen so that any `window + 7` tokens in a row contain one of them. Sorted."""
    runs = (hash_runs(tokens, RUN) for tokens in _forms(data, name) if len(tokens) >= RUN)
    return _distinct([_winnow(each, window) for each in runs])


def token_hashes(data: bytes) -> Hashes:
    """One number for each token of a text as it is."""
    found = [_hash_block(data[start:end]) for start, end in _blocks(data)]
    return np.concatenate(found) if found else np.empty(0, np.uint64)


def code_tokens(data: bytes) -> Hashes:
    """The tokens of source without comments and long strings."""
    return token_hashes(_ASIDE.sub(b" ", data))


def script_tokens(data: bytes) -> Hashes:
    """The tokens of a script without comments."""
    return token_hashes(_SCRIPT_ASIDE.sub(b" ", data))


def string_tokens(data: bytes) -> Hashes:
    """The tokens in the long strings of source."""
    strings = [found[1] or found[2] or b"" for found in _ASIDE.finditer(data) if found[3] is None]
    return code_tokens(b"\n".join(strings))


def is_text(data: bytes) -> bool:
    """Whether bytes read as text: nothing that no text has, in their first few thousand."""
    head = data[:4096]
    strange = sum(head.count(bytes([value])) for value in (0, 1, 2, 3, 4, 5, 6, 14, 15, 16, 17, 18, 19, 20, 127))
    # One strange byte in a hundred: texts in other encodings have some, binary files many more.
    return strange * 100 <= len(head) if head else True


def _forms(data: bytes, name: str) -> Iterator[Hashes]:
    """The tokens of a text as code, as comments, as long strings, and as what it may have been wrapped in."""
    yield from _all_sides(data, name)
    source = name.endswith(PYTHON)
    if not source:
        head = data[:512].lstrip().lower()
        marked = name.endswith((".html", ".htm", ".xml", ".svg")) or head.startswith((b"<!doctype", b"<html", b"<?xml"))
        if marked or data.count(b"</span>") > 3 or b"<pre" in data:
            # A copy in HTML has a tag around each word and a number before each line.
            bare = _TAG.sub(b"", data).decode("utf-8", "replace")
            yield from _all_sides(_NUMBERED.sub(b"", html.unescape(bare).encode("utf-8", "replace")), name)
        elif _NUMBERED.search(data[: 1 << 16]):
            yield from _all_sides(_NUMBERED.sub(b"", data), name)
    if b">>> " in data or (not source and (b"\n+" in data or b"\n-" in data or b"\n|" in data)):
        yield from _all_sides(_PROMPT.sub(b"", data), name)
    if data.count(b"\\n") >= ESCAPED:
        yield from _all_sides(_ESCAPE.sub(_unescape, data), name)


def _all_sides(data: bytes, name: str) -> Iterator[Hashes]:
    """A text read as Python, and where its name does not say that it is, as a script too."""
    yield from _sides(data)
    if not name.endswith(PYTHON) and any(sign in data for sign in (b"//", b"/*", b"#", b'"""')):
        comments = [found[1] or found[2] or b"" for found in _SCRIPT_ASIDE.finditer(data)]
        yield script_tokens(data)
        yield script_tokens(b"\n".join(comments))


def _sides(data: bytes) -> Iterator[Hashes]:
    """A text's code, and apart from it what stands in its long strings and comments."""
    if b"#" not in data and b'"""' not in data and b"'''" not in data:
        yield token_hashes(data)
        return
    strings: list[bytes] = []
    comments: list[bytes] = []

    def aside(found: re.Match[bytes]) -> bytes:
        comment = found[3]
        if comment is not None:
            comments.append(comment)
        else:
            strings.append(found[1] if found[1] is not None else found[2])
        return b" "

    yield token_hashes(_ASIDE.sub(aside, data))
    for parts in (strings, comments):  # a copy in them may have strings and comments of its own
        if parts:
            joined = b"\n".join(parts)
            yield code_tokens(joined)
            yield string_tokens(joined)


def _unescape(found: re.Match[bytes]) -> bytes:
    escape = found[0]
    if escape[1:2] == b"u":
        return bytes([int(escape[2:], 16)])
    return {b"n": b"\n", b"r": b" ", b"t": b" "}.get(escape[1:], escape[1:])


def _blocks(data: bytes) -> Iterator[tuple[int, int]]:
    """Cuts that no token crosses, as long as there is a line end in the last stretch of each block."""
    start = 0
    while start < len(data):
        end = min(start + BLOCK, len(data))
        # Blocks end at a line where there is one, so that no word is cut in two.
        if end < len(data):
            end = max(data.rfind(b"\n", start + BLOCK // 2, end) + 1, start + BLOCK // 2)
        yield start, end
        start = end


@lru_cache(maxsize=1)
def _powers() -> tuple[Hashes, Hashes]:
    """Powers of the factor and of its inverse, modulo 2**64."""
    powers = np.full(BLOCK, _FACTOR, np.uint64)
    inverses = np.full(BLOCK, pow(_FACTOR, -1, 1 << 64), np.uint64)
    powers[0] = inverses[0] = 1
    return np.multiply.accumulate(powers), np.multiply.accumulate(inverses)


def _hash_block(data: bytes) -> Hashes:
    """Every token's polynomial at once: differences of a running sum, moved to the same power."""
    raw = np.frombuffer(data, np.uint8)
    powers, inverses = _powers()
    kinds = _KINDS[raw]
    word = kinds == 1
    alone = kinds == 2
    starts = np.flatnonzero(alone | (word & ~_shifted(word, 1)))
    ends = np.flatnonzero(alone | (word & ~_shifted(word, -1))) + 1
    sums = np.zeros(len(raw) + 1, np.uint64)
    np.cumsum((raw.astype(np.uint64) + np.uint64(1)) * powers[: len(raw)], out=sums[1:])
    hashes = (sums[ends] - sums[starts]) * inverses[starts]
    return _mix(hashes)


def _shifted(flags: npt.NDArray[np.bool_], by: int) -> npt.NDArray[np.bool_]:
    moved = np.zeros_like(flags)
    if by > 0:
        moved[by:] = flags[:-by]
    else:
        moved[:by] = flags[-by:]
    return moved


def _mix(values: Hashes) -> Hashes:
    values = (values ^ (values >> np.uint64(31))) * np.uint64(0xBF58_476D_1CE4_E5B9)
    return values ^ (values >> np.uint64(29))


def _winnow(runs: Hashes, window: int) -> Hashes:
    """The smallest of every `window` neighbours."""
    if len(runs) <= window:
        # Too short for a window: its least run stands for all of it.
        return np.array([runs.min()], np.uint64)
    count = len(runs) - window + 1
    least = runs[:count].copy()
    for start in range(1, window):
        # The least hash of each window is kept (winnowing): two texts that share 15 tokens keep a common one.
        np.minimum(least, runs[start : start + count], out=least)
    return np.unique(least)


def _distinct(parts: list[Hashes]) -> Hashes:
    return np.unique(np.concatenate(parts)) if parts else np.empty(0, np.uint64)
