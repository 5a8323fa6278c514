"""Broken checkpoints are refused in one sentence that names the file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from etude.errors import EtudeError
from etude.model.checkpoint import load_model, save_model
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder


def edit_config(directory: Path, **changes: object) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_weights(directory: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    weights = load_file(directory / "model.safetensors")
    change(weights)
    save_file(weights, directory / "model.safetensors")


def truncate(directory: Path) -> None:
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def add_index(directory: Path, name: str) -> None:
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda d: (d / "config.json").unlink(), "has no config.json"),
        (lambda d: (d / "config.json").write_text("{"), "not valid JSON"),
        (lambda d: (d / "config.json").write_text("[]"), "JSON object"),
        (lambda d: edit_config(d, model_type="gpt9"), "type 'gpt9'"),
        (lambda d: edit_config(d, hidden_size="wide"), "not a number"),
        (lambda d: edit_config(d, hidden_size=48), "different models"),
        (lambda d: edit_config(d, rope_parameters={"rope_type": "yarn"}), "rope scaling 'yarn'"),
        (lambda d: edit_config(d, num_key_value_heads=3), "cannot share"),
        (lambda d: (d / "model.safetensors").unlink(), "no model.safetensors"),
        (truncate, "damaged or cut short"),
        (lambda d: edit_weights(d, lambda w: w.pop("model.norm.weight")), "lacks 1 of"),
        (lambda d: edit_weights(d, lambda w: w.update(extra=torch.ones(1))), "does not describe"),
        (lambda d: add_index(d, "../../etc/passwd"), "not a file of that directory"),
        (lambda d: add_index(d, "gone.safetensors"), "gone.safetensors cannot be read"),
    ],
)
def test_a_broken_checkpoint_is_refused(tmp_path: Path, damage: Callable[[Path], object], sentence: str) -> None:
    shape = ModelConfig(
        vocab_size=40,
        hidden_size=32,
        intermediate_size=40,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
    )
    save_model(tmp_path, Decoder(shape))
    damage(tmp_path)
    with pytest.raises(EtudeError, match=sentence):
        load_model(tmp_path)
