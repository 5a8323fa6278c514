"""Checkpoint directories: names, shards and formats; broken ones are refused in a sentence that names what is wrong."""

from __future__ import annotations

import json
import math
import os
import pickle
import random
import re
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from etude.bench.compare_transformers import compare, reference
from etude.core.errors import EtudeError
from etude.core.policy import Version
from etude.model.checkpoint import quantise
from etude.model.checkpoint.directory import load_model, named_weights, open_stored, read_config, save_model
from etude.model.checkpoint.tensors import Stored
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder
from etude.model.weight_transfer.shared_memory import WeightBoard

Weights = dict[str, Tensor]


def config(model_type: str = "qwen3", **changes: Any) -> ModelConfig:
    shape: dict[str, Any] = {
        "vocab_size": 40,
        "hidden_size": 32,
        "intermediate_size": 40,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "model_type": model_type,
    }
    if model_type != "qwen3":
        shape |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    if model_type in ("deepseek_v3", "kimi_k2"):
        shape |= {"num_key_value_heads": 4, "qk_norm": False, "scoring": "sigmoid", "n_shared_experts": 1}
        shape |= {"kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 12}
        shape |= {"first_k_dense_replace": 1, "rope_interleave": True}
    return ModelConfig(**(shape | changes))


def shaken(shape: ModelConfig, seed: int = 1) -> Decoder:
    """Every stored tensor different from its default and from the others."""
    decoder, generator = Decoder(shape, seed), torch.Generator().manual_seed(seed)
    for tensor in named_weights(decoder).values():
        tensor.add_(torch.randn(tensor.shape, generator=generator) * 0.1)
    return decoder


def same(a: Decoder, b: Decoder) -> bool:
    mine, yours = named_weights(a), named_weights(b)
    return list(mine) == list(yours) and all(torch.equal(x, yours[name]) for name, x in mine.items())


def edit_config(directory: Path, **changes: object) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_weights(directory: Path, change: Callable[[Weights], object]) -> None:
    weights = load_file(directory / "model.safetensors")
    change(weights)
    save_file(weights, directory / "model.safetensors")


# names


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("model_type", ["qwen3", "qwen3_moe", "deepseek_v3", "kimi_k2"])
def test_save_and_load_give_back_the_same_bits(model_type: str, tied: bool, tmp_path: Path) -> None:
    ours = shaken(config(model_type, tie_word_embeddings=tied, num_nextn_predict_layers=2))
    save_model(tmp_path, ours)
    again = load_model(tmp_path)
    assert again.config == ours.config
    assert same(ours, again)
    assert (again.lm_head.weight is again.model.embed_tokens.weight) == tied
    assert all(not bool(buffer.any()) for name, buffer in again.named_buffers() if name.endswith("load_E"))


def test_what_is_copied_into_the_named_weights_is_in_the_decoder() -> None:
    first, second = shaken(config("deepseek_v3"), 1), shaken(config("deepseek_v3"), 2)
    for name, tensor in named_weights(second).items():
        tensor.copy_(named_weights(first)[name])
    states = first.state_dict(), second.state_dict()
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())
    expert = named_weights(first)["model.layers.1.mlp.experts.3.up_proj.weight"]
    assert torch.equal(expert, first.model.layers[1].mlp.experts.gate_up_proj[3, 24:])


def test_published_weights_bring_experts_and_correction_biases(tmp_path: Path) -> None:
    learner, engine = shaken(config("deepseek_v3"), 1), shaken(config("deepseek_v3"), 2)
    board = WeightBoard.create(tmp_path / "board", learner)
    board.publish(learner, Version(0, 1))
    board.load_into(engine, Version(0, 1))
    assert same(learner, engine)
    assert bool(engine.model.layers[1].mlp.gate.e_score_correction_bias.any())


def test_prediction_modules_are_stored_in_the_deepseek_layout_or_under_our_own_names(tmp_path: Path) -> None:
    ours = shaken(config("deepseek_v3", num_nextn_predict_layers=1, tie_word_embeddings=False))
    save_model(tmp_path, ours)
    weights = load_file(tmp_path / "model.safetensors")
    assert torch.equal(weights["model.layers.2.eh_proj.weight"], ours.mtp[0].eh_proj.weight)
    assert torch.equal(weights["model.layers.2.shared_head.norm.weight"], ours.mtp[0].norm.weight)
    assert torch.equal(weights["model.layers.2.embed_tokens.weight"], ours.model.embed_tokens.weight)
    assert torch.equal(weights["model.layers.2.shared_head.head.weight"], ours.lm_head.weight)
    assert "model.layers.2.mlp.experts.0.down_proj.weight" in weights
    assert not any(name.startswith("mtp.") for name in weights)
    assert "mtp.0.block.self_attn.q_proj.weight" in named_weights(Decoder(config(num_nextn_predict_layers=1)))
    tokens = torch.arange(30)
    with torch.no_grad():  # transformers passes over the additional block
        before = compare(tmp_path)
    assert max(before["max_abs_diff"], before["max_abs_diff_cached"]) < 1e-4
    assert reference(tmp_path)(tokens[None]).logits.shape == (1, 30, 40)


def test_a_module_that_is_announced_but_not_stored_is_left_out(tmp_path: Path) -> None:
    save_model(tmp_path, shaken(config("deepseek_v3")))
    edit_config(tmp_path, num_nextn_predict_layers=1)  # as transformers writes it
    assert load_model(tmp_path).config.num_nextn_predict_layers == 0


def test_the_text_tower_of_a_larger_model_is_read_and_the_rest_passed_over(tmp_path: Path) -> None:
    ours = shaken(config("kimi_k2", tie_word_embeddings=False))
    save_model(tmp_path, ours)
    said = json.loads((tmp_path / "config.json").read_text())
    outer = {"model_type": "kimi_k25", "text_config": said, "vision_config": {}, "tie_word_embeddings": False}
    (tmp_path / "config.json").write_text(json.dumps(outer))
    weights = {f"language_model.{name}": x for name, x in load_file(tmp_path / "model.safetensors").items()}
    weights |= {"vision_tower.patch_embed.proj.weight": torch.ones(2), "mm_projector.proj.0.bias": torch.ones(2)}
    weights["language_model.model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert same(ours, load_model(tmp_path))
    found = compare(tmp_path)
    assert found["architecture"] == "kimi_k25"
    assert max(found["max_abs_diff"], found["max_abs_diff_cached"]) < 1e-4
    save_file(weights | {"audio_tower.weight": torch.ones(1)}, tmp_path / "model.safetensors")
    with pytest.raises(EtudeError, match=r"'audio_tower\.weight', which its config\.json does not describe"):
        load_model(tmp_path)


def test_a_tied_head_may_be_stored_as_well_or_instead(tmp_path: Path) -> None:
    ours = shaken(config(tie_word_embeddings=True))
    save_model(tmp_path, ours)
    edit_weights(tmp_path, lambda w: w.update({"lm_head.weight": w["model.embed_tokens.weight"].clone()}))
    assert same(ours, load_model(tmp_path))
    edit_weights(tmp_path, lambda w: w.pop("model.embed_tokens.weight"))
    assert same(ours, load_model(tmp_path))


# shards and dtypes


def test_a_large_model_is_saved_in_shards_with_an_index_that_transformers_reads(tmp_path: Path) -> None:
    ours = shaken(config("qwen3_moe"))
    save_model(tmp_path, ours, max_shard_bytes=8000)
    shards = sorted(tmp_path.glob("*.safetensors"))
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert len(shards) > 5
    assert {path.name for path in shards} == set(index["weight_map"].values())
    assert set(index["weight_map"]) == set(named_weights(ours))
    assert index["metadata"]["total_size"] == sum(4 * tensor.numel() for tensor in named_weights(ours).values())
    for path in shards:
        tensors = load_file(path)
        assert len(tensors) == 1 or sum(4 * tensor.numel() for tensor in tensors.values()) <= 8000
    assert same(ours, load_model(tmp_path))
    assert compare(tmp_path)["max_abs_diff"] < 1e-4
    save_model(tmp_path, ours)  # nothing of the shards stays behind
    assert [path.name for path in tmp_path.glob("model*")] == ["model.safetensors"]
    assert same(ours, load_model(tmp_path))


def test_bfloat16_is_half_as_large_and_keeps_correction_biases_exact(tmp_path: Path) -> None:
    ours = shaken(config("deepseek_v3"))
    save_model(tmp_path, ours, dtype=torch.bfloat16)
    weights = load_file(tmp_path / "model.safetensors")
    assert {str(x.dtype) for name, x in weights.items() if "correction_bias" not in name} == {"torch.bfloat16"}
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "bfloat16"
    wide, narrow = load_model(tmp_path), load_model(tmp_path, dtype=torch.bfloat16)
    for name, tensor in named_weights(ours).items():
        expected = tensor if name.endswith("correction_bias") else tensor.bfloat16()
        assert torch.equal(named_weights(wide)[name], expected.float())
        assert torch.equal(named_weights(narrow)[name], expected)
    assert narrow.model.layers[1].mlp.gate.load_E.dtype == torch.float32


def test_half_precision_is_read(tmp_path: Path) -> None:
    ours = shaken(config())
    save_model(tmp_path, ours)
    edit_weights(tmp_path, lambda w: w.update({name: tensor.half() for name, tensor in w.items()}))
    again = named_weights(load_model(tmp_path))
    assert all(torch.equal(again[name], tensor.half().float()) for name, tensor in named_weights(ours).items())


def test_loading_holds_one_stored_tensor_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_model(tmp_path, shaken(config("qwen3_moe")), dtype=torch.bfloat16, max_shard_bytes=8000)
    real, last, most = Stored.read, [], []

    def read(self: Stored, name: str, shape: tuple[int, ...]) -> Tensor:
        most.append(sum(held() is not None for held in last))
        found = real(self, name, shape)
        last[:] = [weakref.ref(found)]
        return found

    monkeypatch.setattr(Stored, "read", read)
    load_model(tmp_path)
    assert len(most) > 30
    assert max(most) == 0


# fewer bits


def write_quantised(directory: Path, kind: str, **changes: Any) -> tuple[Decoder, Weights]:
    """A directory whose projections are quantised, as DeepSeek (fp8) or Kimi (int4) publish them, and what it holds."""
    ours = shaken(config("kimi_k2", hidden_size=144, moe_intermediate_size=136, tie_word_embeddings=False, **changes))
    save_model(directory, ours)
    stored: Weights = {}
    for name, tensor in load_file(directory / "model.safetensors").items():
        if not name.endswith("_proj.weight") or (kind == "int4" and ".experts." not in name):
            stored[name] = tensor if name.endswith("correction_bias") else tensor.bfloat16()
        elif kind == "fp8":
            stored[f"{name}_scale_inv"] = quantise.fp8_scale(tensor)
            stored[name] = quantise.quantise_fp8(tensor, stored[f"{name}_scale_inv"])
        else:
            stored[f"{name}_scale"] = quantise.int4_scale(tensor, 32)
            stored[f"{name}_packed"] = quantise.quantise_int4(tensor, stored[f"{name}_scale"], 32)
            stored[f"{name}_shape"] = torch.tensor(tensor.shape, dtype=torch.int32)
    names = sorted(stored)  # scales and values in different shards
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, members in parts.items():
        save_file({name: stored[name] for name in members}, directory / file)
    weight_map = {name: file for file, members in parts.items() for name in members}
    (directory / "model.safetensors").unlink()
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    scheme = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
    groups = {"group_0": {"targets": ["Linear"], "weights": scheme}}
    said = {
        "fp8": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]},
        "int4": {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": groups},
    }
    edit_config(directory, quantization_config=said[kind])
    return ours, stored


def by_hand(name: str, stored: Weights) -> Tensor:
    """What the stored tensors mean, without our functions."""
    if f"{name}_packed" in stored:
        rows, columns = stored[f"{name}_shape"].tolist()
        words = stored[f"{name}_packed"].numpy().view("<u4")
        values = torch.tensor(
            [[int(words[i, j // 8] >> 4 * (j % 8) & 15) - 8 for j in range(columns)] for i in range(rows)]
        )
        return values.float() * torch.repeat_interleave(stored[f"{name}_scale"].float(), 32, 1)[:, :columns]
    found = stored[name].float()
    if f"{name}_scale_inv" in stored:
        scale = torch.kron(stored[f"{name}_scale_inv"], torch.ones(128, 128))
        found = found * scale[: found.shape[0], : found.shape[1]]
    return found


@pytest.mark.parametrize("kind", ["fp8", "int4"])
def test_a_quantised_directory_is_read_bit_for_bit_and_saved_unquantised(kind: str, tmp_path: Path) -> None:
    ours, stored = write_quantised(tmp_path / "quantised", kind)
    with open_stored(tmp_path / "quantised") as files:
        assert files.describe() == {"fp8": "FP8 in blocks of 128 x 128", "int4": "INT4, packed, in groups of 32"}[kind]
    loaded = load_model(tmp_path / "quantised")
    for name, tensor in named_weights(loaded).items():
        assert torch.equal(tensor, by_hand(name, stored)), name
        if f"{name}_packed" in stored:
            again = quantise.quantise_int4(tensor, stored[f"{name}_scale"], 32)
            assert torch.equal(again, stored[f"{name}_packed"])
        if f"{name}_scale_inv" in stored:
            again = quantise.quantise_fp8(tensor, stored[f"{name}_scale_inv"])
            assert torch.equal(again.view(torch.uint8), stored[name].view(torch.uint8))
        assert float((tensor - named_weights(ours)[name]).abs().max()) < (0.05 if kind == "int4" else 0.03)
    save_model(tmp_path / "plain", loaded)
    assert "quantization_config" not in json.loads((tmp_path / "plain" / "config.json").read_text())
    assert same(loaded, load_model(tmp_path / "plain"))
    assert compare(tmp_path / "plain")["max_abs_diff"] < 1e-4
    with pytest.raises(EtudeError, match="only unquantised directories are compared"):
        compare(tmp_path / "quantised")


def test_the_quantisation_of_a_text_tower_is_found_in_its_own_config(tmp_path: Path) -> None:
    _, stored = write_quantised(tmp_path, "int4")
    said = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "kimi_k25", "text_config": said}))
    for file in ("a.safetensors", "b.safetensors"):
        weights = {f"language_model.{name}": x for name, x in load_file(tmp_path / file).items()}
        save_file(weights, tmp_path / file)
    index = tmp_path / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"]
    index.write_text(json.dumps({"weight_map": {f"language_model.{name}": f for name, f in weight_map.items()}}))
    assert all(torch.equal(x, by_hand(name, stored)) for name, x in named_weights(load_model(tmp_path)).items())


PROJECTION = "model.layers.1.mlp.experts.2.up_proj.weight"


def edit_shards(directory: Path, change: Callable[[Weights], object]) -> None:
    weights = load_file(directory / "a.safetensors") | load_file(directory / "b.safetensors")
    change(weights)
    save_file(weights, directory / "model.safetensors")
    (directory / "model.safetensors.index.json").unlink()


def quantisation(directory: Path, **changes: object) -> None:
    said = json.loads((directory / "config.json").read_text())["quantization_config"]
    for members in said.get("config_groups", {}).values():
        members["weights"] |= changes
    edit_config(directory, quantization_config=said)


@pytest.mark.parametrize(
    ("kind", "damage", "sentence"),
    [
        (
            "fp8",
            lambda d: edit_shards(d, lambda w: w.pop(f"{PROJECTION}_scale_inv")),
            f"lacks '{PROJECTION}_scale_inv'",
        ),
        (
            "fp8",
            lambda d: edit_shards(d, lambda w: w.update({f"{PROJECTION}_scale_inv": torch.ones(1, 2)})),
            rf"'{PROJECTION}_scale_inv' with shape \(1, 2\)",
        ),
        ("fp8", lambda d: edit_config(d, quantization_config={"quant_method": "fp8"}), "weight_block_size None"),
        ("fp8", lambda d: edit_config(d, quantization_config={"quant_method": "awq"}), "says 'awq'"),
        ("int4", lambda d: edit_config(d, quantization_config=None), "experts.0.gate_proj.weight_packed', but"),
        ("int4", lambda d: edit_shards(d, lambda w: w.pop(f"{PROJECTION}_scale")), f"lacks '{PROJECTION}_scale'"),
        ("int4", lambda d: edit_shards(d, lambda w: w.pop(f"{PROJECTION}_shape")), f"lacks '{PROJECTION}_shape'"),
        ("int4", lambda d: edit_shards(d, lambda w: w.pop(f"{PROJECTION}_packed")), f"'{PROJECTION}_scale', which its"),
        (
            "int4",
            lambda d: edit_shards(
                d, lambda w: w.update({f"{PROJECTION}_packed": torch.zeros(3, 3, dtype=torch.int32)})
            ),
            rf"'{PROJECTION}_packed' with shape \(3, 3\)",
        ),
        (
            "int4",
            lambda d: edit_shards(d, lambda w: w.update({f"{PROJECTION}_shape": torch.tensor([7, 7])})),
            rf"'{PROJECTION}' with shape \(7, 7\)",
        ),
        ("int4", lambda d: quantisation(d, num_bits=8), "num_bits = 8 for the weights of 'group_0'"),
        ("int4", lambda d: quantisation(d, symmetric=False), "symmetric = False"),
        ("int4", lambda d: quantisation(d, group_size=None), "does not say one group_size"),
        ("int4", lambda d: quantisation(d, group_size=16), "_scale' with shape"),
    ],
)
def test_a_broken_quantised_checkpoint_is_refused(
    tmp_path: Path, kind: str, damage: Callable[[Path], object], sentence: str
) -> None:
    write_quantised(tmp_path, kind)
    damage(tmp_path)
    with pytest.raises(EtudeError, match=sentence):
        load_model(tmp_path)


# broken


def truncate(directory: Path) -> None:
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def add_index(directory: Path, **weight_map: str) -> None:
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def only_a_pickle(directory: Path) -> None:
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda d: (d / "config.json").unlink(), "has no config.json"),
        (lambda d: (d / "config.json").write_text("{"), "not valid JSON"),
        (lambda d: (d / "config.json").write_bytes(b"\xff\xfe"), "not valid JSON"),
        (lambda d: (d / "config.json").write_text("[]"), "JSON object"),
        (lambda d: edit_config(d, model_type="gpt9"), "type 'gpt9'"),
        (lambda d: edit_config(d, hidden_size="wide"), "not a number"),
        (lambda d: edit_config(d, hidden_size=48), r"'model\.[a-z0-9_.]+' with shape .*different models"),
        (lambda d: edit_config(d, num_hidden_layers=3), r"lacks 11 of the model's weights, 'model\.layers\.2\."),
        (lambda d: edit_config(d, num_hidden_layers=1), r"'model\.layers\.1\..*does not describe"),
        (lambda d: edit_config(d, rope_parameters={"rope_type": "linear"}), "rope scaling 'linear'"),
        (lambda d: edit_config(d, num_key_value_heads=3), "cannot share"),
        (lambda d: (d / "model.safetensors").unlink(), "no model.safetensors"),
        (only_a_pickle, "only pytorch_model.bin: a pickle can run any code"),
        (truncate, r"model\.safetensors is cut short: it ends before 'model\.[a-z0-9_.]+' does"),
        (lambda d: (d / "model.safetensors").write_bytes(b""), "damaged or cut short"),
        (lambda d: (d / "model.safetensors").write_bytes(b"\xff" * 64), "damaged or cut short"),
        (lambda d: edit_weights(d, lambda w: w.pop("model.norm.weight")), "lacks 1 of .*'model.norm.weight'"),
        (lambda d: edit_weights(d, lambda w: w.update(extra=torch.ones(1))), "'extra', which .* does not describe"),
        (
            lambda d: edit_weights(d, lambda w: w.update({"model.norm.weight": torch.ones(32, dtype=torch.int64)})),
            "'model.norm.weight' as I64",
        ),
        (
            lambda d: edit_weights(d, lambda w: w.update({"model.norm.weight": torch.ones(31)})),
            r"'model.norm.weight' with shape \(31,\)",
        ),
        (lambda d: add_index(d, a="../../etc/passwd"), "not a file of that directory"),
        (lambda d: add_index(d, a="pytorch_model.bin"), "only safetensors files are opened"),
        (lambda d: add_index(d, a="gone.safetensors"), "lacks gone.safetensors, a shard with 'a' in it"),
        (lambda d: add_index(d, a="model.safetensors"), "lacks 'a', which model.safetensors.index.json says is in it"),
        (lambda d: add_index(d), "weight_map is empty"),
        (lambda d: (d / "model.safetensors.index.json").write_text("[]"), "no readable weight_map"),
    ],
)
def test_a_broken_checkpoint_is_refused(tmp_path: Path, damage: Callable[[Path], object], sentence: str) -> None:
    save_model(tmp_path, Decoder(config()))
    damage(tmp_path)
    with pytest.raises(EtudeError, match=sentence) as refused:
        load_model(tmp_path)
    assert "\n" not in str(refused.value)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_whatever_a_damaged_checkpoint_says_is_read_or_refused_in_a_sentence(tmp_path: Path) -> None:
    """Values of another kind for every key of the configuration, and bytes changed anywhere in the header."""
    save_model(tmp_path, Decoder(config("kimi_k2")))
    said = json.loads((tmp_path / "config.json").read_text())
    whole, rng = (tmp_path / "model.safetensors").read_bytes(), random.Random(0)
    odd: list[Any] = [None, 0, -1, 3, 10**13, 1e308, math.inf, math.nan, "x", "", [], {}, [1], {"a": 1}, True, 2.5]
    refused = 0
    for key in [*said, "rope_scaling", "quantization_config", "text_config"]:
        for value in odd:
            (tmp_path / "config.json").write_text(json.dumps(said | {key: value}))
            refused += is_refused(tmp_path)
    assert refused > 200
    (tmp_path / "config.json").write_text(json.dumps(said))
    for _ in range(100):
        damaged = bytearray(whole)
        for _ in range(rng.choice((1, 3, 20))):
            damaged[rng.randrange(8 + int.from_bytes(whole[:8], "little"))] = rng.randrange(256)
        (tmp_path / "model.safetensors").write_bytes(damaged)
        refused += is_refused(tmp_path)
    assert refused > 290


def is_refused(directory: Path) -> bool:
    try:
        load_model(directory)
    except EtudeError as error:
        assert "\n" not in str(error)
        return True
    return False


class Trap:
    """Unpickled, it creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_nothing_is_ever_unpickled(tmp_path: Path) -> None:
    model, sprung = tmp_path / "model", tmp_path / "sprung"
    ours = shaken(config())
    save_model(model, ours)
    trap = pickle.dumps(Trap(sprung))
    for name in ("pytorch_model.bin", "model.bin", "training_args.bin", "optimizer.pt", "adapter_model.bin"):
        (model / name).write_bytes(trap)
    assert same(ours, load_model(model))
    assert compare(model)["max_abs_diff"] < 1e-4
    (model / "model.safetensors").unlink()
    with pytest.raises(EtudeError, match="a pickle can run any code"):
        load_model(model)
    (model / "model.safetensors").write_bytes(trap)
    with pytest.raises(EtudeError, match="damaged or cut short"):
        load_model(model)
    add_index(model, **{"model.norm.weight": "pytorch_model.bin"})
    with pytest.raises(EtudeError, match="only safetensors files are opened"):
        load_model(model)
    assert not sprung.exists()
    pickle.loads(trap)  # it does work
    assert sprung.exists()


def test_the_shape_is_read_without_weights(tmp_path: Path) -> None:
    save_model(tmp_path, Decoder(config("deepseek_v3", num_nextn_predict_layers=1)))
    (tmp_path / "model.safetensors").unlink()
    assert read_config(tmp_path) == config("deepseek_v3", num_nextn_predict_layers=1)
    assert re.search("kimi_k25.*qwen3_moe", refusal(tmp_path, model_type="gpt9"))


def refusal(directory: Path, **changes: object) -> str:
    edit_config(directory, **changes)
    with pytest.raises(EtudeError) as refused:
        read_config(directory)
    return str(refused.value)
