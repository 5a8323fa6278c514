"""Several models side by side: cost of serving, the table, its JSON and pages; and the fit of a held-out loss."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner, Result

from etude.bench.base.code_text import Code
from etude.bench.base.comparison import markdown, page
from etude.bench.base.loss_fit import fit_loss
from etude.bench.base.model_under_test import ModelUnderTest
from etude.bench.base.private_code import PrivateCode
from etude.bench.base.serving import measure_serving
from etude.bench.base.suite import evaluate_base
from etude.cli.main import app
from etude.core import recipe as recipes
from etude.core.errors import EtudeError
from etude.core.run import Run
from etude.core.settings import BaseSettings, EngineSettings
from etude.engine.cache import KeyValueCache
from etude.model.checkpoint.directory import save_model
from etude.tokens.tokenizer import Tokenizer


def etude(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_memory_is_that_of_weights_and_of_a_real_cache(make_tested: Callable[..., ModelUnderTest]) -> None:
    tested = make_tested()
    found = measure_serving(tested, list(range(50)), [64, 1 << 20], 64, 2, 4)
    weights = sum(p.nbytes for p in tested.decoder.parameters())
    settings = EngineSettings(max_running=1, max_length=64, cache_tokens=16)
    cache = KeyValueCache(tested.decoder.config, settings, "cpu", torch.float32)
    assert found.weights == weights and found.cache_token * 64 == cache.rows_LPRKSD.nbytes
    assert found.lengths[0].memory == weights + 64 * found.cache_token
    assert found.lengths[0].decode and found.lengths[0].prefill
    assert found.lengths[1].decode is None and found.lengths[1].memory > found.lengths[0].memory


def test_two_models_are_measured_at_once(
    make_tested: Callable[..., ModelUnderTest], plain_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    models = []
    for name in ("one", "two"):
        save_model(tmp_path / name, make_tested().decoder)
        plain_tokenizer.save(tmp_path / name)
        models.append(tmp_path / name)
    code = tmp_path / "code"
    code.mkdir()
    (code / "a.py").write_text("".join(f"value_{n} = {n}\n" for n in range(60)))
    words = ["base.window=64", "run.threads=1", "--only", "codebase,serving", "--code", code]
    small = ["base.serving_lengths=[32]", "base.serving_requests=1", "base.serving_tokens=2"]
    web, saved = tmp_path / "base.html", tmp_path / "base.json"
    done = etude("bench", "base", *models, *words, *small, "--page", web, "--save", saved, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout.splitlines()[-1])["models"]
    assert [Path(each["model"]).name for each in found] == ["one", "two"]
    assert found[0]["codebase"]["bits_per_byte"] == pytest.approx(found[1]["codebase"]["bits_per_byte"])
    assert json.loads(saved.read_text())["models"] == found
    assert "bits per byte" in web.read_text() and web.read_text().startswith("<!DOCTYPE html>")
    text = markdown(found)
    assert text.count("\n| ") == 3 and f"{found[0]['codebase']['bits_per_byte']:.4f}" in text


def test_pages_survive_hostile_names_and_say_when_texts_differ() -> None:
    figures = {"bits_per_byte": 1.0, "fingerprint": "a"}
    models = [
        {"model": "x/<script>|`[", "codebase": figures},
        {"model": "y", "codebase": figures | {"fingerprint": "b"}},
    ]
    assert "<script>" not in page(models) and "different code" in page(models)
    assert "<script>" not in markdown(models) and "different code" in markdown(models)


def test_wrong_words_are_refused_before_anything_is_measured(tmp_path: Path) -> None:
    assert "name at least one model" in etude("bench", "base", "base.window=4").output
    assert ".html or .md" in etude("bench", "base", tmp_path, "--page", tmp_path / "x.pdf").output


def test_a_missing_file_of_questions_is_named_before_anything_is_measured(
    make_tested: Callable[..., ModelUnderTest], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measured: list[str] = []
    monkeypatch.setattr("etude.bench.base.suite._evaluate", lambda name, *_: measured.append(name) or {})
    settings = BaseSettings(questions=str(tmp_path / "none.jsonl"))
    with pytest.raises(EtudeError, match="no file of questions"):
        evaluate_base(make_tested(), settings, ["codebase", "fresh"])
    assert not measured


def test_a_line_through_losses_is_found_again() -> None:
    steps = [1, 2, 4, 8, 16, 32]
    losses = [3.0 - 0.25 * np.log2(step) for step in steps]
    fit = fit_loss([0, *steps], [9.0, *losses])
    assert (fit.at_one, fit.per_doubling, fit.r_squared) == pytest.approx((3.0, -0.25, 1.0))
    assert fit.doubled == pytest.approx(3.0 - 0.25 * 6) and fit.steps == steps
    noisy = fit_loss(steps, [3.0, 2.4, 2.6, 2.1, 2.3, 1.6])
    x = np.log2(steps)
    slope = np.cov(x, [3.0, 2.4, 2.6, 2.1, 2.3, 1.6], bias=True)[0, 1] / x.var()
    assert noisy.per_doubling == pytest.approx(slope) and 0 < noisy.r_squared < 1
    with pytest.raises(EtudeError, match="too few"):
        fit_loss([1, 2], [1.0, 0.9])


def test_the_fit_of_a_run_is_shown_by_name(tmp_path: Path) -> None:
    with Run.open(tmp_path / "run", recipes.to_dict(recipes.load("nano"))) as run:
        for step in (10, 20, 40, 80):
            run.log("pretrain", step, held_out_loss=3.0, held_out_loss_private=4.0 - 0.1 * float(np.log2(step)))
    done = etude("bench", "fit", tmp_path / "run", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout.splitlines()[-1])["per_doubling"] == pytest.approx(-0.1)
    assert "each doubling" in etude("bench", "fit", tmp_path / "run").stdout
    missing = etude("bench", "fit", tmp_path / "run", "--name", "other")
    assert missing.exit_code == 2 and "it has private" in missing.output


def test_private_code_is_the_same_each_time_and_begins_again() -> None:
    class Bytes:
        def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
            return [list(text.encode()) for text in texts]

    code = Code("mine", (("a.py", "abcdefghij"), ("b.py", "klmno")))
    private = PrivateCode(code, Bytes(), 4)
    start = private.position()
    first = private.take(9)
    assert ["".join(map(chr, piece)) for piece in first] == ["abcd", "efgh"]
    assert ["".join(map(chr, piece)) for piece in private.take(7)] == ["ij", "klmn"]  # "o" alone predicts nothing
    private.seek(start)
    assert [list(piece) for piece in private.take(9)] == [list(piece) for piece in first]
    with pytest.raises(EtudeError, match="too little code"):
        PrivateCode(Code("none", (("a.py", "x"),)), Bytes(), 4)
