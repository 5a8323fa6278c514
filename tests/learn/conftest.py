"""Builders shared by the learner's tests: a decoder small enough for brute force."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from etude.model.config import ModelConfig
from etude.model.decoder import Decoder

torch.set_num_threads(1)

VOCAB = 37


@pytest.fixture
def make_decoder() -> Callable[..., Decoder]:
    """A decoder whose distributions are far from uniform, so that a wrong term shows."""

    def make(seed: int = 0, mtp: int = 0, deviation: float = 0.3, **shape: int) -> Decoder:
        facts = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "vocab_size": VOCAB} | shape
        config = ModelConfig(
            **facts, num_attention_heads=4, num_key_value_heads=2, head_dim=8, num_nextn_predict_layers=mtp
        )
        decoder = Decoder(config, seed=seed)
        generator = torch.Generator().manual_seed(seed + 1000)
        with torch.no_grad():
            for parameter in decoder.parameters():
                if parameter.ndim > 1:
                    parameter.normal_(0.0, deviation, generator=generator)
        return decoder

    return make


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)
