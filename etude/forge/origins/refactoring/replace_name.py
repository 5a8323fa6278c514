"""A name in text, exchanged for another: in code by tokens, in sentences where it is certain what is meant.

A distinct name (`parse_price`, `IntervalTree`) means the same wherever it stands as a word. One that is an ordinary
word is left alone in sentences: it counts in code, in formatted strings, behind a dot, in backticks, before a bracket
and behind a prompt. Everything else stays byte for byte. Knows one text at a time.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Callable

from etude.forge.languages.python.source import BOM

Sub = Callable[[str], str]


def respelled_code(data: bytes, old: str, new: str, *, distinct: bool, exports: bool = True) -> bytes | None:
    """Python with a name exchanged wherever it is a token, and in strings and comments as `respelled_text` does it;
    a string that is the name and nothing else counts where it is an export (`exports`). None for what is no Python."""
    bom, text = data.startswith(BOM), data.removeprefix(BOM).decode()
    word = _word(old)
    in_text: Sub = lambda part: respelled_text(part, old, new, distinct=distinct)  # noqa: E731 - a name for one argument
    edits: list[tuple[int, int, str]] = []
    starts = [0]
    for line in text.split("\n"):
        starts.append(starts[-1] + len(line) + 1)
    try:
        for token in tokenize.generate_tokens(io.StringIO(text, newline="\n").readline):
            after = token.string
            if token.type == tokenize.NAME and after == old:
                after = new
            elif token.type == tokenize.STRING and old in after:
                # Before Python 3.12 a formatted string is one token.
                if "f" in after[: after.index(after[-1])].lower():
                    after = in_braces(after, lambda part: word.sub(new, part))
                elif exports and re.fullmatch(rf"[rub]*(['\"]){re.escape(old)}\1", after, re.IGNORECASE):
                    after = word.sub(new, after)
                after = in_text(after)
            elif token.type != tokenize.NAME and old in after:  # comments, and pieces of formatted strings
                after = in_text(after)
            if after != token.string:
                (row, column), (last, end) = token.start, token.end
                edits.append((starts[row - 1] + column, starts[last - 1] + end, after))
    except (tokenize.TokenError, SyntaxError):
        return None
    # From the end, so that earlier places stay right.
    for start, end, after in reversed(edits):
        text = text[:start] + after + text[end:]
    return (BOM if bom else b"") + text.encode()


def respelled_text(text: str, old: str, new: str, *, distinct: bool) -> str:
    """A sentence, a comment, a document."""
    if distinct:
        return _word(old).sub(new, text)
    name = re.escape(old)
    text = re.sub(rf"(?<=[\w)]\.){name}(?!\w)|(?<=`){name}(?=(?:\(\))?`)|(?<![\w.]){name}(?=\()", new, text)
    prompts = re.compile(r"^\s*(?:>>>|\.\.\.) .*$", re.MULTILINE)
    return prompts.sub(lambda line: _word(old).sub(new, line[0]), text)


def in_braces(text: str, change: Sub) -> str:
    """A formatted string with its expressions changed, and its words as they are."""
    parts: list[str] = []
    depth = start = at = 0
    while at < len(text):
        # A doubled brace is a brace of the text.
        if not depth and text[at : at + 2] in ("{{", "}}"):
            at += 2
            continue
        if text[at] == "{":
            if not depth:
                parts.append(text[start:at])
                start = at
            depth += 1
        elif text[at] == "}" and depth:
            depth -= 1
            if not depth:
                parts.append(change(text[start : at + 1]))
                start = at + 1
        at += 1
    return "".join([*parts, text[start:]])


def _word(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){re.escape(name)}(?!\w)")
