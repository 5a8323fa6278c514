"""Why a file is not worth training on: one named reason for each rejection, cheapest question first.

Thresholds are for code as people write it; each says what it was set against. Licences are a matter of licenses.py.
"""

from __future__ import annotations

import re
import symtable
import warnings

import numpy as np

from etude.corpus.document import Document

SHORTEST = 64  # characters that are not white space: below it is an empty package file or a one-line import
LONGEST_LINE = 1_000  # characters; minified code and embedded data, never hand-written code
LONGEST_MEAN_LINE = 120  # characters of an average line; hand-written code stays near 35
FEWEST_LETTERS = 0.4  # share of letters among what is not white space; code stays above 0.55
MOST_DIGITS = 0.25  # share of digits among what is not white space; tables of numbers, hex dumps
FEWEST_DISTINCT_LINES = 0.35  # share of lines that occur once among the non-empty ones, from REPEAT_LINES lines on
REPEAT_LINES = 20
GENERATED_LINES = 12  # a generator says so at the top

GENERATED = re.compile(
    r"\bauto[- ]?generated\b|@generated\b|\bautomatically generated\b|\bmachine[- ]generated\b"
    r"|^\W*generated (automatically )?(by|from|with|using)\b|\bthis (file|module|source) (is|was) generated\b"
    r"|\bgenerated (by|from|with|using) ['\"`]?[\w/-]+\.\w"  # names the generator or its input
    r"|\bdo not (edit|modify) (this|by hand|manually|directly)\b",
    re.IGNORECASE | re.MULTILINE,
)

# Formats that are a credential by their looks alone; entropy alone also flags hashes and test vectors. Each
# begins with plain letters, which lets the search skip through a file instead of trying every character.
SECRETS = [
    re.compile(r"-----BEGIN (?:[A-Z]+ )?PRIVATE KEY(?: BLOCK)?-----\s*\n\s*[\w+/=]{20}"),
    re.compile(r"AKIA[0-9A-Z]{16}\b"),
    re.compile(r"ASIA[0-9A-Z]{16}\b"),
    re.compile(r"gh[pousr]_[0-9A-Za-z]{36}\b"),
    re.compile(r"github_pat_\w{22}"),
    re.compile(r"glpat-[\w-]{20}"),
    re.compile(r"xox[abprs]-[0-9A-Za-z-]{20}"),
    re.compile(r"sk-[0-9A-Za-z_-]{40}"),
    re.compile(r"sk_live_[0-9A-Za-z]{24}"),
    re.compile(r"AIza[0-9A-Za-z_-]{35}\b"),
    re.compile(r"hf_[0-9A-Za-z]{34}\b"),
]

_CODES = np.arange(256)
_DIGIT = (_CODES >= 0x30) & (_CODES <= 0x39)
_LETTER = ((_CODES | 0x20) >= 0x61) & ((_CODES | 0x20) <= 0x7A) | (_CODES >= 0x80) | (_CODES == 0x5F)
_SPACE = np.isin(_CODES, list(b" \t\n\r\f\v"))
KIND = np.select([_SPACE, _LETTER, _DIGIT], [0, 1, 2], 3).astype(np.uint8)  # of each byte


def find_problem(document: Document, parse: bool) -> str | None:
    """The reason to reject the document, or None. `parse` also asks Python itself about Python files."""
    text = document.text
    kinds = np.bincount(KIND[np.frombuffer(text.encode(), np.uint8)], minlength=4)
    visible = int(kinds[1:].sum())
    if visible < SHORTEST:
        return "too short"
    lines = text.split("\n")
    # Prose has paragraphs for lines.
    if document.kind == "code" and (max(map(len, lines)) > LONGEST_LINE or len(text) / len(lines) > LONGEST_MEAN_LINE):
        return "long lines"
    if GENERATED.search("\n".join(lines[:GENERATED_LINES])):
        return "generated"
    if kinds[2] / visible > MOST_DIGITS:
        return "data"
    if kinds[1] / visible < FEWEST_LETTERS:
        return "few letters"
    if has_repeated_lines(lines):
        return "repeated lines"
    # A model that has read a credential can say it.
    if any(secret.search(text) for secret in SECRETS):
        return "secret"
    if parse and document.path.endswith(".py") and not parses(text):
        return "does not parse"
    return None


def has_repeated_lines(lines: list[str]) -> bool:
    """Whether most of the file says the same few lines again and again."""
    full = [line for line in lines if line]
    return len(full) >= REPEAT_LINES and len(set(full)) / len(full) < FEWEST_DISTINCT_LINES


def parses(text: str) -> bool:
    """Whether the running Python can parse it. Nothing is executed, nor even compiled to bytecode.

    The symbol table is the cheapest way to ask: it parses without making Python objects of the syntax tree.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an odd escape in somebody's string is not our warning
            symtable.symtable(text, "<document>", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two: nested beyond any parser
        return False
    return True
