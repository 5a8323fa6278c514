"""The learner in other precisions and with recomputation, against itself in float32; and how much of it a step is."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType

import numpy as np
import pytest
import torch

import etude.learn
from etude.core.settings import ComputeSettings, OptimSettings
from etude.learn.learner import Learner
from etude.learn.optim import measured_update
from etude.learn.streams import Batch, Correction, Item, Label, MainHead, Sampled, Stream, Twin
from etude.model.decoder import Decoder
from etude.model.training import ready

Make = Callable[..., Decoder]
VOCAB = 37


def batch(seed: int = 0) -> Batch:
    """Every kind of target, two of them on the same tokens."""
    rng, items = np.random.default_rng(seed), []
    for length in (24, 9, 31):
        tokens = rng.integers(0, VOCAB, length)
        weight, noise = np.full(length, 1 / 64, np.float32), rng.normal(size=(2, length)).astype(np.float32)
        hinted, places = np.concatenate((tokens[:4], [1, 2], tokens[4:])), np.arange(length)
        twin = Twin(tokens_U=hinted, align_T=places + 2 * (places > 3))
        targets = [Label(tokens), Sampled(noise[0], noise[1] - 3), twin]
        streams = [Stream("main", weight, target) for target in targets] + [Stream("mtp.1", weight, MainHead())]
        items.append(Item(tokens, streams, 0.9))
    return Batch(items, Correction("truncate", high=2.0))


def gradient(decoder: Decoder, **compute: object) -> tuple[torch.Tensor, dict[str, float]]:
    ready(decoder, ComputeSettings(**compute), "cpu", 64)  # type: ignore[arg-type]
    learner = Learner(decoder, OptimSettings(), 10, 64)
    metrics = learner.forward_backward(batch())
    return torch.cat([p.grad.flatten() for p in decoder.parameters() if p.grad is not None]).double(), metrics


@pytest.mark.parametrize("precision, tolerance", [("bfloat16", 0.05), ("fp8", 0.2)])
def test_a_rounded_gradient_points_where_the_exact_one_does(
    make_decoder: Make, precision: str, tolerance: float
) -> None:
    shape = {"hidden_size": 32, "intermediate_size": 48}
    wanted, exact = gradient(make_decoder(1, mtp=1, deviation=0.1, **shape))
    found, metrics = gradient(make_decoder(1, mtp=1, deviation=0.1, **shape), precision=precision)
    assert float((found - wanted).norm() / wanted.norm()) < tolerance
    assert metrics["loss"] == pytest.approx(exact["loss"], rel=0.02)


def test_recomputation_changes_no_bit_of_the_gradient(make_decoder: Make) -> None:
    wanted, _ = gradient(make_decoder(1, mtp=1))
    found, _ = gradient(make_decoder(1, mtp=1), recompute=True)
    assert torch.equal(found, wanted)


def test_rounded_training_keeps_float32_weights_and_learns(make_decoder: Make) -> None:
    for precision in ("bfloat16", "fp8"):
        decoder = make_decoder(1, mtp=1, deviation=0.05, hidden_size=32, intermediate_size=48)
        ready(decoder, ComputeSettings(precision=precision), "cpu", 64)  # type: ignore[arg-type]
        learner = Learner(decoder, OptimSettings(), 20, 64)
        losses = []
        for _ in range(20):
            losses.append(learner.forward_backward(batch())["label_loss"])
            learner.step()
        assert losses[-1] < 0.9 * losses[0]
        assert {p.dtype for p in decoder.parameters()} == {torch.float32}


def test_the_entropy_of_sampled_tokens_is_a_metric(make_decoder: Make) -> None:
    decoder = make_decoder(1, mtp=1)
    _, metrics = gradient(decoder)
    total, count = 0.0, 0
    for item in batch().items:
        tokens = torch.from_numpy(item.tokens_T)
        with torch.no_grad():
            hidden = decoder(tokens, torch.arange(len(tokens)), _attend(len(tokens)))
            logp = (decoder.logits(hidden).double() / 0.9).log_softmax(-1)[:-1]
        total, count = total - float((logp.exp() * logp).sum()), count + len(tokens) - 1
    assert metrics["entropy"] == pytest.approx(total / count, rel=1e-5)


def _attend(length: int):  # type: ignore[no-untyped-def]
    from etude.model.attention import PackedAttend

    return PackedAttend([length])


def test_all_that_a_step_executes_here_is_read_in_one_sitting(make_decoder: Make) -> None:
    """Counted on a step with every kind of target: the lines of each function of learn/ that ran, and the streams."""
    learner = Learner(make_decoder(1, mtp=1), OptimSettings(), 10, 64)
    ran: set[CodeType] = set()
    sys.setprofile(lambda frame, event, _: ran.add(frame.f_code) if event == "call" else None)
    try:
        learner.forward_backward(batch())
        with measured_update(learner.optimiser.parameters.values()):
            learner.step()
    finally:
        sys.setprofile(None)
    folder = Path(etude.learn.__path__[0])
    streams = folder / "streams.py"  # most of it declares what the functions work on and runs when it is loaded
    lines = {(streams, number) for number, _ in enumerate(streams.read_text().splitlines(), start=1)}
    for code in ran:
        if (path := Path(code.co_filename)).parent == folder:
            source, first = inspect.getsourcelines(code)
            lines |= {(path, number) for number in range(first, first + len(source))}
    visited = {path.stem for path, _ in lines}
    assert visited == {"learner", "packing", "streams", "loss", "twins", "optim"}
    assert len(lines) < 600
