"""Code to measure on: a folder, or a fixed sample of the running Python's standard library.

Which files are taken depends on their paths alone, so the same folder gives the same text on every machine, and a
fingerprint says whether two figures are of the same text.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from etude.core.errors import EtudeError
from etude.corpus.document import Document
from etude.corpus.sources.folder import Folder, Stdlib


@dataclass(frozen=True)
class Code:
    """Files in the alphabetical order of their paths."""

    name: str
    files: tuple[tuple[str, str], ...]  # path, text

    @property
    def bytes(self) -> int:
        return sum(len(text.encode()) for _, text in self.files)

    @property
    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for path, text in self.files:
            digest.update(f"{path}\0{len(text)}\0{text}".encode())
        return digest.hexdigest()[:16]


def read_code(folder: str, most_bytes: int) -> Code:
    """All code below `folder` (empty: the standard library), or as many whole files as fit `most_bytes`."""
    source = Folder(Folder.Settings(path=folder)) if folder else Stdlib(Stdlib.Settings())
    return choose(source.name, [found for found in source.documents() if isinstance(found, Document)], most_bytes)


def choose(name: str, documents: list[Document], most_bytes: int) -> Code:
    room = most_bytes
    kept: list[tuple[str, str]] = []
    # By the hash of its path: a fixed sample, whatever order the folder is listed in.
    for document in sorted(documents, key=lambda each: hashlib.sha256(each.path.encode()).digest()):
        size = len(document.text.encode())
        if 0 < size <= room:
            kept.append((document.path, document.text))
            room -= size
    if not kept:
        raise EtudeError(f"{name} holds no file of code of at most {most_bytes} bytes; raise base.code_bytes")
    return Code(name, tuple(sorted(kept)))


def filler_lines(code: Code) -> list[str]:
    """Its lines of text, in order, without empty and very long ones."""
    lines = [line.rstrip() for _, text in code.files for line in text.split("\n")]
    return [line for line in lines if line and len(line) <= 120]
