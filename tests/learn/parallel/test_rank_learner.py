"""The learner on several gloo ranks against one rank: steps, scores, checkpoints for any number of ranks, publishing.

benchmarks/scale/layouts.py has the batches and compares all layouts; here are some of them. One set of processes is
started for all tests of this file.
"""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks.scale import layouts
from etude.core.errors import EtudeError
from etude.core.policy import Version
from etude.learn import lora
from etude.learn.learner import Learner
from etude.learn.parallel.launch import Ranks
from etude.learn.parallel.layout import Layout
from etude.learn.streams import Batch, Sampled
from etude.model.checkpoint.directory import load_model, named_weights
from etude.model.checkpoint.tensors import INDEX
from etude.model.weight_transfer.shared_memory import WeightBoard

STEPS = 4  # the benchmark makes ten


@functools.cache
def one_rank(model: str) -> layouts.Truth:
    return layouts.one_rank(model, STEPS)


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(4) as started:
        yield started


@pytest.mark.parametrize(
    ("model", "layout"),
    [
        ("dense", Layout(2, 1, 2)),
        ("dense", Layout(2, context=2)),
        ("moe", Layout(4, 2, 2)),
        ("moe", Layout(4, 1, 4, expert=2)),
        ("moe", Layout(4, 1, 2, expert=4, context=2)),
        ("lora", Layout(4, 1, 4)),
    ],
)
def test_several_ranks_do_what_one_does(ranks: Ranks, model: str, layout: Layout) -> None:
    found = layouts.difference(ranks, model, layout, one_rank(model))
    assert found["loss"] < 1e-5
    assert found["gradient"] < 1e-4
    assert found["weights"] < 1e-4
    assert found["scores"] < 1e-4
    assert found["metrics"] < 1e-3


@pytest.mark.parametrize(("model", "layout"), [("dense", Layout(4, 1, 4)), ("moe", Layout(4, 1, 4, expert=2))])
def test_eight_bit_products_of_sharded_weights_round_as_those_of_one_rank(
    ranks: Ranks, model: str, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each product rounds rows and columns of the tokens that it has, and ranks have other tokens together."""
    exact = one_rank(model)
    monkeypatch.setattr(layouts, "COMPUTE", replace(layouts.COMPUTE, precision="fp8"))
    rounded = layouts.one_rank(model, 1)
    off = max(layouts.apart(rounded.gradients[name], gradient) for name, gradient in exact.gradients.items())
    found = layouts.difference(ranks, model, layout, rounded)
    assert off > 0.2  # so much the rounding itself does to a gradient
    assert found["gradient"] < off / 10
    assert found["loss"] < 0.02 * rounded.metrics[0]["loss"]


def odd_batches(model: str) -> list[Batch]:
    """Of one item, with a gradient that is not finite, of nothing, of items that do not count; then a plain one."""
    items, correction = layouts.batch(1, model).items, layouts.batch(1, model).correction
    stream = items[1].streams[0]
    assert isinstance(stream.target, Sampled)
    broken = replace(stream, target=replace(stream.target, advantage_T=stream.target.advantage_T * np.nan))
    silent = replace(stream, weight_T=0 * stream.weight_T)
    chosen = [[items[5]], [replace(items[1], streams=[broken]), *items[2:]], [], [replace(items[1], streams=[silent])]]
    return [*(Batch(some, correction) for some in chosen), layouts.batch(2, model)]


def test_batches_that_leave_ranks_idle_or_are_skipped_do_what_they_do_on_one(ranks: Ranks) -> None:
    live, frozen = layouts.starting("moe")
    one = Learner(live, layouts.OPTIM, layouts.STEPS, layouts.MICRO, frozen=frozen)
    several = layouts.open_ranks(ranks, "moe", Layout(4, 1, 2, expert=4, context=2))
    close = functools.partial(pytest.approx, rel=1e-3, abs=1e-4, nan_ok=True)
    for batch in odd_batches("moe"):
        expected, found = ({**each.forward_backward(batch), **each.step()} for each in (one, several))
        assert found == {name: close(value) for name, value in expected.items()}
        assert found["lr"] == expected["lr"]
        if one.steps == 3:  # as a stage does that ends by its seconds
            one.total_steps = several.total_steps = 5
    assert one.skipped == several.skipped == 1
    weights, items = several.whole_weights(), layouts.batch(9, "moe").items
    assert max(layouts.apart(weights[name], p.detach()) for name, p in one.decoder.named_parameters()) < 1e-4
    for theirs, ours in zip(one.score(items, "ema"), several.score(items, "ema"), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)
    several.close()


def test_a_checkpoint_of_four_ranks_continues_on_two_and_on_one(ranks: Ranks, tmp_path: Path) -> None:
    model, expected = "moe", one_rank("moe")
    four = layouts.open_ranks(ranks, model, Layout(4, 1, 4, expert=2))
    for step in range(3):
        four.forward_backward(layouts.batch(step, model))
        four.step()
    four.save(tmp_path)
    four.close()
    saved = named_weights(load_model(tmp_path))
    assert len(list(tmp_path.glob("model-*-of-00004.safetensors"))) == 4
    two = layouts.open_ranks(ranks, model, Layout(2, 2, 1))
    two.restore(tmp_path)
    live, frozen = layouts.starting(model)
    one = Learner(live, layouts.OPTIM, layouts.STEPS, layouts.MICRO, frozen=frozen)
    one.restore(tmp_path)
    assert (one.steps, two.steps) == (3, 3)
    for name, weight in named_weights(one.decoder).items():
        assert torch.equal(weight, saved[name])
    for step in range(3, STEPS):
        for learner in (one, two):
            metrics = learner.forward_backward(layouts.batch(step, model)) | learner.step()
            assert metrics["loss"] == pytest.approx(expected.metrics[step]["loss"], abs=1e-5)
    two.close()


def test_a_checkpoint_of_four_ranks_continues_on_eight(ranks: Ranks, tmp_path: Path) -> None:
    """More ranks than wrote it, and other parts of every tensor: rows and experts of one file go to two ranks."""
    model, expected = "moe", one_rank("moe")
    four = layouts.open_ranks(ranks, model, Layout(4, 1, 4, expert=2))
    four.forward_backward(layouts.batch(0, model))
    four.step()
    four.save(tmp_path)
    four.close()
    with Ranks(8) as more:
        eight = layouts.open_ranks(more, model, Layout(8, 1, 4, expert=8, context=2))
        eight.restore(tmp_path)
        assert eight.steps == 1
        metrics = eight.forward_backward(layouts.batch(1, model)) | eight.step()
        assert metrics["loss"] == pytest.approx(expected.metrics[1]["loss"], abs=1e-5)
        # After a step, so that the moments that were read count as well.
        following = eight.forward_backward(layouts.batch(2, model))
        assert following["loss"] == pytest.approx(expected.metrics[2]["loss"], abs=1e-5)
        eight.close()


def test_a_checkpoint_of_one_rank_continues_on_four(ranks: Ranks, tmp_path: Path) -> None:
    model, expected = "lora", one_rank("lora")
    live, frozen = layouts.starting(model)
    one = Learner(live, layouts.OPTIM, layouts.STEPS, layouts.MICRO, frozen=frozen)
    one.forward_backward(layouts.batch(0, model))
    one.step()
    one.save(tmp_path)
    four = layouts.open_ranks(ranks, model, Layout(4, 2, 2))
    four.restore(tmp_path)
    metrics = four.forward_backward(layouts.batch(1, model))
    assert metrics["loss"] == pytest.approx(expected.metrics[1]["loss"], abs=1e-5)
    four.close()


def test_what_ranks_publish_and_save_is_the_model(ranks: Ranks, tmp_path: Path) -> None:
    learner = layouts.open_ranks(ranks, "lora", Layout(2, 1, 2))
    learner.forward_backward(layouts.batch(0, "lora"))
    learner.step()
    board = WeightBoard.create(tmp_path / "board", layouts.decoder("lora"))
    learner.publish(board, Version(0, 1))
    published, folder = layouts.decoder("lora", 9), tmp_path / "saved"
    board.load_into(published, Version(0, 1))
    folder.mkdir()
    learner.save(folder)
    learner.close()
    saved = named_weights(load_model(folder))
    for name, weight in named_weights(published).items():
        assert torch.equal(weight, saved[name])
    # Adapters are added: the sum is not what training began with.
    assert not torch.equal(
        saved["model.layers.0.self_attn.q_proj.weight"], layouts.decoder("lora").model.layers[0].self_attn.q_proj.weight
    )


def test_adapters_that_a_rank_has_whole_are_copied_before_a_save_in_the_background(
    ranks: Ranks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, moved, written = layouts.open_ranks(ranks, "lora", Layout(2, 2, 1)), threading.Event(), lora.save

    def slow(*arguments: Any) -> None:
        assert moved.wait(60)
        written(*arguments)

    folders = [tmp_path / "now", tmp_path / "beside"]
    for folder in folders:
        folder.mkdir()
    learner.save(folders[0])
    monkeypatch.setattr(lora, "save", slow)
    learner.begin_save(folders[1])
    learner.forward_backward(layouts.batch(0, "lora"))
    learner.step()
    moved.set()
    learner.finish_save()
    learner.close()
    now, beside = (load_file(next(folder.glob("adapter/*.safetensors"))) for folder in folders)
    assert now.keys() == beside.keys() and all(torch.equal(now[name], beside[name]) for name in now)


def test_what_is_refused_is_refused_on_all_ranks(ranks: Ranks, tmp_path: Path) -> None:
    learner = layouts.open_ranks(ranks, "dense", Layout(2, 1, 2))
    with pytest.raises(EtudeError, match="cannot be resumed"):
        learner.restore(tmp_path)
    items = layouts.batch(0, "dense").items
    wrong = replace(items[0], experts_TBK=np.zeros((len(items[0].tokens_T), 1, 2), np.int16))
    with pytest.raises(EtudeError, match="recorded of other tokens or by another model"):
        learner.score([wrong])
    learner.save(tmp_path)
    path = next(tmp_path.glob("model-00002-of-*.safetensors"))
    tensors = load_file(path)
    lost = min(tensors)
    del tensors[lost]
    save_file(tensors, path)
    index = json.loads((tmp_path / INDEX).read_text())
    del index["weight_map"][lost]
    (tmp_path / INDEX).write_text(json.dumps(index))
    with pytest.raises(EtudeError, match=f"lacks.*{lost}"):
        learner.restore(tmp_path)
    # And the ranks go on.
    assert np.isfinite(learner.score(items)[0]).all()
    learner.close()
