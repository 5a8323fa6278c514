"""Sizes that are counted from a shape alone, against models that were built."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

from etude.core.settings import EngineSettings, LoraSettings, ModelSettings
from etude.engine.cache import KeyValueCache
from etude.learn.lora import adapt, parameters
from etude.model import size
from etude.model.checkpoint.directory import named_weights
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder

SMALL = {"width": 24, "layers": 3, "heads": 4, "kv_heads": 2, "head_dim": 8, "mlp": 40, "expert_mlp": 12, "kv_rank": 20}
CHANGES: list[dict[str, Any]] = [
    {"shape": "qwen2"},
    {"shape": "qwen2", "tied": False, "mtp_layers": 1},
    {"shape": "qwen3"},
    {"shape": "qwen3", "tied": False},
    {"shape": "qwen3", "bias": True, "qk_norm": False},
    {"shape": "qwen3", "mtp_layers": 2, "heads": 6, "kv_heads": 3},
    {"shape": "qwen3_moe"},
    {"shape": "qwen3_moe", "experts": 5, "experts_per_token": 1, "mtp_layers": 1},
    {"shape": "deepseek_v3"},
    {"shape": "deepseek_v3", "q_rank": 14, "shared_experts": 2, "dense_layers": 2, "mtp_layers": 1},
    {"shape": "kimi_k2", "bias": True, "tied": False, "dense_layers": 0},
    {"shape": "kimi_k2", "bias": True, "q_rank": 10, "dense_layers": 3},
]
KIMI_K25 = ModelConfig.from_hf(
    {
        "model_type": "kimi_k25",
        "text_config": {
            "vocab_size": 163840,
            "hidden_size": 7168,
            "intermediate_size": 18432,
            "moe_intermediate_size": 2048,
            "num_hidden_layers": 61,
            "num_attention_heads": 64,
            "num_key_value_heads": 64,
            "n_routed_experts": 384,
            "n_shared_experts": 1,
            "num_experts_per_tok": 8,
            "first_k_dense_replace": 1,
            "q_lora_rank": 1536,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "tie_word_embeddings": False,
            "num_nextn_predict_layers": 0,
        },
    }
)


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_weights_are_counted_without_building_the_model(changes: dict[str, Any]) -> None:
    config = ModelConfig.from_settings(ModelSettings(**(SMALL | changes)), vocab_size=97)
    decoder = Decoder(config)
    assert size.parameters(config) == sum(weight.numel() for weight in decoder.parameters())
    unused = config.num_experts - config.num_experts_per_tok
    of_experts = {name: x for name, x in named_weights(decoder).items() if ".mlp.experts.0." in name}
    trunk = sum(weight.numel() for name, weight in decoder.named_parameters() if not name.startswith("mtp."))
    later = tuple(f"model.layers.{layer}." for layer in range(config.num_hidden_layers, config.cache_layers))
    idle = sum(x.numel() for name, x in of_experts.items() if not name.startswith(("mtp.", *later)))
    assert size.active_parameters(config) == trunk - unused * idle
    adapt(decoder, LoraSettings(rank=3), seed=0)
    assert size.adapter_parameters(config, 3) == sum(weight.numel() for weight in parameters(decoder).values())


@pytest.mark.parametrize("changes", CHANGES[::3], ids=str)
def test_the_cache_of_a_token_is_counted_as_the_engine_keeps_it(changes: dict[str, Any]) -> None:
    config = ModelConfig.from_settings(ModelSettings(**(SMALL | changes)), vocab_size=97)
    settings = EngineSettings(max_running=1, max_length=32, cache_tokens=16)
    cache = KeyValueCache(config, settings, "cpu", torch.float32)
    assert cache.rows_LPRKSD.numel() == 32 * size.cache_entries(config)


def test_the_largest_shape_is_weighed_by_its_published_numbers() -> None:
    assert 1.02e12 < size.parameters(KIMI_K25) < 1.04e12  # published as 1T
    assert 32e9 < size.active_parameters(KIMI_K25) < 33e9  # published as 32B
    assert size.cache_entries(KIMI_K25) == 61 * 576


def test_adapters_take_little_more_than_the_weights() -> None:
    full, lora = (size.training_bytes(KIMI_K25, 4096, 2, rank) for rank in (0, 16))
    weights = 2 * size.parameters(KIMI_K25)
    assert full > 4 * weights
    assert weights < lora < 1.1 * weights


def test_a_model_is_weighed_without_torch() -> None:
    check = "import sys, etude.model.config, etude.model.size, etude.pipeline.execute; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], timeout=60, check=False).returncode == 0
