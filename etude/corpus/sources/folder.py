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
from functools import partial
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


class RepositoriesSettings(FilesSettings):
    """Of a source that may hold several repositories."""

    repositories: Literal["one", "children"] = Field(
        default="one", description="all of it is one repository, or each folder at its top is one"
    )

    def repository_of(self, name: str, path: str) -> str:
        return f"{name}/{top_name(path)}" if self.repositories == "children" else name


class Folder:
    """Every file of code below a folder."""

    Settings = RepositoriesSettings

    def __init__(self, settings: RepositoriesSettings) -> None:
        self.settings = settings
        self._root = Path(settings.path).expanduser()
        self.name = settings.name or self._root.resolve().name

    def documents(self) -> Iterator[Document | Rejected]:
        return self.documents_from(0)

    def documents_from(self, start: int) -> Iterator[Document | Rejected]:
        if not self._root.is_dir():
            raise EtudeError(f"the corpus folder {self._root} does not exist; correct `path` of source {self.name}")
        read = partial(read_folder, self._root)
        return read_documents(self.name, self.settings, read, partial(self.settings.repository_of, self.name), start)


class InstalledSettings(SourceSettings):
    tests: bool = Field(default=False, description="with the test suites, which can be twice the size of the rest")
    without: list[str] = Field(
        default=[], description="folders and modules at the top that are left out: packages that tasks are held out of"
    )


class Packages:
    """The packages installed beside the running Python; each counts as a repository."""

    Settings = InstalledSettings
    key, default_name, what = "purelib", "packages", "packages"  # in sysconfig, in the manifest, for people

    def __init__(self, settings: InstalledSettings) -> None:
        self.settings = settings
        self.name = settings.name or self.default_name

    def documents(self) -> Iterator[Document | Rejected]:
        root = Path(sysconfig.get_path(self.key))
        if not root.is_dir():
            raise EtudeError(f"this Python has no {self.what} at {root}: use a `folder` source instead")
        files = RepositoriesSettings(
            path=str(root),
            suffixes=[".py"],
            exclude=self._excluded(),
            max_file_bytes=self.settings.max_file_bytes,
            repositories="children",
        )
        return read_documents(self.name, files, partial(read_folder, root), partial(files.repository_of, self.name))

    def _excluded(self) -> list[str]:
        left_out = [pattern for name in self.settings.without for pattern in (f"{name}/*", f"{name}.py")]
        return left_out if self.settings.tests else [*TEST_FOLDERS, *left_out]


class Stdlib(Packages):
    """The standard library of the running Python; each top-level module or package counts as a repository."""

    key, default_name, what = "stdlib", "stdlib", "standard library"

    def documents(self) -> Iterator[Document | Rejected]:
        for file in super().documents():
            # Not every installation carries the licence file; Python's own licence covers it all.
            yield replace(file, license="permissive") if isinstance(file, Document) else file


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
        # It may have grown since it was measured.
        data = file.read(limit + 1)
    return File(path, data) if len(data) <= limit else File(path, problem="too big", size=len(data))
