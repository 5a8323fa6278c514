"""A corpus in chunks: read on behind a kill, screened by several processes, stopped by a full disk."""

from __future__ import annotations

import dataclasses
import json
import random
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from etude.core.errors import EtudeError
from etude.core.settings import CorpusSettings, TokensSettings
from etude.corpus import dedupe
from etude.corpus.build import build_corpus
from etude.corpus.dedupe import SIZE, MinHash, find_near_duplicates, shingles
from etude.corpus.sources.folder import Folder
from etude.corpus.sources.table import open_sources
from etude.corpus.spool import reading, workers
from etude.corpus.spool.files import Spool, StoredRows
from etude.corpus.spool.reading import Reader

TOKENS = TokensSettings(vocab_size=400, train_bytes=20_000)
SETTINGS = CorpusSettings(held_out=0.15, shard_tokens=4000)


@pytest.fixture
def folder(tree: Callable[[dict[str, str | bytes]], Path], code: Callable[..., str]) -> Path:
    files: dict[str, str | bytes] = {f"repo{n % 12}/file{n}.py": code(n) for n in range(36)}
    files |= {
        "copies/exact.py": code(4),
        "copies/near.py": code(3) + "x = 1\n",
        "bad/short.py": "x",
        "bad/l.py": b"\xe9",
    }
    return tree(files)


def sources(root: Path) -> list[Any]:
    return open_sources([{"use": "folder", "path": str(root), "name": "code", "repositories": "children"}])


def outcome(directory: Path) -> dict[str, Any]:
    facts = json.loads((directory / "manifest.json").read_text())
    return {key: facts[key] for key in ("funnel", "near_duplicates", "contaminated", "shards", "by_repository")}


def test_chunks_and_workers_change_nothing(
    folder: Path, tmp_path: Path, code: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "benchmark.py").write_text(code(7))
    settings = dataclasses.replace(SETTINGS, decontaminate=[str(tmp_path / "benchmark.py")])
    build_corpus(sources(folder), settings, TOKENS, tmp_path / "one", 0)
    monkeypatch.setattr(reading, "CHUNK_BYTES", 6_000)
    monkeypatch.setattr(workers, "ALONE_BYTES", 0)
    made = build_corpus(sources(folder), settings, TOKENS, tmp_path / "many", 0)
    assert outcome(tmp_path / "one") == outcome(tmp_path / "many")
    assert made.funnel.total("contaminated").files == 1 == made.funnel.total("exact duplicate").files


def test_reading_goes_on_behind_the_last_chunk(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_corpus(sources(folder), SETTINGS, TOKENS, tmp_path / "whole", 0)
    monkeypatch.setattr(reading, "CHUNK_BYTES", 6_000)
    began: list[int] = []
    original = Folder.documents_from

    def dying(self: Folder, start: int) -> Iterator[Any]:
        began.append(start)
        for number, item in enumerate(original(self, start)):
            if number == 12:
                raise KeyboardInterrupt
            yield item

    monkeypatch.setattr(Folder, "documents_from", dying)
    for _ in range(20):
        try:
            build_corpus(sources(folder), SETTINGS, TOKENS, tmp_path / "out", 0)
        except KeyboardInterrupt:
            continue
        break
    assert outcome(tmp_path / "whole") == outcome(tmp_path / "out")
    # Never again from the start, and never more read twice than a chunk has.
    assert len(began) >= 4 and all(later > earlier for earlier, later in pairwise(began))


CHILD = """
import os, signal, sys
from pathlib import Path
from etude.core.settings import CorpusSettings, TokensSettings
from etude.corpus.build import build_corpus
from etude.corpus.sources.table import open_sources
from etude.corpus.spool import files, reading
root, out, left = sys.argv[1], sys.argv[2], int(sys.argv[3])
reading.CHUNK_BYTES = 6_000
finish = files.ChunkWriter.finish
def dying(self, facts):
    global left
    left -= 1
    finish(self, facts) if left else os.kill(os.getpid(), signal.SIGKILL)
files.ChunkWriter.finish = dying
spec = {"use": "folder", "path": root, "name": "code", "repositories": "children"}
settings = CorpusSettings(held_out=0.15, shard_tokens=4000)
build_corpus(open_sources([spec]), settings, TokensSettings(400, 20_000), Path(out), 0)
"""


def run_child(folder: Path, out: Path, left: int, *before: str) -> subprocess.CompletedProcess[str]:
    argv = [*before, sys.executable, "-c", CHILD, str(folder), str(out), str(left)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)


def test_kill_9_in_the_middle_of_reading_loses_nothing(folder: Path, tmp_path: Path) -> None:
    build_corpus(sources(folder), SETTINGS, TOKENS, tmp_path / "whole", 0)
    assert run_child(folder, tmp_path / "out", 3).returncode == -signal.SIGKILL
    chunks = sorted(path.name for path in (tmp_path / "out/building").glob("*.json"))
    assert chunks == ["chunk-00000.json", "chunk-00001.json", "plan.json"]
    done = run_child(folder, tmp_path / "out", 10**9)
    assert done.returncode == 0, done.stderr
    assert outcome(tmp_path / "whole") == outcome(tmp_path / "out")


def test_a_disk_that_is_full_in_the_middle_is_one_sentence_and_the_build_goes_on(folder: Path, tmp_path: Path) -> None:
    """A tmpfs in a mount namespace of its own: first too small, then grown."""
    disk = tmp_path / "disk"
    disk.mkdir()
    script = (
        'mount -t tmpfs -o size=48k none "$0" && "$@" 2>&1 | tail -1; '
        'mount -o remount,size=64m "$0" && "$@" 2>&1 && ls "$0/out/manifest.json"'
    )
    argv = ["unshare", "-rm", "sh", "-c", script, str(disk)]
    done = run_child(folder, disk / "out", 10**9, *argv)
    if "Operation not permitted" in done.stderr or "unshare failed" in done.stderr:
        pytest.skip("this machine has no mount namespaces for users")
    first, last = done.stdout.splitlines()[0], done.stdout.splitlines()[-1]
    assert "EtudeError" in first and "No space left on device" in first
    assert last == f"{disk}/out/manifest.json", done.stdout + done.stderr


def test_a_worker_that_dies_is_named_and_the_next_build_goes_on(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "ALONE_BYTES", 0)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/bin/false")
        with pytest.raises(EtudeError, match=r"a worker ended while it looked at .*chunk-00000"):
            build_corpus(sources(folder), SETTINGS, TOKENS, tmp_path / "out", 0)
    assert build_corpus(sources(folder), SETTINGS, TOKENS, tmp_path / "out", 0).tokens("train") > 0


def test_a_spool_reads_documents_in_any_order_with_few_files_open(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "CHUNK_BYTES", 3_000)
    monkeypatch.setattr("etude.corpus.spool.files.OPEN_FILES", 2)
    Reader(sources(folder), 0, tmp_path / "spool").read(lambda chunk: None)
    spool = Spool(tmp_path / "spool")
    expected = [item for item in sources(folder)[0].documents() if hasattr(item, "text")]
    before = len(list(Path("/proc/self/fd").iterdir()))
    order = np.random.default_rng(0).permutation(len(spool)).tolist()
    assert [spool.document(number) for number in order] == [expected[number] for number in order]
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 2
    spool.close()


def test_near_duplicates_of_rows_on_disk_are_those_of_rows_in_memory(
    tmp_path: Path, code: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [code(n % 20, functions=8) + f"tail_{n} = {n}\n" for n in range(60)]
    rows = np.stack([MinHash().sign(shingles(text)) for text in texts])
    rows.tofile(tmp_path / "rows")
    in_memory = find_near_duplicates(rows, 0.7, lambda n: shingles(texts[n]))
    monkeypatch.setattr(dedupe, "ROWS_AT_ONCE", 7)
    monkeypatch.setattr(dedupe, "SORTED_AT_ONCE", 9)
    stored = StoredRows(tmp_path / "rows", SIZE)
    assert find_near_duplicates(stored, 0.7, lambda n: shingles(texts[n]), tmp_path) == in_memory
    assert len(in_memory) == 40 and sorted(path.name for path in tmp_path.iterdir()) == ["rows"]
    stored.close()


def test_memory_hardly_grows_with_the_number_of_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that is held in blocks gets small blocks, so that what is held for each document shows."""
    monkeypatch.setattr(reading, "CHUNK_BYTES", 10_000)
    monkeypatch.setattr("etude.corpus.encode.BATCH_CHARACTERS", 5_000)
    monkeypatch.setattr("etude.corpus.selection.REMEMBERED", 500)
    monkeypatch.setattr(dedupe, "ROWS_AT_ONCE", 64)
    monkeypatch.setattr(dedupe, "SORTED_AT_ONCE", 256)
    monkeypatch.setattr(dedupe, "BLOCK", 16)
    settings = dataclasses.replace(SETTINGS, shard_tokens=20_000)

    def peak(count: int) -> int:
        rng = random.Random(count)
        path = tmp_path / f"{count}.jsonl"
        with path.open("w") as rows:
            for number in range(count):
                text = "\n".join("".join(rng.choices("abcdefghijklmnop", k=4)) for _ in range(40))
                rows.write(json.dumps({"text": text, "path": f"{number}.txt", "repo": f"r{number}"}) + "\n")
        spec = {"use": "records", "path": str(path), "name": "text", "file": "path", "repository": "repo"}
        made = open_sources([spec])
        tracemalloc.start()
        try:
            kept = build_corpus(made, settings, TOKENS, tmp_path / f"out{count}", 0).funnel.total("kept").files
            assert kept > 0.9 * count
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(200)  # what is imported and cached by the first
    few, many = peak(300), peak(1_500)
    assert (many - few) / 1_200 < 40, (few, many)
