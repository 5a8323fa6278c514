"""The nouns of the corpus: a Document, a Rejected file, a Source; and how a file's bytes become a document.

Each kind of source only lists and reads files (`File`); which paths are wanted, which names are refused, what
counts as text and whose licence applies is decided here, once for all of them. Quality is a matter of filters.py.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

from etude.corpus.licenses import License, Licenses, is_license_file

LONGEST_PATH = 1000  # characters
LICENSE_BYTES = 4_000_000  # the list of files of a large installed package has a megabyte
BOM = b"\xef\xbb\xbf"

# Folders that hold other people's code, caches or metadata, wherever they stand.
SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules", "site-packages", "dist-packages"})

CODE_SUFFIXES = [
    *(".py", ".pyi", ".js", ".jsx", ".ts", ".tsx", ".go", ".rs", ".c", ".h", ".cc", ".cpp", ".hpp", ".java", ".kt"),
    *(".rb", ".php", ".cs", ".swift", ".scala", ".sh", ".sql", ".toml", ".md"),
]


Kind = Literal["code", "text"]


class SourceSettings(BaseModel):
    """Settings of every source. Subclass it for a source of your own."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(
        default="", description="what the manifest and the mix call it; empty takes the name of what is read"
    )
    weight: float = Field(default=1.0, gt=0, description="its share of the mix, relative to the other sources")
    max_file_bytes: int = Field(default=1_000_000, gt=0, description="a larger file is skipped unread")


class FilesSettings(SourceSettings):
    """Settings of every source that reads files."""

    path: str = Field(description="where it is")
    suffixes: list[str] = Field(default=CODE_SUFFIXES, description="file names must end in one of these")
    exclude: list[str] = Field(default=[], description="glob patterns of paths to leave out, such as `*/vendor/*`")


@dataclass(frozen=True)
class Document:
    """One file of code, or one text."""

    repo: str  # what belongs together when whole repositories are held out
    path: str  # inside the source, with forward slashes
    text: str
    license: License
    source: str
    kind: Kind = "code"  # which filters apply


@dataclass(frozen=True)
class Rejected:
    """A file that was looked at and not taken."""

    path: str
    reason: str
    size: int  # bytes, 0 when unknown


class Source(Protocol):
    """Yields documents, in the same order each time. Made from its settings: `Mine(Mine.Settings(...))`.

    One that can begin at item n without reading those before has `documents_from(n)` as well, which is asked when a
    build that was killed goes on.
    """

    @property
    def name(self) -> str: ...

    @property
    def settings(self) -> SourceSettings: ...

    def documents(self) -> Iterator[Document | Rejected]: ...


@dataclass(frozen=True)
class File:
    """What a source found at a path: its bytes, or why there are none."""

    path: str
    data: bytes = b""
    problem: str = ""
    size: int = 0


Want = Callable[[str], bool]
Read = Callable[[Want, int], Iterator[File]]  # the wanted files, none larger than so many bytes


def read_documents(
    name: str, settings: FilesSettings, read: Read, repo_of: Callable[[str], str], start: int = 0
) -> Iterator[Document | Rejected]:
    """The documents of any source that can read files: first the licences, then the files they apply to.

    The first `start` wanted files are passed over unread: an earlier process read them.
    """
    licenses = Licenses()
    for file in read(is_license_file, LICENSE_BYTES):
        if not file.problem:
            licenses.add(file.path, file.data.decode("utf-8", "replace"))

    passed = 0

    def want(path: str) -> bool:
        nonlocal passed
        if not is_wanted(path, settings):
            return False
        passed += 1
        return passed > start

    for file in read(want, settings.max_file_bytes):
        text, problem = ("", file.problem) if file.problem else decode(file.data)
        if problem:
            yield Rejected(file.path, problem, file.size or len(file.data))
        else:
            yield Document(repo_of(file.path), file.path, text, licenses.of(file.path, text), name)


def is_wanted(path: str, settings: FilesSettings) -> bool:
    """Whether the path is code that was asked for. Unsafe names pass, so that they are counted when refused."""
    folders = path.split("/")[:-1]
    if not path.endswith(tuple(settings.suffixes)) or any(map(is_skipped_folder, folders)):
        return False
    return not any(fnmatch.fnmatchcase(path, pattern) for pattern in settings.exclude)


def is_skipped_folder(name: str) -> bool:
    return name in SKIPPED_FOLDERS or (name.startswith(".") and name not in (".", ".."))


def is_safe_path(path: str) -> bool:
    """A plain relative path: nothing that could point outside its root or confuse whoever prints or stores it."""
    if not path or len(path) > LONGEST_PATH or not path.isprintable() or "\\" in path or path[1:2] == ":":
        return False
    return all(part not in ("", ".", "..") for part in path.split("/"))


def decode(data: bytes) -> tuple[str, str]:
    """(text, "") or ("", why not). Line ends become \\n, so that the same code is the same text."""
    if b"\0" in data:
        return "", "binary"
    try:
        text = data.removeprefix(BOM).decode("utf-8")
    except UnicodeDecodeError:
        return "", "not UTF-8"
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text, ""
