"""vLLM as an engine, without vLLM: what it is given to load, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from etude.cluster.vllm import check_model, link_weights
from etude.core.errors import EtudeError


def test_it_is_given_the_model_without_the_optimisers_state(tmp_path: Path) -> None:
    model, folder = tmp_path / "model", tmp_path / "links"
    model.mkdir()
    folder.mkdir()
    for name in ("config.json", "model-00001-of-00002.safetensors", "model.safetensors", "optimiser.safetensors"):
        (model / name).write_text(name)
    link_weights(model, folder)
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.json",
        "model-00001-of-00002.safetensors",
        "model.safetensors",
    ]
    assert (folder / "model.safetensors").read_text() == "model.safetensors"


def test_a_model_that_it_computes_wrongly_on_a_cpu_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "deepseek_v3"}))
    with pytest.raises(EtudeError, match="vLLM on a CPU"):
        check_model(tmp_path, "cpu")
    check_model(tmp_path, "cuda")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3_moe", "num_experts": 8}))
    check_model(tmp_path, "cpu")
