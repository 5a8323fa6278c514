"""Models to plan for: named shapes, a config.json, or what a recipe describes. No weight is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from etude.core.errors import EtudeError
from etude.core.recipe import Recipe, hint
from etude.model.config import ModelConfig

_QWEN3: dict[str, Any] = {"model_type": "qwen3", "vocab_size": 151_936, "num_key_value_heads": 8, "head_dim": 128}
_QWEN3 |= {"rope_theta": 1e6, "max_position_embeddings": 40_960}
_LATENT: dict[str, Any] = {"kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64}
_LATENT |= {"v_head_dim": 128, "n_shared_experts": 1, "num_experts_per_tok": 8, "moe_intermediate_size": 2048}
_LATENT |= {"hidden_size": 7168, "intermediate_size": 18_432, "num_hidden_layers": 61, "rope_theta": 50_000.0}

# The sizes that the published config.json of each model states; what does not change a size is left out.
SHAPES: dict[str, dict[str, Any]] = {
    "qwen3-0.6b": _QWEN3
    | {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16}
    | {"tie_word_embeddings": True},
    "qwen3-4b": _QWEN3
    | {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32}
    | {"tie_word_embeddings": True},
    "qwen3-8b": _QWEN3
    | {"hidden_size": 4096, "intermediate_size": 12_288, "num_hidden_layers": 36, "num_attention_heads": 32},
    "qwen3-30b-a3b": _QWEN3
    | {"model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48}
    | {"num_attention_heads": 32, "num_key_value_heads": 4, "num_experts": 128, "num_experts_per_tok": 8}
    | {"moe_intermediate_size": 768, "norm_topk_prob": True, "max_position_embeddings": 262_144},
    "deepseek-v3": _LATENT
    | {"model_type": "deepseek_v3", "vocab_size": 129_280, "num_attention_heads": 128, "num_key_value_heads": 128}
    | {"n_routed_experts": 256, "n_group": 8, "topk_group": 4, "first_k_dense_replace": 3}
    | {"num_nextn_predict_layers": 1, "max_position_embeddings": 163_840},
    "kimi-k2.5": _LATENT
    | {"model_type": "kimi_k2", "vocab_size": 163_840, "num_attention_heads": 64, "num_key_value_heads": 64}
    | {"n_routed_experts": 384, "first_k_dense_replace": 1, "max_position_embeddings": 262_144},
}


def named(model: str) -> ModelConfig:
    """The shape of this name, or of the config.json at this path or in this folder."""
    if model in SHAPES:
        return ModelConfig.from_hf(SHAPES[model], model)
    path = Path(model).expanduser()
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        raise EtudeError(
            f"no shape is called {model!r}{hint(model, list(SHAPES))} and no config.json is there; "
            f"named shapes: {', '.join(SHAPES)}"
        )
    try:
        found = json.loads(file.read_text())
    except (ValueError, OSError) as error:
        raise EtudeError(f"{file} cannot be read as JSON: {error}") from None
    if not isinstance(found, dict):
        raise EtudeError(f"{file} does not hold a table of settings")
    return ModelConfig.from_hf(found, str(file))


def of_recipe(recipe: Recipe, stage: str) -> ModelConfig:
    """The model that a stage of the recipe trains: the checkpoint it starts from where that is named, else its own."""
    brought = str(getattr(recipe, stage).model)
    if brought:
        return named(brought)
    return ModelConfig.from_settings(recipe.model, recipe.tokens.vocab_size)
