"""Data sets as they are shared: JSONL, Parquet, Arrow; large, broken and hostile ones included."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import fsspec
import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import pytest

from etude.core.errors import EtudeError
from etude.corpus.document import Document, Rejected
from etude.corpus.filters import find_problem
from etude.corpus.sources.table import open_sources

ROWS = [
    {"text": f"def f{n}(x):\n    return x + {n}\n", "repo": f"r{n % 3}", "at": f"src/m{n}.py", "spdx": "MIT"}
    for n in range(200)
]
FIELDS = {"repository": "repo", "file": "at", "license": "spdx"}


def read(path: Path | str, **settings: Any) -> tuple[list[Document], list[str]]:
    found = list(open_sources([{"use": "records", "path": str(path), **settings}])[0].documents())
    return [f for f in found if isinstance(f, Document)], [f.reason for f in found if isinstance(f, Rejected)]


def write_jsonl(path: Path, rows: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_gzip(path: Path, rows: Sequence[Any]) -> Path:
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    return path


def write_parquet(path: Path, rows: Sequence[Any]) -> Path:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path, row_group_size=70)
    return path


def write_arrow(path: Path, rows: Sequence[Any]) -> Path:
    table = pyarrow.Table.from_pylist(list(rows))
    with path.open("wb") as file, pyarrow.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    return path


WRITERS: dict[str, Callable[[Path, Sequence[Any]], Path]] = {
    "a.jsonl": write_jsonl,
    "a.jsonl.gz": write_gzip,
    "a.parquet": write_parquet,
    "data-00000-of-00001.arrow": write_arrow,
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_record_is_read_with_its_place_and_licence(tmp_path: Path, name: str) -> None:
    documents, reasons = read(WRITERS[name](tmp_path / name, ROWS), **FIELDS)
    assert not reasons and [d.text for d in documents] == [row["text"] for row in ROWS]
    assert [d.path for d in documents] == [row["at"] for row in ROWS]
    assert {d.repo for d in documents} == {f"{name}/r{n}" for n in range(3)}
    assert {d.license for d in documents} == {"permissive"}


def test_a_folder_is_read_in_order_and_names_are_made_up_where_there_are_none(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    write_jsonl(tmp_path / "b" / "two.jsonl", ROWS[:2])
    write_parquet(tmp_path / "a.parquet", ROWS[2:4])
    (tmp_path / "README.md").write_text("not records")
    documents, _ = read(tmp_path, name="set")
    assert [d.path for d in documents] == ["a.parquet#0", "a.parquet#1", "b/two.jsonl#1", "b/two.jsonl#2"]
    assert {d.repo for d in documents} == {"set/a.parquet", "set/b/two.jsonl"}
    assert {d.license for d in documents} == {"unknown"}


def test_other_places_are_opened_by_their_address(tmp_path: Path) -> None:
    with fsspec.open("memory://sets/a.jsonl", "wb") as file:
        file.write(json.dumps(ROWS[0]).encode())
    documents, _ = read("memory://sets")
    assert [d.text for d in documents] == [ROWS[0]["text"]]


def test_of_several_licences_all_bind(tmp_path: Path) -> None:
    rows = [{"text": "x", "l": ["MIT", "Apache-2.0"]}, {"text": "x", "l": ["MIT", "GPL-3.0"]}, {"text": "x", "l": []}]
    documents, _ = read(write_parquet(tmp_path / "a.parquet", rows), license="l")
    assert [d.license for d in documents] == ["permissive", "copyleft", "unknown"]


def test_bad_records_are_counted_and_the_others_read(tmp_path: Path) -> None:
    lines = [b'{"text": "good 1"}', b"{not json", b'{"text": "caf\xff"}', b"[1]", b"", b'{"other": 1}', b'{"text": 7}']
    lines += [json.dumps({"text": "x" * 5000}).encode(), b'{"text": "\\ud800"}', b'{"text": "a\\u0000b"}']
    lines += [b'{"text": "good 2", "at": "../up.py"}', b'{"text": "good 3", "at": "ok.py"}']
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    documents, reasons = read(tmp_path / "a.jsonl", file="at", max_file_bytes=1000)
    assert [d.text for d in documents] == ["good 1", "good 3"]
    missing = "no field 'text'"
    of_form = ["not JSON", "not UTF-8", "not a JSON object", missing, missing, "too big"]
    assert reasons == [*of_form, "not UTF-8", "binary", "unsafe name"]


def test_one_enormous_record_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with path.open("wb") as file:
        file.write(b'{"text": "')
        for _ in range(200):
            file.write(b"x" * 1_000_000)
        file.write(b'"}\n{"text": "small"}\n')
    tracemalloc.start()
    documents, reasons = read(path, max_file_bytes=100_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [d.text for d in documents] == ["small"] and reasons == ["too big"]
    assert peak < 20_000_000


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl.gz", "data.arrow"])
def test_a_file_that_is_cut_off_is_named(tmp_path: Path, name: str) -> None:
    write = {"a.parquet": write_parquet, "a.jsonl.gz": write_gzip, "data.arrow": write_arrow}[name]
    whole = write(tmp_path / name, ROWS).read_bytes()
    for size in (0, 1, len(whole) // 2, len(whole) - 9):
        (tmp_path / name).write_bytes(whole[:size])
        try:
            documents, _ = read(tmp_path / name)
        except EtudeError as error:
            assert f"{tmp_path / name} is cut off or damaged" in str(error)
        else:  # an Arrow stream without its last mark is whole, an empty gzip has no record
            assert len(documents) in (0, len(ROWS))


def test_what_is_not_there_is_said_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(EtudeError, match="there are no files of records at"):
        read(tmp_path)
    with pytest.raises(EtudeError, match="there are no files of records at"):
        read(tmp_path / "nowhere")
    (tmp_path / "a.csv").write_text("text\n")
    with pytest.raises(EtudeError, match="holds no records that we can read"):
        read(tmp_path / "a.csv")
    with pytest.raises(EtudeError, match="cannot read nosuch://x"):
        read("nosuch://x")


PAGE = """<html><head><title>T</title><style>p {}</style></head><body><nav>Home | About</nav>
<h2>Reading   files</h2><p>Use <code>open</code> &amp; close
it.</p><pre>with open(x) as f:
    f.read()  # &lt;bytes&gt;
</pre><ul><li>one<li>two</ul><script>alert(1)</script></body>"""


def test_a_web_page_is_what_a_reader_sees_with_code_line_by_line(tmp_path: Path) -> None:
    documents, _ = read(write_jsonl(tmp_path / "a.jsonl", [{"text": PAGE}]), format="html", kind="text")
    code = "```\nwith open(x) as f:\n    f.read()  # <bytes>\n\n```"
    assert documents[0].text == f"## Reading files\n\nUse open & close it.\n\n{code}\n\n- one\n- two\n"


def test_prose_may_have_long_lines(tmp_path: Path) -> None:
    text = "".join(f"Sentence {number} speaks of something else entirely. " for number in range(60))
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": text}])
    assert find_problem(read(path)[0][0], parse=True) == "long lines"
    assert find_problem(read(path, kind="text")[0][0], parse=True) is None
