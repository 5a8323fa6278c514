"""The shape of a decoder, with the field names of a Hugging Face `config.json`.

Knows how to read and write that file's contents; opening files is checkpoint.py's work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from etude.errors import EtudeError
from etude.settings import ModelSettings

ARCHITECTURES = {"qwen3": "Qwen3ForCausalLM"}


@dataclass(frozen=True)
class ModelConfig:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 4096
    qk_norm: bool = True
    attention_bias: bool = False
    tie_word_embeddings: bool = True
    num_nextn_predict_layers: int = 0  # multi-token-prediction modules
    model_type: str = "qwen3"

    def __post_init__(self) -> None:
        if self.num_attention_heads % self.num_key_value_heads:
            raise EtudeError(
                f"a model with {self.num_attention_heads} query heads cannot share {self.num_key_value_heads} "
                "key-value heads evenly; make the first a multiple of the second"
            )
        if self.head_dim % 2:
            raise EtudeError(f"head_dim is {self.head_dim}, but rotary positions need an even number")

    @classmethod
    def from_settings(cls, settings: ModelSettings, vocab_size: int) -> ModelConfig:
        settings = settings.shaped()
        return cls(
            vocab_size=vocab_size,
            hidden_size=settings.width,
            intermediate_size=settings.mlp,
            num_hidden_layers=settings.layers,
            num_attention_heads=settings.heads,
            num_key_value_heads=settings.kv_heads,
            head_dim=settings.head_dim,
            rope_theta=settings.rope_theta,
            max_position_embeddings=settings.max_positions,
            qk_norm=settings.qk_norm,
            attention_bias=settings.bias,
            tie_word_embeddings=settings.tied,
            num_nextn_predict_layers=settings.mtp_layers,
        )

    @classmethod
    def from_hf(cls, hf: Mapping[str, Any], where: str = "config.json") -> ModelConfig:
        model_type = hf.get("model_type")
        if model_type not in ARCHITECTURES:
            known = ", ".join(sorted(ARCHITECTURES))
            raise EtudeError(f"{where} describes a model of type {model_type!r}; the shapes read here are: {known}")
        # transformers 5 writes rope_parameters, earlier versions a bare rope_theta
        rope = hf.get("rope_parameters") or {}
        scaling = rope.get("rope_type", "default")
        if scaling != "default" or hf.get("rope_scaling"):
            raise EtudeError(f"{where} asks for rope scaling {scaling!r}, which this shape does not have yet")
        if hf.get("use_sliding_window"):
            raise EtudeError(f"{where} asks for sliding-window attention, which this shape does not have")
        try:
            heads = int(hf["num_attention_heads"])
            return cls(
                vocab_size=int(hf["vocab_size"]),
                hidden_size=int(hf["hidden_size"]),
                intermediate_size=int(hf["intermediate_size"]),
                num_hidden_layers=int(hf["num_hidden_layers"]),
                num_attention_heads=heads,
                num_key_value_heads=int(hf.get("num_key_value_heads") or heads),
                head_dim=int(hf.get("head_dim") or int(hf["hidden_size"]) // heads),
                rope_theta=float(rope.get("rope_theta") or hf.get("rope_theta") or 10_000.0),
                rms_norm_eps=float(hf.get("rms_norm_eps", 1e-6)),
                max_position_embeddings=int(hf.get("max_position_embeddings", 4096)),
                qk_norm=bool(hf.get("qk_norm", True)),
                attention_bias=bool(hf.get("attention_bias", False)),
                tie_word_embeddings=bool(hf.get("tie_word_embeddings", False)),
                num_nextn_predict_layers=int(hf.get("num_nextn_predict_layers", 0)),
                model_type=str(model_type),
            )
        except KeyError as missing:
            raise EtudeError(f"{where} has no {missing.args[0]!r}; it is not a complete model configuration") from None
        except (TypeError, ValueError) as wrong:
            raise EtudeError(f"{where} holds a value that is not a number where one belongs: {wrong}") from None

    def to_hf(self) -> dict[str, Any]:
        return {
            "architectures": [ARCHITECTURES[self.model_type]],
            "model_type": self.model_type,
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "rope_theta": self.rope_theta,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},
            "rms_norm_eps": self.rms_norm_eps,
            "max_position_embeddings": self.max_position_embeddings,
            "qk_norm": self.qk_norm,
            "attention_bias": self.attention_bias,
            "attention_dropout": 0.0,
            "tie_word_embeddings": self.tie_word_embeddings,
            "num_nextn_predict_layers": self.num_nextn_predict_layers,
            "use_cache": True,
        }

    @property
    def cache_layers(self) -> int:
        """Blocks with attention, the multi-token-prediction ones included."""
        return self.num_hidden_layers + self.num_nextn_predict_layers
