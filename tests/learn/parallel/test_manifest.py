"""Batches as manifests: which rank opens or is sent which items, and what is refused."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.scale import layouts
from etude.core.errors import EtudeError
from etude.core.transport import pack, write_frame
from etude.learn.parallel.launch import Ranks
from etude.learn.parallel.layout import Layout
from etude.learn.parallel.manifest import ItemFacts, Manifest, read_item, remove_batch, write_batch
from etude.learn.parallel.rank_learner import RankLearner
from etude.learn.streams import Batch, Item
from tests.learn.parallel.groups import Found, run_ranks

LAYOUT = Layout(4, 1, 2, expert=4, context=2)


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(2) as started:
        yield started


def one_batch(rank: int, ranks: int, folder: Path | None) -> Found:
    """One rank's part of a batch: the items that it saw, and the loss of all."""
    batch = layouts.batch(0, "moe")
    sources = dict(zip(("live", "frozen"), layouts.starting("moe"), strict=True)) if not rank else {}
    learner = RankLearner(layouts.spec("moe", LAYOUT), sources)
    opened: list[int] = []
    received: list[int] = []
    open_item, scatter = Manifest.open, learner.host.scatter

    def opens(self: Manifest, number: int) -> Item:
        opened.append(number)
        return open_item(self, number)

    def scatters(parts: list[bytes] | None) -> bytes:
        found = scatter(parts)
        # Rank 0 has all of them anyway; of the others we look at the bytes themselves.
        received.extend(n for n, item in enumerate(batch.items) if rank and item.tokens_T.tobytes() in found)
        return found

    Manifest.open, learner.host.scatter = opens, scatters  # type: ignore[method-assign,assignment]
    manifest, held = (written(folder), None) if folder is not None else (Manifest.of(batch), batch.items)
    loss = learner.forward_backward(manifest, held if not rank else None)["loss"]
    found = {"opened": sorted(opened), "received": received[:], "loss": loss}
    opened.clear()
    received.clear()
    scores = learner.score(manifest, "live", held if not rank else None)
    sums = [float(score.sum()) for score in scores]
    return found | {"opened to score": sorted(opened), "received to score": received, "scores": sums}


def written(folder: Path) -> Manifest:
    """What the orchestrator would have said of the files that lie there."""
    entries = []
    for file in sorted(folder.iterdir()):
        data = file.read_bytes()
        entries.append(replace(ItemFacts.of(read_item(data)), file=file.name, digest=hashlib.sha256(data).hexdigest()))
    return Manifest(entries, layouts.batch(0, "moe").correction, str(folder))


def shares_are_apart(shares: list[list[int]]) -> None:
    """Of two pairs of ranks, each computing its sequences together."""
    assert shares[0] == shares[1] and shares[2] == shares[3]
    assert shares[0] and shares[2] and not {*shares[0]} & {*shares[2]}
    assert sorted([*shares[0], *shares[2]]) == list(range(7))


def test_a_rank_opens_its_own_files_and_no_other(tmp_path: Path) -> None:
    write_batch(layouts.batch(0, "moe"), tmp_path / "batch", "batch")
    found = run_ranks(functools.partial(one_batch, folder=tmp_path / "batch"), 4, tmp_path)
    shares_are_apart([each["opened"] for each in found])
    shares_are_apart([each["opened to score"] for each in found])
    assert not any(each["received"] or each["received to score"] for each in found), "nothing is sent"
    expected = layouts.alone("moe").score(layouts.batch(0, "moe").items)
    assert found[0]["scores"] == pytest.approx([float(score.sum()) for score in expected], abs=1e-3)
    assert found[0]["loss"] == pytest.approx(layouts.one_rank("moe", 1).metrics[0]["loss"], abs=1e-5)


def test_of_a_batch_without_files_a_rank_receives_its_own_items_and_no_other(tmp_path: Path) -> None:
    found = run_ranks(functools.partial(one_batch, folder=None), 4, tmp_path)
    received = [each["received"] for each in found]
    shares_are_apart([received[1], *received[1:]])
    assert not any(each["opened"] for each in found)
    assert found[0]["loss"] == pytest.approx(layouts.one_rank("moe", 1).metrics[0]["loss"], abs=1e-5)


def test_an_item_that_a_rank_refuses_is_refused_by_all_of_them_and_they_go_on(ranks: Ranks, tmp_path: Path) -> None:
    learner = layouts.open_ranks(ranks, "dense", Layout(2, 1, 2))
    batch = layouts.batch(0, "dense")
    item = batch.items[3]
    foreign = replace(item, tokens_T=np.full_like(item.tokens_T, layouts.VOCABULARY))
    for broken, words in (
        (Batch([*batch.items[:3], foreign, *batch.items[4:]], batch.correction), r"ids outside of .* \(rank \d\)"),
        (replace(batch), r"batch-00005.item is not the one that was written \(rank \d\)"),
        (replace(batch), r"batch-00005.item cannot be read: .* \(rank \d\)"),
    ):
        manifest = write_batch(broken, tmp_path, "batch")
        path = tmp_path / manifest.items[5].file
        if "written" in words:
            path.write_bytes(b"something else")
        elif "read" in words:
            path.unlink()
        with pytest.raises(EtudeError, match=words):
            learner.forward_backward_files(manifest)
        with pytest.raises(EtudeError, match=words):
            learner.score_files(manifest)
    found = learner.forward_backward_files(write_batch(batch, tmp_path, "batch"))
    assert found["loss"] == pytest.approx(layouts.one_rank("dense", 1).metrics[0]["loss"], abs=1e-5)
    learner.close()


def test_a_file_is_what_its_manifest_says_and_in_its_folder(tmp_path: Path) -> None:
    batch = layouts.batch(0, "moe")
    manifest = write_batch(batch, tmp_path / "batch", "batch")
    for number, item in enumerate(batch.items):
        assert write_frame(pack(manifest.open(number))) == write_frame(pack(item))
    entry = manifest.items[0]
    for wrong, words in (
        (replace(entry, file="../model"), "no name of an item's file"),
        (replace(entry, file="batch-77777.item"), "cannot be read"),
        (replace(entry, room=1), "not what its manifest says"),
    ):
        with pytest.raises(EtudeError, match=words):
            replace(manifest, items=[wrong]).open(0)
    remove_batch(manifest)
    assert not list((tmp_path / "batch").iterdir())
