"""The engine tells where every token was routed: prompts, prefix hits, preempted requests and all."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from etude.core.policy import Sampling, Version
from etude.core.settings import EngineSettings
from etude.engine.engine import Engine
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder
from etude.model.experts import Routing
from etude.model.packed_forward import Packed

SHAPE = ModelConfig(
    97,
    32,
    48,
    3,
    4,
    4,
    8,
    max_position_embeddings=256,
    model_type="deepseek_v3",
    kv_lora_rank=16,
    qk_nope_head_dim=12,
    qk_rope_head_dim=8,
    v_head_dim=10,
    num_experts=6,
    num_experts_per_tok=2,
    moe_intermediate_size=24,
    n_shared_experts=1,
    scoring="sigmoid",
    first_k_dense_replace=1,
    qk_norm=False,
)


@pytest.fixture(scope="module")
def mixture() -> Decoder:
    torch.set_num_threads(1)
    decoder = Decoder(SHAPE, 3)
    with torch.no_grad():
        for parameter in decoder.parameters():
            if parameter.ndim > 1:
                parameter.mul_(8)
    return decoder


def routes(decoder: Decoder, ids: list[int]) -> np.ndarray:
    """Of one plain forward without any cache."""
    packed = Packed(decoder, [np.array(ids)])
    packed.routing = Routing()
    with torch.no_grad():
        packed.hidden()
    return packed.routing.chosen_TBK.numpy()


def test_every_token_but_the_last_comes_with_its_experts(mixture: Decoder, finish: Callable) -> None:
    tight = EngineSettings(max_running=4, cache_tokens=160, block_tokens=8, max_length=96, prefill_tokens=16)
    engine = Engine(mixture, tight, Version(0, 0))
    rng = np.random.default_rng(0)
    shared = rng.integers(0, 97, 24).tolist()
    asked = [
        engine.submit([*shared, *rng.integers(0, 97, 3 + i).tolist()], Sampling(max_tokens=30, seed=i))
        for i in range(6)
    ]
    finish(engine)
    assert engine.scheduler.preemptions > 0 and any(request.cached_tokens for request in asked)
    for request in asked:
        assert request.experts is not None and request.experts.dtype == np.int16
        assert np.array_equal(request.experts, routes(mixture, request.tokens)[:-1])
        sample = request.answer()
        assert sample.experts is request.experts


def test_what_the_asker_knows_already_is_left_out(mixture: Decoder, finish: Callable) -> None:
    engine = Engine(mixture, EngineSettings(max_running=4, cache_tokens=512, max_length=128), Version(0, 0))
    request = engine.submit(list(range(40)), Sampling(max_tokens=5), routed=31)
    finish(engine)
    assert request.experts is not None and request.experts.shape == (40 + 5 - 1 - 31, 2, 2)
    assert np.array_equal(request.experts, routes(mixture, request.tokens)[31:-1])


def test_a_model_without_experts_tells_of_none(engine: Engine, finish: Callable) -> None:
    request = engine.submit([1, 2, 3], Sampling(max_tokens=3))
    finish(engine)
    assert request.experts is None and not engine.cache.routes


def test_latent_rows_hold_one_plane(mixture: Decoder) -> None:
    engine = Engine(
        mixture, EngineSettings(max_running=2, cache_tokens=64, block_tokens=8, max_length=32), Version(0, 0)
    )
    assert engine.cache.rows_LPRKSD.shape == (3, 1, 2, 1, 32, 16 + 8)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_seed_gives_the_same_answer_in_any_company(mixture: Decoder, finish: Callable, temperature: float) -> None:
    settings = EngineSettings(max_running=6, cache_tokens=1024, block_tokens=8, max_length=96, prefill_tokens=32)
    prompts = [np.random.default_rng(i).integers(0, 97, 5 + 3 * i).tolist() for i in range(5)]
    wanted = [Sampling(max_tokens=12, temperature=temperature, seed=i) for i in range(5)]
    together = Engine(mixture, settings, Version(0, 0))
    asked = [together.submit(*pair) for pair in zip(prompts, wanted, strict=True)]
    finish(together)
    for request, ids, how in zip(asked, prompts, wanted, strict=True):
        alone = Engine(mixture, settings, Version(0, 0))
        again = alone.submit(ids, how)
        finish(alone)
        assert again.tokens == request.tokens
        np.testing.assert_allclose(again.logprobs, request.logprobs, atol=2e-5)
