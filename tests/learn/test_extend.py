"""Longer sequences: the positions a model gets, and a loss that is counted by position."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch

from etude.core.settings import ExtendSettings, OptimSettings
from etude.learn.extend import loss_by_position, stretch, stretched
from etude.learn.learner import Learner
from etude.model.attention import PackedAttend
from etude.model.decoder import Decoder
from etude.model.yarn import Yarn


class Given:
    """Documents for a test: these, once."""

    def __init__(self, pieces: list[np.ndarray]) -> None:
        self.pieces = pieces

    def take(self, tokens: int) -> list[np.ndarray]:
        return [self.pieces.pop(0)[:tokens]]

    def position(self) -> dict[str, Any]:
        return {}

    def seek(self, position: Mapping[str, Any]) -> None:
        pass


def test_positions_come_from_the_recipe(make_decoder: Callable[..., Decoder]) -> None:
    config = make_decoder().config
    kept = stretched(config, ExtendSettings(sequence=262_144), 512)
    assert (kept.max_position_embeddings, kept.rope_theta, kept.yarn) == (262_144, config.rope_theta, None)
    moved = stretched(config, ExtendSettings(sequence=1024, rope_theta=5e6, yarn=8.0), 512)
    assert (moved.max_position_embeddings, moved.rope_theta) == (4096, 5e6)  # the shape promised that many already
    assert moved.yarn == Yarn(8.0, 512)
    assert stretched(moved, ExtendSettings(yarn=1.0), 512).yarn is None
    assert stretched(moved, ExtendSettings(), 64).yarn == moved.yarn
    assert stretched(config, ExtendSettings(yarn=4.0, yarn_positions=2048), 512).yarn == Yarn(4.0, 2048)


def test_a_stretched_model_has_the_same_weights_and_other_angles(make_decoder: Callable[..., Decoder]) -> None:
    decoder = make_decoder(mtp=1)
    longer = stretch(decoder, ExtendSettings(sequence=8192, yarn=16.0), 64)
    assert all(torch.equal(p, dict(longer.named_parameters())[n]) for n, p in decoder.named_parameters())
    ids, places, attend = torch.arange(30), torch.arange(30), PackedAttend([30])
    assert not torch.allclose(decoder(ids, places, attend), longer(ids, places, attend))
    same = stretch(decoder, ExtendSettings(sequence=8192), 64)
    assert torch.equal(decoder(ids, places, attend), same(ids, places, attend))


def test_the_loss_is_counted_by_position(make_decoder: Callable[..., Decoder], rng: np.random.Generator) -> None:
    decoder = make_decoder(vocab_size=37)
    pieces = [rng.integers(0, 37, length).astype(np.uint16) for length in (300, 90, 600)]
    learner = Learner(decoder, OptimSettings(), 1, 1024)
    found = loss_by_position(learner, Given([piece.copy() for piece in pieces]), 990, 600)
    nats: dict[str, list[float]] = {"": [], "_to_128": [], "_to_256": [], "_to_512": [], "_to_1024": []}
    for piece in pieces:
        ids = torch.from_numpy(piece.astype(np.int64))
        with torch.no_grad():
            logits = decoder.logits(decoder(ids, torch.arange(len(ids)), PackedAttend([len(ids)])))
        losses = torch.nn.functional.cross_entropy(logits[:-1].double(), ids[1:], reduction="none").tolist()
        for place, loss in enumerate(losses, start=1):
            nats[""].append(loss)
            nats[f"_to_{next(end for end in (128, 256, 512, 1024) if place < end)}"].append(loss)
    assert set(found) == {f"held_out_loss{name}" for name in nats}
    for name, values in nats.items():
        assert found[f"held_out_loss{name}"] == pytest.approx(np.mean(values), rel=1e-5)
