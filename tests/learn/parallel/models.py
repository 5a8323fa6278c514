"""Decoders and batches small enough that one process computes what several ranks must agree with."""

from __future__ import annotations

import numpy as np
import torch

from etude.core import recipe as recipes
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder

VOCAB = 37
LATENT = ["shape=deepseek_v3", "kv_rank=8", "rope_dim=4", "shared_experts=1"]
GROUPED = ["shape=qwen3_moe", "kv_heads=1"]
DENSE = ["shape=qwen3", "kv_heads=1"]


def decoder_of(shape: list[str], seed: int = 1, **sizes: int) -> Decoder:
    facts = {"layers": 2, "width": 16, "heads": 2, "head_dim": 8, "mlp": 24}
    facts |= {} if shape is DENSE else {"expert_mlp": 12, "experts": 8}
    overrides = [f"model.{fact}" for fact in (*shape, *(f"{key}={value}" for key, value in (facts | sizes).items()))]
    decoder = Decoder(ModelConfig.from_settings(recipes.load(None, overrides).model, VOCAB), seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in decoder.parameters():
            if parameter.ndim > 1:  # far from uniform, so that a wrong term shows
                parameter.normal_(0.0, 0.3, generator=generator)
    return decoder


def sequences(lengths: list[int], seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, VOCAB, length) for length in lengths]
