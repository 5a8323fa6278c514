"""`etude bench base` and `etude bench` beside it, through the command line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from etude.bench.base.model_under_test import ModelUnderTest
from etude.bench.base.suite import EVALUATIONS, evaluate_base
from etude.cli.main import app
from etude.core.errors import EtudeError
from etude.core.settings import BaseSettings, ModelSettings
from etude.model.checkpoint.directory import save_model
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder
from etude.tokens.dialect import open_dialect
from etude.tokens.tokenizer import Tokenizer

SMALL = {
    "code_bytes": 3000,
    "window": 128,
    "histories": 2,
    "history_tokens": 1024,
    "needle_lengths": [256],
    "needle_depths": [0.0, 1.0],
    "needle_trials": 1,
    "needle_candidates": 3,
}


def etude(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_a_directory_is_measured_saved_and_shown(
    make_tested: Callable[..., ModelUnderTest], plain_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    model, code, saved = tmp_path / "model", tmp_path / "code", tmp_path / "base.json"
    code.mkdir()
    (code / "a.py").write_text("".join(f"value_{n} = {n}\n" for n in range(100)))
    tested = make_tested()
    save_model(model, tested.decoder)
    plain_tokenizer.save(model)
    changes = [f"base.{name}={json.dumps(value)}" for name, value in SMALL.items()]
    done = etude("bench", "base", model, "run.threads=1", *changes, "--code", code, "--save", saved, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout.splitlines()[-1])
    assert json.loads(saved.read_text()) == {k: v for k, v in found.items() if k != "ok"}
    assert found["codebase"]["code"] == "code" and len(found["tracking"]["files"]) == 2
    here = evaluate_base(tested, BaseSettings(**SMALL | {"code": str(code)}))
    for name in EVALUATIONS:
        for key, value in here[name].items():
            if isinstance(value, float) and key != "seconds":
                assert found[name][key] == pytest.approx(value, rel=1e-4), (name, key)
    shown = etude("bench", "base", model, "run.threads=1", *changes, "--code", code)
    assert "bits per byte" in shown.stdout and "256 tokens" in shown.stdout and "100%" in shown.stdout


@pytest.mark.parametrize(("name", "shape"), [("qwen3", "qwen3_moe"), ("kimi", "kimi_k2")])
def test_a_loaded_checkpoint_is_measured_with_its_own_tokenizer(
    template_models: dict[str, Path], tmp_path: Path, name: str, shape: str
) -> None:
    model = tmp_path / "model"
    shutil.copytree(template_models[name], model)
    size = open_dialect(model).vocab_size
    small = {"width": 32, "layers": 2, "heads": 2, "kv_heads": 1, "head_dim": 8, "mlp": 32, "kv_rank": 16}
    experts = {"experts": 4, "expert_mlp": 16, "rope_dim": 8, "max_positions": 1024}
    settings = ModelSettings(shape=shape, **small, **experts)  # type: ignore[arg-type]
    save_model(model, Decoder(ModelConfig.from_settings(settings, size), 1))
    found = evaluate_base(ModelUnderTest.open(model, "cpu", 512), BaseSettings(**SMALL))
    assert 1 < found["codebase"]["bits_per_byte"] < 9 and found["tracking"]["distance"] > 0
    assert 0 < found["needle"]["probability"] < 1


def test_bench_still_means_tasks_and_says_what_else_there_is() -> None:
    shown = etude("bench", "--help").output
    assert "tasks" in shown and "base" in shown
    for arguments in (["bench", "nowhere"], ["bench", "--json", "nowhere"], ["bench", "tasks", "nowhere"]):
        done = etude(*arguments)
        assert done.exit_code == 2 and "there is no model or run at nowhere" in done.output


def test_an_unknown_evaluation_is_refused(make_tested: Callable[..., ModelUnderTest]) -> None:
    with pytest.raises(EtudeError, match="no base evaluation 'haystack': choose from codebase, tracking, needle"):
        evaluate_base(make_tested(), BaseSettings(), ["haystack"])
