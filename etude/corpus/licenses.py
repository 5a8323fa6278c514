"""Whether code is permissive, copyleft or unknown, from what lies in and around it.

Looked at in this order: an SPDX tag or a licence named in the file's own header; the nearest licence file
upward; for installed packages and wheels, the metadata of the distribution that the file belongs to. This
sorts code for training by the words people use; it is no legal advice, and what it cannot decide is `unknown`.
"""

from __future__ import annotations

import re
from typing import Literal

License = Literal["permissive", "copyleft", "unknown"]

LONGEST_EXPRESSION = 200  # characters of an SPDX expression
HEADER_LINES = 60

LICENSE_FILE = re.compile(r"(un)?licen[cs]e|copying|copyright", re.IGNORECASE)
LICENSE_SUFFIXES = ("", ".txt", ".md", ".rst", ".mit", ".bsd", ".apache", ".gpl", ".lesser")

# What licence texts say of themselves. The earliest in the text decides: a permissive text may mention the GPL
# further down (Python's does), and bundles append the licences of their parts after their own.
PHRASES: tuple[tuple[License, str], ...] = (
    ("permissive", "permission is hereby granted, free of charge"),
    ("permissive", "permission to use, copy, modify"),
    ("permissive", "redistribution and use in source and binary forms"),
    ("permissive", "redistribution and use of this software in source and binary forms"),
    ("permissive", "apache license"),
    ("permissive", "apache software license"),
    ("permissive", "mit license"),
    ("permissive", "bsd license"),
    ("permissive", "isc license"),
    ("permissive", "python software foundation license"),
    ("permissive", "boost software license"),
    ("permissive", "released into the public domain"),
    ("permissive", "placed in the public domain"),
    ("permissive", "cc0 1.0 universal"),
    ("permissive", "freely, subject to the following restrictions"),  # zlib
    ("copyleft", "gnu general public license"),
    ("copyleft", "gnu lesser general public license"),
    ("copyleft", "gnu library general public license"),
    ("copyleft", "gnu affero general public license"),
    ("copyleft", "mozilla public license"),
    ("copyleft", "eclipse public license"),
    ("copyleft", "european union public licence"),
    ("copyleft", "common development and distribution license"),
    ("copyleft", "attribution-sharealike"),
    ("copyleft", "server side public license"),
)

COPYLEFT_NAME = re.compile(
    r"\b[al]?gpl|\bgnu\b|\bmpl\b|mozilla|\bepl\b|eclipse|\beupl\b|\bcddl\b|sharealike|\bcc-by-sa|\bosl\b|\bsspl\b"
)
PERMISSIVE_NAME = re.compile(
    r"\bmit\b|\b0?bsd\b|\bapache\b|\bisc\b|\bpsf\b|python software foundation|\bpython-2|\bcnri\b|\bzlib\b"
    r"|\bunlicense\b|public domain|\bcc0\b|\bbsl-1|\bboost\b|\bhpnd\b|\bx11\b|\bwtfpl\b|\bncsa\b|\bpostgresql\b"
    r"|\bartistic-2"
)
SPDX_TAG = re.compile(r"SPDX-License-Identifier:\s*([^\n*]+)")
COMMENT = re.compile(r"\s*(#|//|/\*|\*|;|--|<!--|$)")


class Licenses:
    """The licences of one source: `add` takes its licence files, `of` says which one applies to a file."""

    def __init__(self) -> None:
        self._folders: dict[str, License] = {}
        self._packages: dict[str, License] = {}  # top-level names that an installed distribution claims
        self._metadata: dict[str, License] = {}  # dist-info folder -> licence
        self._records: dict[str, set[str]] = {}  # dist-info folder -> top-level names

    def add(self, path: str, text: str) -> None:
        """Take note of a file for which `is_license_file` holds."""
        folder, _, name = path.rpartition("/")
        if name == "METADATA":
            self._metadata[folder] = of_metadata(text)
        elif name == "RECORD":
            beside = folder.rpartition("/")[0]
            tops = {line.split(",")[0].split("/")[0] for line in text.splitlines()}
            self._records[folder] = {f"{beside}/{top}" if beside else top for top in tops}
        else:
            # Of several licence files side by side the strictest that we know counts: better too careful.
            found = of_text(text)
            self._folders[folder] = max(found, self._folders.get(folder, found), key=_certainty)
        for info in self._metadata.keys() & self._records.keys():
            self._packages.update(dict.fromkeys(self._records.pop(info), self._metadata[info]))

    def of(self, path: str, text: str) -> License:
        """The class that applies to the file at `path` with this text."""
        # A file may carry another licence than the folder around it.
        if (own := of_header(text)) != "unknown":
            return own
        parts = path.split("/")
        for depth in range(len(parts) - 1, -1, -1):
            if (near := self._folders.get("/".join(parts[:depth]))) is not None:
                return near
            if (claimed := self._packages.get("/".join(parts[: depth + 1]))) is not None:
                return claimed
        return "unknown"


def is_license_file(path: str) -> bool:
    """Whether the path is about licences: LICENSE and its kin, or the metadata of an installed distribution."""
    folder, _, name = path.rpartition("/")
    if folder.endswith(".dist-info"):
        return name in ("METADATA", "RECORD")
    match = LICENSE_FILE.match(name)
    return (
        match is not None and re.sub(r"^[-_][\w.-]*?(?=\.\w+$|$)", "", name[match.end() :]).lower() in LICENSE_SUFFIXES
    )


def of_text(text: str) -> License:
    """The class of a licence text."""
    if tag := SPDX_TAG.search(text):
        return of_expression(tag[1])
    plain = " ".join(text.lower().split())
    found = [(at, kind) for kind, phrase in PHRASES if (at := plain.find(phrase)) >= 0]
    return min(found)[1] if found else "unknown"


def of_header(text: str) -> License:
    """The class that the comment at the top of a file names."""
    header = text[: _header_end(text)]
    return of_text("\n".join(line.strip(" \t#/*;-<!") for line in header.split("\n"))) if header else "unknown"


def without_header(text: str) -> str:
    """The text without the comment at its top, when that speaks of licence or copyright."""
    end = _header_end(text)
    return text[end:] if re.search(r"licen[cs]e|copyright", text[:end], re.IGNORECASE) else text


def _header_end(text: str) -> int:
    end = 0
    for line in text.split("\n", HEADER_LINES)[:HEADER_LINES]:
        if not COMMENT.match(line):
            break
        end += len(line) + 1
    return min(end, len(text))


def of_metadata(text: str) -> License:
    """The class that the METADATA of a distribution names."""
    head = text.split("\n\n", 1)[0]
    if expression := re.search(r"^License-Expression:\s*(.+)$", head, re.MULTILINE):
        return of_expression(expression[1])
    names = re.findall(r"^Classifier:\s*License ::(.+)$", head, re.MULTILINE) or re.findall(
        r"^License:(.+)$", head, re.MULTILINE
    )
    kinds = [of_name(name) for name in names]
    return "copyleft" if "copyleft" in kinds else kinds[0] if kinds else "unknown"


def of_name(name: str) -> License:
    """The class of a licence by its name or SPDX identifier."""
    lower = name.lower()
    if COPYLEFT_NAME.search(lower):
        return "copyleft"
    return "permissive" if PERMISSIVE_NAME.search(lower) else "unknown"


def of_expression(expression: str) -> License:
    """The class of an SPDX expression: OR lets us choose the freest, AND binds us to the strictest."""
    if len(expression) > LONGEST_EXPRESSION:
        return "unknown"
    tokens = re.findall(r"[()]|[^\s()]+", expression)
    kind, rest = _either(tokens)
    return kind if not rest else "unknown"


def _either(tokens: list[str]) -> tuple[License, list[str]]:
    kind, tokens = _both(tokens)
    while tokens and tokens[0].upper() == "OR":
        other, tokens = _both(tokens[1:])
        kind = min(kind, other, key=_strictness)
    return kind, tokens


def _both(tokens: list[str]) -> tuple[License, list[str]]:
    kind, tokens = _one(tokens)
    while tokens and tokens[0].upper() == "AND":
        other, tokens = _one(tokens[1:])
        kind = max(kind, other, key=_strictness)
    return kind, tokens


def _one(tokens: list[str]) -> tuple[License, list[str]]:
    if not tokens:
        return "unknown", []
    if tokens[0] == "(":
        kind, tokens = _either(tokens[1:])
        return (kind, tokens[1:]) if tokens[:1] == [")"] else ("unknown", tokens)
    kind, tokens = of_name(tokens[0]), tokens[1:]
    if tokens and tokens[0].upper() == "WITH":  # an exception only ever loosens
        tokens = tokens[2:]
    return kind, tokens


def _certainty(kind: License) -> int:
    return ("unknown", "permissive", "copyleft").index(kind)


def _strictness(kind: License) -> int:
    return ("permissive", "unknown", "copyleft").index(kind)
