"""The shape of a decoder, with the field names of a Hugging Face `config.json`.

Knows what the shapes have in common and where they differ, and how each reads and writes that file's contents;
opening files is the work of checkpoint/directory.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from etude.core.errors import EtudeError
from etude.core.settings import ModelSettings
from etude.model.yarn import Yarn

ARCHITECTURES = {
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "kimi_k2": "DeepseekV3ForCausalLM",
}
TEXT_TOWERS = {"kimi_k25": "kimi_k2"}  # shapes of which only the text part is read
LATENT = ("deepseek_v3", "kimi_k2")  # with multi-head latent attention and sigmoid routing


@dataclass(frozen=True)
class ModelConfig:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int  # of grouped-query attention; latent attention has dimensions of its own
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 4096
    qk_norm: bool = True
    attention_bias: bool = False
    tie_word_embeddings: bool = True
    num_nextn_predict_layers: int = 0  # multi-token-prediction modules
    model_type: str = "qwen3"
    yarn: Yarn | None = None

    # latent attention (MLA); a rank of 0 is none
    kv_lora_rank: int = 0
    q_lora_rank: int = 0  # 0: queries are projected in one step
    qk_nope_head_dim: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0
    rope_interleave: bool = False  # the checkpoint has the two dimensions of a rotated pair side by side

    # experts; 0 is none
    num_experts: int = 0
    num_experts_per_tok: int = 0
    moe_intermediate_size: int = 0
    n_shared_experts: int = 0
    scoring: Literal["softmax", "sigmoid"] = "softmax"  # sigmoid comes with a correction bias that balances the load
    norm_topk_prob: bool = True
    routed_scaling_factor: float = 1.0
    n_group: int = 1
    topk_group: int = 1
    first_k_dense_replace: int = 0  # leading blocks without experts
    decoder_sparse_step: int = 1  # every so many blocks have experts
    mlp_only_layers: tuple[int, ...] = ()  # blocks without experts, by number

    def __post_init__(self) -> None:
        for name, (least, most) in _BOUNDS.items():
            if not least <= getattr(self, name) <= most:
                raise EtudeError(f"{name} is {getattr(self, name)}; a model has between {least} and {most}")
        if self.num_attention_heads % self.num_key_value_heads:
            raise EtudeError(
                f"a model with {self.num_attention_heads} query heads cannot share {self.num_key_value_heads} "
                "key-value heads evenly; make the first a multiple of the second"
            )
        if self.rotary_dim % 2:
            name = "qk_rope_head_dim" if self.latent else "head_dim"
            raise EtudeError(f"{name} is {self.rotary_dim}, but rotary positions need an even number")
        if self.num_experts:
            self._check_experts()

    def _check_experts(self) -> None:
        groups, chosen = self.n_group, self.num_experts_per_tok
        if groups < 1 or self.num_experts % groups or not 1 <= self.topk_group <= groups:
            raise EtudeError(
                f"{self.num_experts} experts cannot be chosen from {self.topk_group} of {groups} groups: make n_group "
                "divide the number of experts, and topk_group at most n_group"
            )
        if not 1 <= chosen <= self.topk_group * (self.num_experts // groups):
            raise EtudeError(
                f"num_experts_per_tok is {chosen}, but a token has "
                f"{self.topk_group * (self.num_experts // groups)} experts to choose from"
            )
        if groups > 1 and self.num_experts // groups < 2:
            raise EtudeError("a group of experts is judged by its two best, so it needs at least two")

    @property
    def latent(self) -> bool:
        return self.kv_lora_rank > 0

    @property
    def output_bias(self) -> bool:
        """Whether the attention's output projection has a bias, as its others do: qwen2 has none there."""
        return self.attention_bias and self.model_type != "qwen2"

    @property
    def rotary_dim(self) -> int:
        """Dimensions of a head that are rotated."""
        return self.qk_rope_head_dim if self.latent else self.head_dim

    @property
    def query_dim(self) -> int:
        return self.qk_nope_head_dim + self.qk_rope_head_dim if self.latent else self.head_dim

    @property
    def value_dim(self) -> int:
        return self.v_head_dim if self.latent else self.head_dim

    @property
    def head_dims(self) -> dict[str, int]:
        """Dimensions of one head in each projection that is made of heads."""
        if self.latent:
            up = self.qk_nope_head_dim + self.v_head_dim
            return {"q_proj": self.query_dim, "q_b_proj": self.query_dim, "kv_b_proj": up, "o_proj": self.v_head_dim}
        return dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj"), self.head_dim)

    @property
    def cache_layers(self) -> int:
        """Blocks with attention, the multi-token-prediction ones included."""
        return self.num_hidden_layers + self.num_nextn_predict_layers

    @property
    def cache_shape(self) -> tuple[int, int, int]:
        """What a cache holds of one token and block: planes, heads of each, dimensions of each.

        Keys and values are two planes. Latent attention has one, of one head: the latent, which is also the value,
        and behind it the rotated part of the key.
        """
        if self.latent:
            return 1, 1, self.kv_lora_rank + self.qk_rope_head_dim
        return 2, self.num_key_value_heads, self.head_dim

    def sparse(self, layer: int) -> bool:
        """Whether this block has experts; multi-token-prediction blocks are as the last ones are."""
        if not self.num_experts or layer in self.mlp_only_layers:
            return False
        return layer >= self.first_k_dense_replace and (layer + 1) % self.decoder_sparse_step == 0

    @property
    def sparse_layers(self) -> tuple[int, ...]:
        """The blocks with experts, without the multi-token-prediction ones."""
        return tuple(layer for layer in range(self.num_hidden_layers) if self.sparse(layer))

    @classmethod
    def from_settings(cls, settings: ModelSettings, vocab_size: int) -> ModelConfig:
        settings = settings.shaped()
        shape = settings.shape
        return cls(
            vocab_size=vocab_size,
            hidden_size=settings.width,
            intermediate_size=settings.mlp,
            num_hidden_layers=settings.layers,
            num_attention_heads=settings.heads,
            num_key_value_heads=settings.heads if shape in LATENT else settings.kv_heads,
            head_dim=settings.rope_dim if shape in LATENT else settings.head_dim,
            rope_theta=settings.rope_theta,
            max_position_embeddings=settings.max_positions,
            qk_norm=settings.qk_norm and shape in ("qwen3", "qwen3_moe"),
            attention_bias=settings.bias or shape == "qwen2",
            tie_word_embeddings=settings.tied,
            num_nextn_predict_layers=settings.mtp_layers,
            model_type=shape,
            **(_latent_settings(settings) if shape in LATENT else {}),
            **(_expert_settings(settings) if shape in LATENT or shape == "qwen3_moe" else {}),
        )

    @classmethod
    def from_hf(cls, hf: Mapping[str, Any], where: str = "config.json") -> ModelConfig:
        model_type = str(hf.get("model_type"))
        if model_type in TEXT_TOWERS:
            inner = hf.get("text_config")
            if not isinstance(inner, Mapping):
                raise EtudeError(f"{where} describes a {model_type} without a text_config; it is not complete")
            # earlier and later writers name the text part differently; it is one shape
            return cls.from_hf({**inner, "model_type": TEXT_TOWERS[model_type]}, f"text_config of {where}")
        if model_type not in ARCHITECTURES:
            known = ", ".join(sorted([*ARCHITECTURES, *TEXT_TOWERS]))
            raise EtudeError(f"{where} describes a model of type {model_type!r}; the shapes read here are: {known}")
        _refuse_unknown_kinds(hf, where)
        try:
            return cls(**_common(hf), **_SHAPES[model_type](hf), model_type=model_type, yarn=_yarn(hf, where))
        except KeyError as missing:
            raise EtudeError(f"{where} has no {missing.args[0]!r}; it is not a complete model configuration") from None
        except (TypeError, ValueError, ArithmeticError, AttributeError) as wrong:
            raise EtudeError(f"{where} holds a value that is not a number where one belongs: {wrong}") from None

    def to_hf(self) -> dict[str, Any]:
        rope: dict[str, Any] = {"rope_type": "default", "rope_theta": self.rope_theta}
        if self.yarn is not None:
            said = {name: value for name, value in asdict(self.yarn).items() if value is not None}
            rope |= {"rope_type": "yarn", **said}
        hf = {name: getattr(self, name) for name in _IN_EVERY_SHAPE} | {
            "architectures": [ARCHITECTURES[self.model_type]],
            "hidden_act": "silu",
            "rope_theta": self.rope_theta,
            "rope_parameters": rope,
            "attention_dropout": 0.0,
            "use_cache": True,
        }
        if self.model_type != "qwen2":
            hf["attention_bias"] = self.attention_bias
        if not self.latent:
            hf |= {"head_dim": self.head_dim, "qk_norm": self.qk_norm}
        if self.num_experts:
            hf |= {name: getattr(self, name) for name in _EXPERTS}
        if self.model_type == "qwen3_moe":
            hf |= {"num_experts": self.num_experts, "decoder_sparse_step": self.decoder_sparse_step}
            hf |= {"mlp_only_layers": list(self.mlp_only_layers)}
        if self.latent:
            hf |= {name: getattr(self, name) for name in (*_LATENT, *_ROUTING)}
            hf |= {"q_lora_rank": self.q_lora_rank or None, "rope_interleave": self.rope_interleave}
            hf |= {"n_routed_experts": self.num_experts, "scoring_func": self.scoring, "topk_method": "noaux_tc"}
        return hf


# what a damaged or hostile file may ask for at most, so that nothing is built for hours before it fails
_LARGEST, _MOST = 1 << 24, 1 << 12
_BOUNDS = {
    **dict.fromkeys(("vocab_size", "hidden_size", "intermediate_size"), (1, _LARGEST)),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads", "head_dim", "num_hidden_layers"), (1, _MOST)),
    **dict.fromkeys(("num_nextn_predict_layers", "n_shared_experts", "first_k_dense_replace"), (0, _MOST)),
    **dict.fromkeys(("num_experts", "moe_intermediate_size", "kv_lora_rank", "q_lora_rank"), (0, _LARGEST)),
    **dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"), (0, _LARGEST)),
    "decoder_sparse_step": (1, _MOST),
}
_SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
_IN_EVERY_SHAPE = (
    *("model_type", *_SIZES, "num_key_value_heads", "rms_norm_eps", "max_position_embeddings", "tie_word_embeddings"),
    "num_nextn_predict_layers",
)
_EXPERTS = ("num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob")
_LATENT = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_ROUTING = ("n_shared_experts", "n_group", "topk_group", "routed_scaling_factor", "first_k_dense_replace")


def _common(hf: Mapping[str, Any]) -> dict[str, Any]:
    # transformers 5 writes rope_parameters, earlier versions a bare rope_theta
    theta = (hf.get("rope_parameters") or {}).get("rope_theta") or hf.get("rope_theta") or 10_000.0
    return {name: int(hf[name]) for name in _SIZES} | {
        "num_key_value_heads": int(hf.get("num_key_value_heads") or hf["num_attention_heads"]),
        "rope_theta": float(theta),
        "rms_norm_eps": float(hf.get("rms_norm_eps", 1e-6)),
        "max_position_embeddings": int(hf.get("max_position_embeddings", 4096)),
        "tie_word_embeddings": bool(hf.get("tie_word_embeddings", False)),
        "num_nextn_predict_layers": int(hf.get("num_nextn_predict_layers") or 0),
    }


def _qwen2(hf: Mapping[str, Any]) -> dict[str, Any]:
    head = int(hf.get("head_dim") or int(hf["hidden_size"]) // int(hf["num_attention_heads"]))
    return {"head_dim": head, "qk_norm": False, "attention_bias": True}


def _qwen3(hf: Mapping[str, Any]) -> dict[str, Any]:
    bias = bool(hf.get("attention_bias", False))
    return _qwen2(hf) | {"qk_norm": bool(hf.get("qk_norm", True)), "attention_bias": bias}


def _qwen3_moe(hf: Mapping[str, Any]) -> dict[str, Any]:
    return _qwen3(hf) | {
        # transformers 5 writes num_local_experts, earlier versions num_experts
        "num_experts": int(hf["num_local_experts"] if "num_local_experts" in hf else hf["num_experts"]),
        "num_experts_per_tok": int(hf["num_experts_per_tok"]),
        "moe_intermediate_size": int(hf["moe_intermediate_size"]),
        "norm_topk_prob": bool(hf.get("norm_topk_prob", False)),
        "decoder_sparse_step": int(hf.get("decoder_sparse_step", 1)),
        "mlp_only_layers": tuple(int(layer) for layer in hf.get("mlp_only_layers") or ()),
    }


def _deepseek(hf: Mapping[str, Any]) -> dict[str, Any]:
    absent = (
        "q_lora_rank",
        "num_experts_per_tok",
        "moe_intermediate_size",
        "n_shared_experts",
        "first_k_dense_replace",
    )
    shape: dict[str, Any] = {name: int(hf[name]) for name in _LATENT}
    shape |= {name: int(hf.get(name) or 0) for name in absent}
    shape |= {name: int(hf.get(name) or 1) for name in ("n_group", "topk_group")}
    return shape | {
        "head_dim": int(hf["qk_rope_head_dim"]),
        "qk_norm": False,
        "attention_bias": bool(hf.get("attention_bias", False)),
        "rope_interleave": bool(hf.get("rope_interleave", True)),
        "num_experts": int(hf.get("n_routed_experts") or 0),
        "first_k_dense_replace": int(hf.get("first_k_dense_replace") or 0),
        "scoring": "sigmoid",
        "norm_topk_prob": bool(hf.get("norm_topk_prob", True)),
        "routed_scaling_factor": float(hf.get("routed_scaling_factor", 1.0)),
    }


_SHAPES = {
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "deepseek_v3": _deepseek,
    "kimi_k2": _deepseek,
}


def _refuse_unknown_kinds(hf: Mapping[str, Any], where: str) -> None:
    """What would be computed in another way than the shape's, were it not refused."""
    if hf.get("use_sliding_window"):
        raise EtudeError(f"{where} asks for sliding-window attention, which is not built here")
    known = {"hidden_act": "silu", "scoring_func": "sigmoid", "topk_method": "noaux_tc", "moe_layer_freq": 1}
    for key, value in known.items():
        if hf.get(key, value) != value:
            raise EtudeError(f"{where} says {key} = {hf[key]!r}; only {value!r} is built here")


def _yarn(hf: Mapping[str, Any], where: str) -> Yarn | None:
    said = hf.get("rope_parameters") or hf.get("rope_scaling") or {}
    kind = said.get("rope_type") or said.get("type") or "default"
    if kind == "default":
        return None
    if kind != "yarn":
        raise EtudeError(f"{where} asks for rope scaling {kind!r}; plain positions and yarn are built here")
    values = {field.name: said[field.name] for field in fields(Yarn) if said.get(field.name) is not None}
    positions = int(hf.get("max_position_embeddings", 4096))
    values.setdefault("original_max_position_embeddings", positions)
    values.setdefault("factor", positions / values["original_max_position_embeddings"])
    return Yarn(**values)


def _latent_settings(settings: ModelSettings) -> dict[str, Any]:
    return {
        "kv_lora_rank": settings.kv_rank,
        "q_lora_rank": settings.q_rank,
        "qk_nope_head_dim": settings.head_dim,
        "qk_rope_head_dim": settings.rope_dim,
        "v_head_dim": settings.head_dim,
        "rope_interleave": True,
        "scoring": "sigmoid",
        "n_shared_experts": settings.shared_experts,
        "routed_scaling_factor": settings.routed_scale,
        "n_group": settings.expert_groups,
        "topk_group": settings.groups_per_token,
        "first_k_dense_replace": settings.dense_layers,
    }


def _expert_settings(settings: ModelSettings) -> dict[str, Any]:
    return {
        "num_experts": settings.experts,
        "num_experts_per_tok": settings.experts_per_token,
        "moe_intermediate_size": settings.expert_mlp,
    }
