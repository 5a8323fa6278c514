"""A trained checkpoint in the format that it came in: untouched weights byte for byte, others as the reference does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from etude.core.errors import EtudeError
from etude.learn.mtp import attach
from etude.model.checkpoint.directory import load_model, named_weights, read_json, save_model
from etude.model.checkpoint.write_back import write_back
from tests.model.test_checkpoint import write_quantised


def stored(directory: Path) -> dict[str, torch.Tensor]:
    return {name: x for path in sorted(directory.glob("*.safetensors")) for name, x in load_file(path).items()}


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.dtype == right.dtype and torch.equal(
        left.contiguous().view(torch.uint8), right.contiguous().view(torch.uint8)
    )


@pytest.mark.parametrize("kind", ["fp8", "int4"])
def test_what_training_left_alone_is_copied_and_the_rest_quantised_as_the_reference_does(
    kind: str, tmp_path: Path
) -> None:
    original, trained, out = tmp_path / "original", tmp_path / "trained", tmp_path / "out"
    write_quantised(original, kind)
    (original / "tokenizer.json").write_text("{}")
    decoder = load_model(original)
    save_model(trained, decoder)
    write_back(trained, original, tmp_path / "same")
    before = stored(original)
    again = stored(tmp_path / "same")
    assert set(again) == set(before) and all(same(before[name], again[name]) for name in before)
    assert read_json(tmp_path / "same") == read_json(original) and (tmp_path / "same/tokenizer.json").exists()

    weights = named_weights(decoder)
    name = next(name for name in weights if ".experts.0.up_proj" in name)
    weights[name] += 0.01 * torch.randn(weights[name].shape, generator=torch.Generator().manual_seed(0))
    weights["model.norm.weight"] += 0.25
    save_model(trained, decoder)
    counts = write_back(trained, original, out)
    after = stored(out)
    changed = {key for key in before if not same(before[key], after[key])}
    assert counts["changed"] == 2 and counts["added"] == 0
    if kind == "fp8":
        assert changed == {name, f"{name}_scale_inv", "model.norm.weight"}
        for i in range(0, weights[name].shape[0], 128):
            for j in range(0, weights[name].shape[1], 128):
                block = weights[name][i : i + 128, j : j + 128]
                scale = block.abs().max() / 448.0  # DeepSeek's quantiser
                assert after[f"{name}_scale_inv"][i // 128, j // 128] == scale
                assert same(after[name][i : i + 128, j : j + 128], (block / scale).to(torch.float8_e4m3fn))
    else:
        assert changed == {f"{name}_packed", f"{name}_scale", "model.norm.weight"}
        values = load_model(out)
        step = after[f"{name}_scale"].float().repeat_interleave(32, 1)[:, : weights[name].shape[1]]
        # compressed-tensors: x / scale, rounded to the nearest and cut to -8..7
        wanted = torch.clamp(torch.round(weights[name] / step), -8, 7) * step
        assert torch.equal(named_weights(values)[name], wanted)


def test_fp8_scales_that_are_rounded_are_those_that_values_are_divided_by(tmp_path: Path) -> None:
    original, trained = tmp_path / "original", tmp_path / "trained"
    write_quantised(original, "fp8")
    for path in original.glob("*.safetensors"):
        tensors = {key: x.bfloat16() if key.endswith("_scale_inv") else x for key, x in load_file(path).items()}
        save_file(tensors, path)
    decoder = load_model(original)
    weights = named_weights(decoder)
    name = next(name for name in weights if ".experts.0.up_proj" in name)
    weights[name] += 0.01 * torch.randn(weights[name].shape, generator=torch.Generator().manual_seed(0))
    save_model(trained, decoder)
    write_back(trained, original, tmp_path / "out")
    after = stored(tmp_path / "out")
    assert after[f"{name}_scale_inv"].dtype == torch.bfloat16
    for i in range(0, weights[name].shape[0], 128):
        for j in range(0, weights[name].shape[1], 128):
            scale = after[f"{name}_scale_inv"][i // 128, j // 128].float()
            wanted = (weights[name][i : i + 128, j : j + 128] / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
            assert same(after[name][i : i + 128, j : j + 128], wanted)


def test_new_heads_and_positions_are_written_beside_what_came(tmp_path: Path) -> None:
    original, trained = tmp_path / "original", tmp_path / "trained"
    write_quantised(original, "fp8", num_nextn_predict_layers=0)
    decoder = attach(load_model(original), 1, 0)
    decoder.config = replace(decoder.config, max_position_embeddings=4096)
    save_model(trained, decoder)
    counts = write_back(trained, original, tmp_path / "out")
    assert counts["added"] > 5
    loaded = load_model(tmp_path / "out")
    assert loaded.config.num_nextn_predict_layers == 1 and loaded.config.max_position_embeddings == 4096
    assert read_json(tmp_path / "out")["quantization_config"]["quant_method"] == "fp8"
    with pytest.raises(EtudeError, match="is not empty"):
        write_back(trained, original, tmp_path / "out")


def test_another_models_weights_are_refused(tmp_path: Path) -> None:
    write_quantised(tmp_path / "one", "fp8")
    decoder = load_model(tmp_path / "one")
    save_model(tmp_path / "two", decoder)
    write_quantised(tmp_path / "other", "fp8", intermediate_size=80)
    with pytest.raises(EtudeError, match="weights and configuration are of different models"):
        write_back(tmp_path / "two", tmp_path / "other", tmp_path / "out")
