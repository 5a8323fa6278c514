"""A chain of weights: late readers, damaged objects, wrong bases, two writers, a crash between parts and head."""

from __future__ import annotations

import contextlib
import json
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from etude.core.errors import EtudeError
from etude.core.policy import Version
from etude.model.weight_transfer.delta_chain import HEAD, ChainReader, ChainWriter, DamagedObject, NotThere
from etude.model.weight_transfer.object_store import BucketStore, Conflict, DirectoryStore, ObjectStore, open_store

SMALL = 1500  # bytes: a delta is below, a full base above


def weights(step: int) -> dict[str, Tensor]:
    """Each step moves a few values of one tensor and none of the other."""
    found = torch.zeros(50, 20, dtype=torch.bfloat16)
    found.view(-1)[: 7 * step] = 0.5 + step
    return {"w": found, "same": torch.ones(8)}


def equal(found: dict[str, Tensor], step: int) -> bool:
    return all(torch.equal(found[name], tensor) for name, tensor in weights(step).items()) and len(found) == 2


@pytest.fixture(params=["directory", "bucket"])
def store(request: Any, tmp_path: Path) -> ObjectStore:
    return DirectoryStore(tmp_path) if request.param == "directory" else BucketStore("memory:///")


def test_a_reader_may_join_at_any_time_and_has_what_was_published(store: ObjectStore) -> None:
    writer, early = ChainWriter(store, base_every=4), ChainReader(store)
    assert early.newest() is None
    with pytest.raises(EtudeError, match="nothing has been published"):
        early.update()
    sizes = []
    for step in range(10):
        sizes.append(writer.publish(weights(step), Version(0, step)))
        late = ChainReader(store)
        assert equal(late.update(), step) and late.version == Version(0, step)
        if step != 5:  # a slow reader skips one
            assert equal(early.update(), step) and early.newest() == Version(0, step)
    assert [size > SMALL for size in sizes] == [step % 4 == 0 for step in range(10)]
    # The chain before stays for readers that are in the middle of it; everything older is gone.
    left = [f"base/0.{step}-0" for step in (4, 8)] + [f"delta/0.{step}-0" for step in (5, 6, 7, 9)]
    assert sorted(name for name in store.names() if name != HEAD) == left


def test_what_others_keep_in_the_place_of_a_chain_stays(store: ObjectStore) -> None:
    others = ["journal.sqlite", "base/model.safetensors", "delta/x", "damaged/report.txt", "9/8"]
    for name in others:
        store.put(name, b"theirs")
    writer = ChainWriter(store, base_every=1)
    writer.claim("me")
    for step in range(4):
        writer.publish(weights(step), Version(0, step))
    assert {*others} <= {*store.names()} and store.get("journal.sqlite") == b"theirs"
    assert [name for name in store.names() if name not in others] == [HEAD, "base/0.2-0", "base/0.3-0"]


def test_damage_is_refused_and_repaired_by_the_next_version(store: ObjectStore) -> None:
    writer, reader = ChainWriter(store), ChainReader(store)
    writer.publish(weights(0), Version(0, 0))
    reader.update()
    writer.publish(weights(1), Version(0, 1))
    whole = store.get("delta/0.1-0")
    assert whole is not None
    for damaged in (whole[:-1], whole[:40] + bytes([whole[40] ^ 1]) + whole[41:], b""):
        store.put("delta/0.1-0", damaged)
        with pytest.raises(DamagedObject, match="full base"):
            reader.update()
        assert reader.version == Version(0, 0)
    writer.publish(weights(2), Version(0, 2))
    assert equal(reader.update(), 2) and equal(ChainReader(store).update(), 2)
    assert not [name for name in store.names() if name.startswith("damaged/")]
    assert writer.publish(weights(3), Version(0, 3)) < SMALL  # and deltas go on


def test_damage_is_repaired_where_no_version_follows(store: ObjectStore) -> None:
    writer = ChainWriter(store)
    writer.publish(weights(0), Version(0, 0))
    writer.publish(weights(1), Version(0, 1))
    current = ChainReader(store)
    current.update()
    assert not writer.repair()
    store.delete("base/0.0-0")
    reader = ChainReader(store)
    with pytest.raises(DamagedObject):
        reader.update()
    assert writer.repair() and not writer.repair()
    assert equal(reader.update(), 1) and equal(current.update(), 1) and reader.version == Version(0, 1)


def test_a_change_of_other_weights_is_refused(store: ObjectStore) -> None:
    writer, reader = ChainWriter(store), ChainReader(store)
    writer.publish(weights(0), Version(0, 0))
    reader.update()["w"][0, 0] = 9  # somebody wrote over the reader's own copy
    writer.publish(weights(1), Version(0, 1))
    with pytest.raises(EtudeError, match="change of other weights"):
        reader.update()


def test_a_resumed_learner_begins_with_a_full_base_and_the_old_one_is_shut_out(store: ObjectStore) -> None:
    old, reader = ChainWriter(store), ChainReader(store)
    old.publish(weights(0), Version(0, 0))
    old.publish(weights(1), Version(0, 1))
    reader.update()
    ChainWriter(store).publish(weights(5), Version(1, 1))
    with pytest.raises(EtudeError, match="another learner"):
        old.publish(weights(2), Version(0, 2))
    assert equal(reader.update(), 5) and reader.version == Version(1, 1)


def test_versions_of_another_run_are_not_taken_for_those_of_the_one_that_claims_the_chain(store: ObjectStore) -> None:
    old = ChainWriter(store)
    for step in (1, 2):
        old.publish(weights(step), Version(0, step))
    new = ChainWriter(store)
    new.claim("a new run, whose first version is 0.1 as well")
    with pytest.raises(NotThere) as missing:  # and not the weights of step 1
        ChainReader(store).update(Version(0, 1))
    assert missing.value.newest is None  # who asked waits for it
    new.publish(weights(5), Version(0, 1))
    assert equal(ChainReader(store).update(Version(0, 1)), 5)


def test_a_disk_that_fails_is_an_error_of_ours(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "weights")
    (tmp_path / "weights" / "base").write_text("a file where a folder should be")
    for ask in (lambda: store.put("base/0.1-0", b""), lambda: store.get("base/0.1-0")):
        with pytest.raises(EtudeError, match=r"base/0\.1-0 could not be"):
            ask()


def test_a_directory_that_is_away_is_not_an_empty_one(tmp_path: Path) -> None:
    root, away = tmp_path / "mounted" / "weights", tmp_path / "away"
    writer, reader = ChainWriter(DirectoryStore(root)), ChainReader(DirectoryStore(root))
    writer.publish(weights(0), Version(0, 0))
    root.rename(away)
    asked = (reader.update, reader.newest, writer.repair, lambda: writer.publish(weights(1), Version(0, 1)))
    for ask in asked:
        with pytest.raises(EtudeError, match="the directory is gone"):
            ask()
    assert not root.exists()
    away.rename(root)
    assert equal(reader.update(), 0)
    assert writer.publish(weights(1), Version(0, 1)) < SMALL and equal(reader.update(), 1)


def test_nothing_is_seen_of_a_version_before_its_head(store: ObjectStore) -> None:
    writer = ChainWriter(store)
    writer.publish(weights(0), Version(0, 0))
    writer.write_part(weights(1), Version(0, 1), "0", full=False)  # and then the learner dies
    assert equal(ChainReader(store).update(), 0)
    ChainWriter(store).publish(weights(1), Version(1, 1))
    assert equal(ChainReader(store).update(), 1) and "delta/0.1-0" not in store.names()


def test_ranks_write_the_parts_of_their_own_tensors(store: ObjectStore) -> None:
    ranks, reader = [ChainWriter(store), ChainWriter(store)], ChainReader(store)
    for step in range(3):
        shares = [{name: tensor} for name, tensor in weights(step).items()]
        parts = [
            rank.write_part(share, Version(0, step), str(number), full=step == 0)
            for number, (rank, share) in enumerate(zip(ranks, shares, strict=True))
        ]
        ranks[0].commit(parts, Version(0, step), full=step == 0)
        assert equal(reader.update(), step)


BAD_VERSION = json.dumps({"links": [{"version": "x", "full": 1, "parts": []}], "earlier": []}).encode()


@pytest.mark.parametrize("head", [b"", b"[]", b'{"links": [{}]}', BAD_VERSION])
def test_a_head_that_cannot_be_read_is_one_sentence(tmp_path: Path, head: bytes) -> None:
    store = DirectoryStore(tmp_path)
    store.put(HEAD, head)
    with pytest.raises(EtudeError, match="head of a weight chain"):
        ChainReader(store).update()


def test_stores_swap_only_what_was_read(store: ObjectStore) -> None:
    assert store.read_head("HEAD") == (None, "")
    tag = store.swap_head("HEAD", b"1", "")
    with pytest.raises(Conflict):
        store.swap_head("HEAD", b"2", "")
    assert store.swap_head("HEAD", b"2", tag) and store.get("HEAD") == b"2"
    with pytest.raises(Conflict):
        store.swap_head("HEAD", b"3", tag)
    store.delete("HEAD")
    assert store.get("HEAD") is None and store.names() == []


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a//b", "", ".lock", "a/../b", "a b"])
def test_no_name_leaves_the_store(store: ObjectStore, name: str) -> None:
    with pytest.raises(EtudeError, match="no name"):
        store.put(name, b"")


def test_an_address_is_a_path_or_a_bucket(tmp_path: Path) -> None:
    assert isinstance(open_store(str(tmp_path / "w")), DirectoryStore)
    assert isinstance(open_store("memory:///"), BucketStore)
    with pytest.raises(EtudeError, match="nowhere://x cannot be opened"):
        open_store("nowhere://x")


def test_an_error_of_a_bucket_is_one_line() -> None:
    class Broken:
        def get(self, *_: object) -> None:
            raise OSError(self.text)

        text = "Generic S3 error: 500: oops\n\nDebug source:\nGeneric { store: 1 }"

    bucket = BucketStore("memory:///")
    bucket._obstore = broken = Broken()
    with pytest.raises(EtudeError) as failed:
        bucket.get("HEAD")
    assert str(failed.value) == "memory:///: HEAD could not be read: Generic S3 error: 500: oops"
    broken.text = "Error performing PUT http://169.254.169.254/latest/api/token\n\nDebug source:\nx"
    with pytest.raises(EtudeError, match="the environment has no credentials for it, such as AWS_ACCESS_KEY_ID"):
        bucket.get("HEAD")


def test_a_bucket_that_is_not_there_is_no_empty_one() -> None:
    class Gone:
        def get(self, *_: object) -> None:
            raise FileNotFoundError("Object HEAD not found: 404: <Code>NoSuchBucket</Code>\n\nDebug source:")

    bucket: Any = BucketStore("memory:///")
    bucket._obstore = Gone()
    with pytest.raises(EtudeError, match="HEAD could not be read: there is no such bucket"):
        bucket.get("HEAD")


def test_a_bucket_that_says_nothing_is_given_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = f"http://127.0.0.1:{silent.getsockname()[1]}"
        for name in ("AWS_ENDPOINT", "AWS_ENDPOINT_URL"):
            monkeypatch.setenv(name, place)
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
            monkeypatch.setenv(name, "x")
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        monkeypatch.setattr("etude.model.weight_transfer.object_store._SECONDS", 0.2)
        with pytest.raises(EtudeError, match="HEAD could not be read"):
            BucketStore("s3://bucket/run").get("HEAD")
        silent.setblocking(False)
        tries = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                silent.accept()[0].close()
                tries += 1
    assert tries == 1  # of a minute: whoever asked tries again by itself, and meanwhile says what it waits for


def test_a_store_that_comes_back_empty_gets_a_full_base(store: ObjectStore) -> None:
    writer, reader = ChainWriter(store), ChainReader(store)
    writer.claim("me")
    for step in range(2):
        writer.publish(weights(step), Version(0, step))
    reader.update()

    def lose() -> None:
        for name in store.names():
            store.delete(name)

    lose()
    assert writer.repair() and not writer.repair()  # without a further version
    assert equal(reader.update(), 1) and equal(ChainReader(store).update(), 1)
    lose()
    with pytest.raises(EtudeError, match="lost the chain"):
        writer.publish(weights(2), Version(0, 2))
    assert writer.publish(weights(2), Version(0, 2)) > SMALL and equal(reader.update(), 2)
    # Only one writer can begin it anew.
    lose()
    ChainWriter(store).claim("other")
    with pytest.raises(Conflict, match="another learner"):
        writer.publish(weights(3), Version(0, 3))
