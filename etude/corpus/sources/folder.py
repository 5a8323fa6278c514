"""Sources on disk: the standard library of the running Python, what is installed beside it, and any folder.

Never follows a link, never opens anything but plain files, and visits names in sorted order, so the same folder
gives the same documents on every machine.
"""

from __future__ import annotations

import os
import stat
import sysconfig
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pydantic import Field

from etude.core.errors import EtudeError
from etude.corpus.document import (
    Document,
    File,
    FilesSettings,
    Rejected,
    SourceSettings,
    Want,
    is_safe_path,
    is_skipped_folder,
    read_documents,
)

DEEPEST = 64  # folders below one another; more is an accident or an attack
TEST_FOLDERS = ("*/test/*", "test/*", "*/tests/*", "tests/*", "*/idle_test/*")


class Folder:
    """Every file of code below a folder."""

    class Settings(FilesSettings):
        repositories: Literal["one", "children"] = Field(
            default="one", description="the folder is one repository, or each folder right below it is one"
        )

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._root = Path(settings.path).expanduser()
        self.name = settings.name or self._root.resolve().name

    def documents(self) -> Iterator[Document | Rejected]:
        if not self._root.is_dir():
            raise EtudeError(f"the corpus folder {self._root} does not exist; correct `path` of source {self.name}")

        def repo_of(path: str) -> str:
            return f"{self.name}/{top_name(path)}" if self.settings.repositories == "children" else self.name

        return read_documents(
            self.name, self.settings, lambda want, limit: read_folder(self._root, want, limit), repo_of
        )


class Stdlib:
    """The standard library of the running Python; each top-level module or package counts as a repository."""

    class Settings(SourceSettings):
        tests: bool = Field(default=False, description="with the test suites, which are twice the size of the rest")

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.name = settings.name or "stdlib"

    def documents(self) -> Iterator[Document | Rejected]:
        root = Path(sysconfig.get_path("stdlib"))
        if not root.is_dir():
            raise EtudeError(f"this Python has no standard library at {root}: use a `folder` source instead")
        files = FilesSettings(
            path=str(root),
            suffixes=[".py"],
            exclude=[] if self.settings.tests else list(TEST_FOLDERS),
            max_file_bytes=self.settings.max_file_bytes,
        )
        found = read_documents(
            self.name,
            files,
            lambda want, limit: read_folder(root, want, limit),
            lambda path: f"{self.name}/{top_name(path)}",
        )
        for file in found:
            # Not every installation carries the licence file; Python's own licence covers it all.
            yield replace(file, license="permissive") if isinstance(file, Document) else file


class Packages:
    """The packages installed beside the running Python; each counts as a repository."""

    class Settings(SourceSettings):
        tests: bool = Field(default=False, description="with the test suites that packages bring along")

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.name = settings.name or "packages"

    def documents(self) -> Iterator[Document | Rejected]:
        root = Path(sysconfig.get_path("purelib"))
        if not root.is_dir():
            raise EtudeError(f"this Python has no packages at {root}: use a `folder` source instead")
        files = FilesSettings(
            path=str(root),
            suffixes=[".py"],
            exclude=[] if self.settings.tests else list(TEST_FOLDERS),
            max_file_bytes=self.settings.max_file_bytes,
        )
        return read_documents(
            self.name,
            files,
            lambda want, limit: read_folder(root, want, limit),
            lambda path: f"{self.name}/{top_name(path)}",
        )


def top_name(path: str) -> str:
    """What stands first in a path, a module without its suffix: `json/decoder.py` -> json, `abc.py` -> abc."""
    first, slash, _ = path.partition("/")
    return first if slash else first.partition(".")[0]


def read_folder(root: Path, want: Want, limit: int) -> Iterator[File]:
    """The wanted files below `root`."""
    pending = [""]
    while pending:
        folder = pending.pop()
        below: list[str] = []
        try:
            with os.scandir(root / folder) as scan:
                entries = sorted(scan, key=lambda entry: entry.name)
        except OSError:
            entries = []  # a folder that we may not read holds nothing for us
        for entry in entries:
            path = f"{folder}{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                if not is_skipped_folder(entry.name) and path.count("/") < DEEPEST:
                    below.append(f"{path}/")
            elif want(path):
                yield _read_file(entry.path, path, limit)
        pending.extend(reversed(below))


def _read_file(location: str, path: str, limit: int) -> File:
    if not is_safe_path(path):
        return File(path.encode("utf-8", "replace").decode(), problem="unsafe name")
    try:
        # Not blocking: a named pipe must not hold up the build before we can see that it is one.
        handle = os.open(location, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return File(path, problem="link or unreadable")
    with os.fdopen(handle, "rb") as file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode):
            return File(path, problem="link or unreadable")
        if facts.st_size > limit:
            return File(path, problem="too big", size=facts.st_size)
        data = file.read(limit + 1)
    return File(path, data) if len(data) <= limit else File(path, problem="too big", size=len(data))
