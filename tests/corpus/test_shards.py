import dataclasses

import numpy as np
import pytest

from etude.core.errors import EtudeError
from etude.corpus.shards import OpenShard, ShardWriter, id_type

DOCUMENTS = [[5, 6, 7], [1], [9] * 1000, [65535, 0]]


@pytest.fixture
def shard(tmp_path):
    writer = ShardWriter(tmp_path / "shards", "train-000-00000", "uint16")
    for ids in DOCUMENTS:
        writer.append(ids, 10)
    return writer.finish("train", "source")


def test_documents_come_back_as_written(shard, tmp_path):
    opened = OpenShard(tmp_path / "shards", shard, "uint16")
    read = [opened.read(a, b).tolist() for a, b in zip(opened.offsets, opened.offsets[1:], strict=False)]
    assert read == DOCUMENTS
    assert (shard.documents, shard.tokens, shard.text_bytes) == (4, 1006, 40)
    raw = np.fromfile(tmp_path / "shards/train-000-00000.ids", "<u2")
    assert raw.tolist() == [i for ids in DOCUMENTS for i in ids]
    assert sorted(p.suffix for p in (tmp_path / "shards").iterdir()) == [".ids", ".offsets"]


def test_large_vocabularies_take_wide_ids(tmp_path):
    assert (id_type(65536), id_type(65537)) == ("uint16", "uint32")
    writer = ShardWriter(tmp_path, "x", "uint32")
    writer.append([2**31], 1)
    assert OpenShard(tmp_path, writer.finish("train", "s"), "uint32").read(0, 1).tolist() == [2**31]


def test_a_shard_has_no_name_before_it_is_complete(tmp_path):
    writer = ShardWriter(tmp_path, "x", "uint16")
    writer.append([1, 2], 1)
    assert [p.name for p in tmp_path.iterdir()] == ["x.ids.partial"]


def test_reading_gives_a_copy(shard, tmp_path):
    opened = OpenShard(tmp_path / "shards", shard, "uint16")
    opened.read(0, 3)[:] = 0
    assert opened.read(0, 3).tolist() == [5, 6, 7]


@pytest.mark.parametrize("suffix", ["ids", "offsets"])
def test_truncated_swapped_or_missing_files_are_refused(shard, tmp_path, suffix):
    path = tmp_path / f"shards/train-000-00000.{suffix}"
    whole = path.read_bytes()

    def read():
        OpenShard(tmp_path / "shards", shard, "uint16").read(0, 3)

    path.write_bytes(whole[:-2])
    with pytest.raises(EtudeError, match=r"has \d+ bytes instead of"):
        read()
    path.write_bytes(whole + b"\0")
    with pytest.raises(EtudeError, match=r"has \d+ bytes instead of"):
        read()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(EtudeError, match="not the file that the manifest describes"):
        read()
    path.unlink()
    with pytest.raises(EtudeError, match="is missing"):
        read()
    path.write_bytes(whole)
    read()


def test_a_shard_that_cannot_be_read_is_not_called_damaged(shard, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(24, "Too many open files")

    opened = OpenShard(tmp_path / "shards", shard, "uint16")
    monkeypatch.setattr(np, "fromfile", refuse)
    with pytest.raises(EtudeError, match=r"cannot be read: .*Too many open files") as refused:
        opened.read(0, 3)
    assert "build the corpus again" not in str(refused.value)


def test_a_manifest_of_another_corpus_is_refused(shard, tmp_path):
    with pytest.raises(EtudeError, match="bytes instead of"):
        OpenShard(tmp_path / "shards", shard, "uint32")
    other = dataclasses.replace(shard, ids_hash="0" * 64)
    with pytest.raises(EtudeError, match="not the file"):
        OpenShard(tmp_path / "shards", other, "uint16").read(0, 1)
