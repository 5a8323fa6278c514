"""Every shape against `transformers`: checkpoints it wrote, odd settings, logits with the cache and without.

Tiny random models, saved by transformers and read by us, saved by us and read by transformers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from etude.bench.compare_transformers import cached_logits, compare, packed_logits, random_tokens, reference
from etude.model.checkpoint.directory import load_model, save_model

TOLERANCE = 1e-4
COMMON = {"vocab_size": 101, "hidden_size": 48, "intermediate_size": 56, "max_position_embeddings": 256}
DENSE = COMMON | {"num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 5000.0}
MOE = DENSE | {
    "num_hidden_layers": 3,
    "head_dim": 10,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 20,
}
LATENT = COMMON | {
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 20,
    "n_shared_experts": 2,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 24,
    "q_lora_rank": 28,
    "qk_nope_head_dim": 14,
    "qk_rope_head_dim": 16,
    "v_head_dim": 18,
}
DEEP_YARN = YARN | {"mscale": 0.7, "mscale_all_dim": 1.3, "beta_fast": 3, "beta_slow": 0.5}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2": ("Qwen2", DENSE),
    "qwen2 tied": ("Qwen2", DENSE | {"tie_word_embeddings": True}),
    "qwen2 one head": ("Qwen2", DENSE | {"num_attention_heads": 1, "num_key_value_heads": 1}),
    "qwen2 yarn": ("Qwen2", DENSE | {"rope_parameters": YARN}),
    "qwen3": ("Qwen3", DENSE | {"head_dim": 14}),
    "qwen3 tied": ("Qwen3", DENSE | {"head_dim": 8, "tie_word_embeddings": True, "rms_norm_eps": 1e-3}),
    "qwen3 biases": ("Qwen3", DENSE | {"head_dim": 16, "attention_bias": True}),
    "qwen3 yarn": ("Qwen3", DENSE | {"head_dim": 16, "rope_parameters": YARN}),
    "qwen3 yarn beyond its positions": ("Qwen3", DENSE | {"head_dim": 16, "rope_parameters": YARN | {"factor": 3.0}}),
    "qwen3 yarn attention factor": (
        "Qwen3",
        DENSE | {"head_dim": 16, "rope_parameters": YARN | {"attention_factor": 1.7, "beta_fast": 8, "beta_slow": 1}},
    ),
    "qwen3 yarn not truncated": ("Qwen3", DENSE | {"head_dim": 16, "rope_parameters": YARN | {"truncate": False}}),
    "qwen3 other theta": (
        "Qwen3",
        DENSE | {"head_dim": 32, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    ),
    "qwen3_moe": ("Qwen3Moe", MOE | {"norm_topk_prob": True}),
    "qwen3_moe not normed, tied": ("Qwen3Moe", MOE | {"norm_topk_prob": False, "tie_word_embeddings": True}),
    "qwen3_moe sparse step": ("Qwen3Moe", MOE | {"decoder_sparse_step": 2, "attention_bias": True}),
    "qwen3_moe dense layers": ("Qwen3Moe", MOE | {"mlp_only_layers": [0, 2], "num_experts_per_tok": 1}),
    "qwen3_moe all experts": ("Qwen3Moe", MOE | {"num_experts_per_tok": 8, "rope_parameters": YARN}),
    "deepseek_v3": ("DeepseekV3", LATENT),
    "deepseek_v3 no q-lora": ("DeepseekV3", LATENT | {"q_lora_rank": None, "first_k_dense_replace": 0}),
    "deepseek_v3 halves": ("DeepseekV3", LATENT | {"rope_interleave": False}),
    "deepseek_v3 biases, tied": ("DeepseekV3", LATENT | {"attention_bias": True, "tie_word_embeddings": True}),
    "deepseek_v3 one group": ("DeepseekV3", LATENT | {"n_group": 1, "topk_group": 1, "norm_topk_prob": False}),
    "deepseek_v3 yarn": ("DeepseekV3", LATENT | {"rope_parameters": DEEP_YARN, "routed_scaling_factor": 1.8}),
    "deepseek_v3 yarn without mscale": ("DeepseekV3", LATENT | {"rope_parameters": YARN, "rope_interleave": False}),
    "deepseek_v3 dense": ("DeepseekV3", LATENT | {"first_k_dense_replace": 3, "rms_norm_eps": 1e-3}),
    "kimi_k2": ("DeepseekV3", LATENT | {"n_group": 1, "topk_group": 1, "rope_parameters": DEEP_YARN}),
}


def written_by_transformers(name: str, directory: Path, **options: Any) -> Any:
    """A model with every weight, norms and biases included, away from its default."""
    family, settings = CASES[name]
    torch.manual_seed(len(name))
    model = getattr(transformers, f"{family}ForCausalLM")(getattr(transformers, f"{family}Config")(**settings)).eval()
    with torch.no_grad():
        for tensor in (*model.parameters(), *(b for n, b in model.named_buffers() if n.endswith("correction_bias"))):
            tensor.add_(torch.randn_like(tensor) * 0.08)
    model.save_pretrained(directory, **options)
    if name.startswith("kimi"):
        edit_config(directory, model_type="kimi_k2")
    return model


def edit_config(directory: Path, **changes: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("name", CASES)
def test_logits_equal_those_of_transformers_with_the_cache_and_without(name: str, tmp_path: Path) -> None:
    theirs = written_by_transformers(name, tmp_path / "theirs")
    ours = load_model(tmp_path / "theirs")
    sequences = random_tokens(ours, seed=1)
    save_model(tmp_path / "ours", ours)
    again = reference(tmp_path / "ours")
    with torch.inference_mode():
        wanted = [theirs(tokens[None]).logits[0] for tokens in sequences]
        ways = {
            "packed": packed_logits(ours, sequences),
            "cached": cached_logits(ours, sequences),
            "saved by us": [again(tokens[None]).logits[0] for tokens in sequences],
        }
    assert max(float(logits.std()) for logits in wanted) > 0.1  # so that the tolerance means something
    for way, found in ways.items():
        for mine, yours in zip(found, wanted, strict=True):
            difference = float((mine - yours).abs().max())
            assert difference < TOLERANCE, f"{way}: {difference}"


@pytest.mark.parametrize("name", ["qwen2 tied", "qwen3_moe", "deepseek_v3 biases, tied", "deepseek_v3 yarn"])
def test_gradients_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    theirs = written_by_transformers(name, tmp_path)
    ours = load_model(tmp_path)
    tokens = random_tokens(ours, seed=1)[-1]
    torch.nn.functional.cross_entropy(packed_logits(ours, [tokens])[0][:-1], tokens[1:]).backward()
    theirs(tokens[None], labels=tokens[None]).loss.backward()
    wanted = dict(theirs.named_parameters())
    for key, parameter in ours.named_parameters():
        assert torch.allclose(parameter.grad, wanted[key].grad, atol=1e-5), key


def test_a_configuration_of_earlier_years_means_the_same(tmp_path: Path) -> None:
    """As DeepSeek and Kimi publish theirs: positions under other names, and keys that say what the shape is anyway."""
    theirs = written_by_transformers("kimi_k2", tmp_path)
    before = load_model(tmp_path).config
    said = json.loads((tmp_path / "config.json").read_text())
    rope = said.pop("rope_parameters")
    said |= {"rope_theta": rope.pop("rope_theta"), "rope_scaling": {"type": rope.pop("rope_type"), **rope}}
    said |= {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "moe_layer_freq": 1, "seq_aux": True, "ep_size": 1}
    said.pop("rope_interleave")
    (tmp_path / "config.json").write_text(json.dumps(said))
    ours = load_model(tmp_path)
    assert ours.config == before
    sequences = random_tokens(ours, seed=2)
    with torch.inference_mode():
        for mine, tokens in zip(packed_logits(ours, sequences), sequences, strict=True):
            assert float((mine - theirs(tokens[None]).logits[0]).abs().max()) < TOLERANCE


def test_shards_that_transformers_wrote_are_read(tmp_path: Path) -> None:
    theirs = written_by_transformers("deepseek_v3", tmp_path, max_shard_size="60KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert compare(tmp_path)["max_abs_diff"] < TOLERANCE
    ours = dict(load_model(tmp_path).named_parameters())
    for name, parameter in theirs.named_parameters():  # transformers stacks its experts as we do
        assert torch.equal(ours[name], parameter), name
