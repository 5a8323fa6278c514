"""What a model directory holds and what it would take to train or serve it; and making one with random weights.

Nothing is computed with a model here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args, get_type_hints

from etude.core.errors import EtudeError
from etude.core.settings import ModelSettings, PretrainSettings
from etude.model import size
from etude.model.config import ModelConfig

NUMBERS = {"float32": 4, "bfloat16": 2}  # bytes
LORA_RANK = 16
CACHED = 1000  # tokens
SHAPES: tuple[str, ...] = get_args(get_type_hints(ModelSettings)["shape"])  # those that a recipe can name


def describe(directory: Path) -> dict[str, Any]:
    """From config.json and the headers of the weight files, which need not be there; no weight is read."""
    from etude.model.checkpoint.directory import read_config

    config = read_config(directory)
    return {
        "architecture": json.loads((directory / "config.json").read_text())["model_type"],
        "parameters": size.parameters(config),
        "active_parameters": size.active_parameters(config),
        "shape": _shape(config),
        "stored": _stored(directory),
        "memory": {name: _memory(config, number) for name, number in NUMBERS.items()},
    }


def create(
    directory: Path, settings: ModelSettings, vocab_size: int, seed: int, dtype: str = "float32"
) -> dict[str, Any]:
    """A model with random weights, of the sizes that a recipe's [model] gives it."""
    import torch

    from etude.model.checkpoint.directory import save_model
    from etude.model.decoder import Decoder

    if dtype not in NUMBERS:
        raise EtudeError(f"weights are written as {' or '.join(NUMBERS)}, not as {dtype!r}")
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise EtudeError(f"{directory} exists and is not an empty folder; a new model wants one of its own")
    config = ModelConfig.from_settings(settings, vocab_size)
    save_model(directory, Decoder(config, seed=seed), getattr(torch, dtype))
    return {
        "model": str(directory),
        "architecture": settings.shape,
        "parameters": size.parameters(config),
        "dtype": dtype,
    }


def _shape(config: ModelConfig) -> dict[str, Any]:
    found: dict[str, Any] = {
        "layers": config.num_hidden_layers,
        "width": config.hidden_size,
        "heads": config.num_attention_heads,
        "vocabulary": config.vocab_size,
        "positions": config.max_position_embeddings,
        "tied": config.tie_word_embeddings,
        "mtp_modules": config.num_nextn_predict_layers,
    }
    if config.latent:
        found |= {"query_dim": config.query_dim, "value_dim": config.value_dim, "kv_rank": config.kv_lora_rank}
        found |= {"q_rank": config.q_lora_rank}
    else:
        found |= {"kv_heads": config.num_key_value_heads, "head_dim": config.head_dim}
    if config.yarn:
        found["yarn_factor"] = config.yarn.factor
    if len(config.sparse_layers) < config.num_hidden_layers:
        found["mlp"] = config.intermediate_size
    if config.num_experts:
        found |= {
            "layers_with_experts": len(config.sparse_layers),
            "experts": config.num_experts,
            "experts_per_token": config.num_experts_per_tok,
            "shared_experts": config.n_shared_experts,
            "expert_mlp": config.moe_intermediate_size,
        }
    return found


def _stored(directory: Path) -> dict[str, Any] | None:
    """What the weight files hold; nothing where only the configuration was downloaded."""
    from etude.model.checkpoint.directory import open_stored

    if not any(directory.glob("*.safetensors")):
        return None
    with open_stored(directory) as stored:
        return {"format": stored.describe(), "bytes": stored.bytes, "files": stored.files, "dtypes": stored.dtypes()}


def _memory(config: ModelConfig, number: int) -> dict[str, int]:
    """Bytes, with numbers of so many bytes throughout."""
    tokens = PretrainSettings().micro_tokens
    return {
        "train_full": size.training_bytes(config, tokens, number),
        "train_lora": size.training_bytes(config, tokens, number, LORA_RANK),
        "serve_weights": number * size.parameters(config),
        "serve_cache_1k": number * CACHED * size.cache_entries(config),
    }
