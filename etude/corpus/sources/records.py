"""Source: records with a text in each, as data sets are shared: JSONL, Parquet, and folders of Hugging Face `datasets`.

One file, or all such files below a folder, in sorted order; on this disk or at any address that `fsspec` opens
(`s3://...`, `https://...`). Records stream through: memory holds one of them, or one batch of a Parquet file's rows.
Record files come from elsewhere: a record that is too large, not UTF-8 or without text is refused and counted, and a
file that is cut off or damaged is named in an error, since silently half a data set would be worse.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import IO, Any, Literal

from pydantic import Field

from etude.core.errors import EtudeError
from etude.corpus.document import Document, Kind, Rejected, SourceSettings, decode, is_safe_path
from etude.corpus.html_text import html_to_text
from etude.corpus.licenses import License, of_expression

Found = Iterator[tuple[int, dict[str, Any] | Rejected]]  # records with their numbers

LINES = (".jsonl", ".jsonl.gz", ".ndjson", ".json.gz")
TABLES = (".parquet", ".arrow")
ROWS = 64  # of a Parquet file held at once
LARGEST_COLUMN = 2 << 30  # bytes of one column in one row group: it is decoded as a whole


class Records:
    """Every record of JSONL, Parquet or Arrow files."""

    class Settings(SourceSettings):
        path: str = Field(description="a file or a folder of them, here or at an address that fsspec opens")
        text: str = Field(default="text", description="the field that holds the text")
        repository: str = Field(default="", description="the field that says what belongs together; empty: the file")
        file: str = Field(default="", description="the field that holds a path; empty: file and number of the record")
        license: str = Field(default="", description="the field that holds an SPDX licence; empty: all are unknown")
        kind: Kind = Field(default="code", description="code, or text: prose, whose lines may be long")
        format: Literal["plain", "html"] = Field(default="plain", description="html: what a reader would see of it")

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.name = settings.name or PurePosixPath(settings.path).name

    def documents(self) -> Iterator[Document | Rejected]:
        return self.documents_from(0)

    def documents_from(self, start: int) -> Iterator[Document | Rejected]:
        import fsspec

        passing = Passing(start)

        try:
            files, root = fsspec.core.url_to_fs(str(self.settings.path))
            paths = self._files(files, root)
        except (OSError, ValueError, ImportError) as error:
            raise EtudeError(f"corpus source {self.name} cannot read {self.settings.path}: {error}") from None
        for path in paths:
            shown = path.removeprefix(root).lstrip("/") or PurePosixPath(path).name
            read = read_lines if path.endswith(LINES) else read_table
            try:
                with files.open(path, "rb") as stream:
                    for number, record in read(stream, path, self.settings, passing):
                        yield self._document(record, f"{shown}#{number}", shown)
            except EtudeError:
                raise
            except (OSError, EOFError, zlib.error, ValueError) as error:
                raise EtudeError(f"{path} is cut off or damaged: {error}; get it anew or leave it out") from None

    def _files(self, files: Any, root: str) -> list[str]:
        if files.isfile(root):
            if not root.endswith(LINES + TABLES):
                raise EtudeError(f"{root} holds no records that we can read: {', '.join(LINES + TABLES)} are known")
            return [root]
        found = sorted(path for path in files.find(root) if path.endswith(LINES + TABLES))
        if not found:
            raise EtudeError(
                f"there are no files of records at {self.settings.path} ({', '.join(LINES + TABLES)}); correct `path` "
                f"of source {self.name}"
            )
        return found

    def _document(self, record: dict[str, Any] | Rejected, name: str, file: str) -> Document | Rejected:
        if isinstance(record, Rejected):
            return Rejected(name, record.reason, record.size)
        settings = self.settings
        text = record.get(settings.text)
        if not isinstance(text, str):
            return Rejected(name, f"no field {settings.text!r}", 0)
        if len(text) > settings.max_file_bytes:
            return Rejected(name, "too big", len(text))
        text, problem = decode(text.encode("utf-8", "surrogatepass"))
        if problem:
            return Rejected(name, problem, len(text))
        if settings.format == "html":
            text = html_to_text(text)
        path = str(record.get(settings.file) or name) if settings.file else name
        if not is_safe_path(path):
            return Rejected(name, "unsafe name", len(text))
        repository = str(record.get(settings.repository) or file) if settings.repository else file
        return Document(f"{self.name}/{repository}", path, text, self._license(record), self.name, settings.kind)

    def _license(self, record: dict[str, Any]) -> License:
        value = record.get(self.settings.license) if self.settings.license else None
        # The Stack keeps a list of licences for each file: all of them bind.
        names = [str(one) for one in value] if isinstance(value, list) else [value] if isinstance(value, str) else []
        return of_expression(" AND ".join(names)) if names else "unknown"


class Passing:
    """Records that are passed over: an earlier process read them."""

    def __init__(self, left: int) -> None:
        self.left = left

    def over(self, count: int) -> bool:
        """Whether the next `count` records are all passed over; then they are counted."""
        if self.left < count:
            return False
        self.left -= count
        return True


def read_lines(stream: IO[bytes], path: str, settings: Records.Settings, passing: Passing) -> Found:
    """The records of a JSONL file. No line is ever held that is longer than the largest text could make it."""
    # JSON may spell a byte with six characters (\\u00e9); other fields of a record are small.
    longest = 6 * settings.max_file_bytes + 65_536
    lines = gzip.GzipFile(fileobj=stream) if path.endswith(".gz") else stream
    number = 0
    while line := lines.readline(longest):
        number += 1
        if len(line) == longest and not line.endswith(b"\n"):
            size = len(line)
            while (more := lines.readline(io.DEFAULT_BUFFER_SIZE)) and not more.endswith(b"\n"):
                size += len(more)
            if not passing.over(1):
                yield number, Rejected("", "too big", size)
            continue
        if not line.strip() or passing.over(1):
            continue
        try:
            record = json.loads(line)
        except UnicodeDecodeError:
            record = Rejected("", "not UTF-8", len(line))
        except (ValueError, RecursionError):
            record = Rejected("", "not JSON", len(line))
        yield number, record if isinstance(record, (dict, Rejected)) else Rejected("", "not a JSON object", len(line))


def read_table(stream: IO[bytes], path: str, settings: Records.Settings, passing: Passing) -> Found:
    """The rows of a Parquet file, or of an Arrow stream as `datasets` saves them, a few at a time."""
    try:
        import pyarrow
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError:
        raise EtudeError(f"{path} needs pyarrow: pip install 'etude[data]'") from None
    wanted = [name for name in (settings.text, settings.repository, settings.file, settings.license) if name]
    number = 0
    try:
        if path.endswith(".arrow"):
            for batch in pyarrow.ipc.open_stream(stream):
                for start in range(0, batch.num_rows, ROWS):
                    rows = batch.select([n for n in wanted if n in batch.schema.names]).slice(start, ROWS).to_pylist()
                    yield from ((at, row) for at, row in enumerate(rows, number) if not passing.over(1))
                    number += len(rows)
            return
        table = pyarrow.parquet.ParquetFile(stream)
        columns = [name for name in wanted if name in table.schema_arrow.names]
        for group in range(table.num_row_groups):
            facts = table.metadata.row_group(group)
            size = max((facts.column(i).total_uncompressed_size for i in range(facts.num_columns)), default=0)
            if size > LARGEST_COLUMN:
                if not passing.over(1):  # one item stands for the whole group
                    yield number, Rejected("", "too big", size)
                number += facts.num_rows
                continue
            if passing.over(facts.num_rows):
                number += facts.num_rows
                continue
            for batch in table.iter_batches(ROWS, row_groups=[group], columns=columns, use_threads=False):
                yield from ((at, row) for at, row in enumerate(batch.to_pylist(), number) if not passing.over(1))
                number += batch.num_rows
    except pyarrow.ArrowException as error:
        reason = str(error).partition("\n")[0]
        raise EtudeError(f"{path} is cut off or damaged: {reason}; get it anew or leave it out") from None
