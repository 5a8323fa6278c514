"""`etude model` as a person and as a script would use it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from etude.cli.main import app
from etude.model.checkpoint.directory import load_model

KIMI_K25: dict[str, Any] = {  # as published, less what says nothing about the shape
    "architectures": ["KimiK25ForConditionalGeneration"],
    "model_type": "kimi_k25",
    "tie_word_embeddings": False,
    "text_config": {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "kimi_k2",
        "attention_bias": False,
        "first_k_dense_replace": 1,
        "hidden_act": "silu",
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "kv_lora_rank": 512,
        "max_position_embeddings": 262144,
        "moe_intermediate_size": 2048,
        "moe_layer_freq": 1,
        "n_group": 1,
        "n_routed_experts": 384,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_attention_heads": 64,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 61,
        "num_key_value_heads": 64,
        "num_nextn_predict_layers": 0,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "factor": 64.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 4096,
            "type": "yarn",
        },
        "rope_theta": 50000.0,
        "routed_scaling_factor": 2.827,
        "scoring_func": "sigmoid",
        "tie_word_embeddings": False,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "v_head_dim": 128,
        "vocab_size": 163840,
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "config_groups": {
                "group_0": {
                    "targets": ["Linear"],
                    "weights": {
                        "num_bits": 4,
                        "type": "int",
                        "symmetric": True,
                        "strategy": "group",
                        "group_size": 32,
                    },
                }
            },
        },
    },
    "vision_config": {},
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Commands run in an empty folder, and in this process: a new one would load torch each time."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def etude(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def last_object(answer: Result) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    return found


def test_a_new_model_agrees_with_transformers(folder: Path) -> None:
    sizes = ["width=32", "layers=2", "model.kv_rank=16", "tokens.vocab_size=320", "run.seed=3"]
    made = etude("model", "init", "kimi_k2", "model", *sizes, "--json")
    assert made.exit_code == 0, made.stderr
    decoder = load_model(folder / "model")
    assert last_object(made)["parameters"] == sum(weight.numel() for weight in decoder.parameters())
    assert (decoder.config.hidden_size, decoder.config.vocab_size) == (32, 320)
    compared = etude("model", "compare", "model", "--json")
    found = last_object(compared)
    assert compared.exit_code == 0, compared.stderr
    assert set(found) == {"ok", "max_abs_diff", "max_abs_diff_cached", "architecture", "parameters"}
    assert 0 < found["max_abs_diff"] < 1e-4
    assert 0 < found["max_abs_diff_cached"] < 1e-4
    assert (found["architecture"], found["parameters"]) == ("kimi_k2", last_object(made)["parameters"])
    strict = etude("model", "compare", "model", "--tolerance", "0")
    assert strict.exit_code == 1
    assert "NOT within 0" in strict.stdout


def test_a_model_without_its_weights_is_described(folder: Path) -> None:
    (folder / "kimi").mkdir()
    (folder / "kimi" / "config.json").write_text(json.dumps(KIMI_K25))
    (folder / "kimi" / "model.safetensors.index.json").write_text('{"weight_map": {"a": "not-there.safetensors"}}')
    found = last_object(etude("model", "info", "kimi", "--json"))
    assert found["ok"]
    assert round(found["parameters"] / 1e9) == 1026
    assert round(found["active_parameters"] / 1e9) == 33
    assert found["shape"]["layers"] == 61
    assert found["shape"]["experts"] == 384
    assert found["stored"] is None
    assert found["memory"]["bfloat16"]["serve_weights"] == 2 * found["parameters"]
    assert found["memory"]["bfloat16"]["serve_cache_1k"] == 2 * 1000 * 61 * 576
    text = etude("model", "info", "kimi").stdout
    assert "kimi_k25: 1.03T parameters, 32.9B of them for each token" in text
    assert "no weights here" in text


def test_a_stored_model_is_described_by_its_headers() -> None:
    etude("model", "init", "qwen3_moe", "model", "depth=2", "--dtype", "bfloat16")
    found = last_object(etude("model", "info", "model", "--json"))
    assert found["stored"] == {
        "format": "BF16",
        "bytes": 2 * found["parameters"],
        "files": 1,
        "dtypes": {"BF16": 2 * found["parameters"]},
    }
    assert "stored as BF16" in etude("model", "info", "model").stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["info", "nowhere"], "there is no model or run at nowhere"),
        (["compare", "."], "it has no config.json"),
        (["init", "gpt9", "new"], "'gpt9' is not a shape that can be made"),
        (["init", "qwen3", "."], "not an empty folder"),
        (["init", "qwen3", "new", "widht=3"], "did you mean model.width?"),
        (["init", "qwen3", "new", "--dtype", "int3"], "not as 'int3'"),
    ],
)
def test_a_mistake_is_one_sentence(folder: Path, arguments: list[str], sentence: str) -> None:
    (folder / "something").touch()
    answer = etude("model", *arguments)
    assert answer.exit_code == 2
    assert sentence in answer.stderr
    assert answer.stderr.count("\n") == 1


def test_comparing_says_what_to_install_without_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    etude("model", "init", "qwen3", "model", "depth=2")
    monkeypatch.setitem(sys.modules, "transformers", None)
    answer = etude("model", "compare", "model", "--json")
    assert answer.exit_code == 2
    assert "pip install 'etude[hf]'" in last_object(answer)["error"]
