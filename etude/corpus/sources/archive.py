"""Source: the files inside a zip, a wheel, a tar or a tar.gz. Nothing is ever unpacked to disk.

An archive can lie about everything, so every read has a limit: bytes of one member, bytes of all members
together, bytes of the list of contents. Links, devices, encrypted members and names that point elsewhere are
refused one by one; an archive that inflates past its limit is refused as a whole.
"""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import IO

from pydantic import Field

from etude.core.errors import EtudeError
from etude.corpus.document import Document, File, Rejected, Want, is_safe_path, read_documents
from etude.corpus.sources.folder import RepositoriesSettings

ZIP_SUFFIXES = (".zip", ".whl")
TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz")
MOST_CONTENTS = 32_000_000  # bytes of a zip's list of contents: some 300,000 members, which take 200 MB in memory
LONGEST_READ = 16_000_000  # bytes in one read of a tar: a forged header must not reserve gigabytes
ZIP64_POINTER = 20  # bytes before the end record
ZIP_END = struct.Struct("<4s4H2LH")  # the record that ends a zip; fifth of its numbers is the size of the contents


# What the libraries raise for archives that were cut, corrupted or made to break them.
BROKEN = (
    *(zipfile.BadZipFile, tarfile.TarError, zlib.error, struct.error, EOFError, OSError),
    *(ValueError, OverflowError, NotImplementedError, RecursionError),
)


class Archive:
    """Every file of code inside an archive."""

    class Settings(RepositoriesSettings):
        max_total_bytes: int = Field(
            default=2_000_000_000, gt=0, description="an archive that unpacks to more is refused"
        )

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._path = Path(settings.path).expanduser()
        self.name = settings.name or self._path.name

    def documents(self) -> Iterator[Document | Rejected]:
        return self.documents_from(0)

    def documents_from(self, start: int) -> Iterator[Document | Rejected]:
        if not self._path.is_file():
            raise EtudeError(f"the archive {self._path} does not exist; correct `path` of source {self.name}")
        if not self._path.name.lower().endswith(ZIP_SUFFIXES + TAR_SUFFIXES):
            known = ", ".join(ZIP_SUFFIXES + TAR_SUFFIXES)
            raise EtudeError(f"{self._path} is no archive that we can read; its name must end in one of {known}")
        repository_of = partial(self.settings.repository_of, self.name)
        return read_documents(self.name, self.settings, self._read, repository_of, start)

    def _read(self, want: Want, limit: int) -> Iterator[File]:
        total = self.settings.max_total_bytes
        read = read_zip if self._path.name.lower().endswith(ZIP_SUFFIXES) else read_tar
        try:
            yield from read(self._path, want, limit, total)
        except TooMuch:
            raise EtudeError(
                f"{self._path} unpacks to more than {total} bytes; raise `max_total_bytes` of source {self.name} "
                "if you trust it"
            ) from None
        except BROKEN as error:
            raise EtudeError(f"{self._path} is damaged or no archive: {error}") from error


class TooMuch(Exception):
    """The archive holds more than it may."""


def read_zip(path: Path, want: Want, limit: int, total: int) -> Iterator[File]:
    """The wanted members of a zip or wheel."""
    with path.open("rb") as stream:
        _check_contents(stream, path)
        with zipfile.ZipFile(stream) as archive:
            for info in archive.infolist():
                name = info.filename.removeprefix("./")
                if info.is_dir() or not want(name):
                    continue
                # One bad member is refused and counted; the rest of the archive is still good text.
                if problem := _zip_problem(info, name, limit):
                    yield File(printable(name), problem=problem, size=info.file_size)
                    continue
                total -= info.file_size
                if total < 0:
                    raise TooMuch
                try:
                    with archive.open(info) as member:
                        file = File(name, member.read(limit + 1))
                except BROKEN:
                    file = File(name, problem="damaged", size=info.file_size)
                yield file


def _zip_problem(info: zipfile.ZipInfo, name: str, limit: int) -> str:
    if not is_safe_path(name):
        return "unsafe name"
    kind = info.external_attr >> 28  # the high bits of the Unix mode, 0 when the zip has none
    if kind not in (0, 8):
        return "link or unreadable"
    if info.flag_bits & 1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return "link or unreadable"  # encrypted, or a method whose reader cannot be bounded
    return "too big" if info.file_size > limit else ""


def _check_contents(stream: IO[bytes], path: Path) -> None:
    """Refuse a list of contents that would fill the memory: the library reads it whole when it opens the file."""
    size = stream.seek(0, io.SEEK_END)
    # A comment of up to 65,535 bytes may follow the end record.
    stream.seek(max(0, size - ZIP_END.size - 0xFFFF))
    tail = stream.read()
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or len(tail) - at < ZIP_END.size:
        raise zipfile.BadZipFile("it has no end record")
    contents = ZIP_END.unpack_from(tail, at)[5]
    longer = tail[max(0, at - ZIP64_POINTER) : at].startswith(b"PK\x06\x07")  # then another record counts, anywhere
    if contents > MOST_CONTENTS or longer:
        raise EtudeError(f"{path} lists too many members to be read safely: unpack it and use a `folder` source")
    stream.seek(0)


def read_tar(path: Path, want: Want, limit: int, total: int) -> Iterator[File]:
    """The wanted members of a tar or tar.gz, in one pass."""
    with path.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        inner: IO[bytes] = gzip.GzipFile(fileobj=raw) if packed else raw  # type: ignore[assignment]
        with tarfile.open(fileobj=_Bounded(inner, total), mode="r:") as archive:
            for member in archive:
                # The library remembers every member it has seen, which with millions of them fills the memory.
                archive.members.clear()  # type: ignore[attr-defined]
                name = member.name.removeprefix("./")
                if member.isdir() or not want(name):
                    continue
                if not is_safe_path(name):
                    yield File(printable(name), problem="unsafe name")
                elif member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.sparse is not None:
                    yield File(name, problem="link or unreadable")
                elif member.size > limit:
                    yield File(name, problem="too big", size=member.size)
                else:
                    content = archive.extractfile(member)
                    data = content.read(limit) if content else b""
                    cut = len(data) != member.size
                    yield File(name, problem="damaged", size=member.size) if cut else File(name, data)


class _Bounded(io.RawIOBase):
    """A stream that ends with TooMuch where an honest archive would long be over."""

    def __init__(self, inner: IO[bytes], limit: int) -> None:
        self._inner = inner
        self._limit = limit

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if size < 0 or size > LONGEST_READ:
            raise ValueError("a header asks for an impossible length")
        if self._inner.tell() + size > self._limit + tarfile.RECORDSIZE:
            raise TooMuch
        return self._inner.read(size)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence != io.SEEK_SET:
            raise ValueError("only absolute positions")
        if offset > self._limit + tarfile.RECORDSIZE:
            raise TooMuch
        return self._inner.seek(offset)

    def tell(self) -> int:
        return self._inner.tell()


def printable(name: str) -> str:
    """A hostile name as it may be shown."""
    return ascii(name)[1:-1][:200]
