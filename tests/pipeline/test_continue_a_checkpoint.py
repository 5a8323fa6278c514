"""`etude pretrain` on a checkpoint that somebody brings: its tokenizer for the corpus, and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import transformers

from etude.bench.base.model_under_test import ModelUnderTest, ScoredText
from etude.core import recipe as recipes
from etude.core.errors import EtudeError
from etude.core.run_files import read_metrics
from etude.corpus.manifest import load_manifest
from etude.corpus.mix import Mix
from etude.learn.pretrain import wrong_tokenizer
from etude.model.checkpoint.directory import load_model, save_model
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder
from etude.pipeline.execute import execute
from etude.pipeline.stages.table import checked_stages
from etude.tokens.text_tokenizer import open_tokenizer
from tests.tokens.test_text_tokenizer import with_tokens

FIM = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
GENTLE = ["pretrain.optim.lr=1e-3", "pretrain.optim.muon_lr=5e-4", "corpus.fim_rate=0.5"]


def bring(folder: Path, tokenizer: Path, rows: int = 0) -> Path:
    """A small checkpoint with the tokenizer of another directory; `rows` embeddings, or more than it needs."""
    shutil.copytree(tokenizer, folder)
    vocabulary = rows or open_tokenizer(folder).vocab_size + 7
    shape = ModelConfig(vocabulary, 16, 24, 2, 2, 1, 8, max_position_embeddings=256)
    save_model(folder, Decoder(shape, seed=3))
    return folder


@pytest.fixture(scope="module")
def brought(tmp_path_factory: pytest.TempPathFactory, template_models: dict[str, Path]) -> Path:
    root = tmp_path_factory.mktemp("brought")
    return bring(root / "model", with_tokens(template_models["qwen3"], root / "tokenizer", *FIM))


def test_the_corpus_is_in_its_own_tokens_and_the_result_is_its_checkpoint_trained(
    tiny: Path, brought: Path, tmp_path: Path
) -> None:
    recipe = recipes.load(str(tiny), [f"pretrain.model={brought}", *GENTLE])
    outcome = execute("pretrain", recipe, tmp_path / "run")
    corpus, theirs = tmp_path / "run" / "corpus", transformers.AutoTokenizer.from_pretrained(brought)
    assert load_manifest(corpus).tokenizer == open_tokenizer(brought).fingerprint
    end, before, after, fill = (theirs.convert_tokens_to_ids(mark) for mark in ("<|endoftext|>", *FIM))
    *pieces, _ = Mix(corpus, "held_out", 10_000, 0).take(3000)  # the last may be cut off
    whole = {Path(path).read_text() for path in (tiny.parent / "code").iterdir()}
    for ids in pieces:  # held-out files are as they are
        assert ids[-1] == end and theirs.decode(ids[:-1]) in whole
    trained = np.concatenate(Mix(corpus, "train", 10_000, 0).take(30_000))
    assert (trained == before).sum() == (trained == after).sum() == (trained == fill).sum() > 0
    rows = [row for row in read_metrics(tmp_path / "run") if "loss" in row]
    assert rows[-1]["loss"] < rows[0]["loss"]
    assert outcome.model is not None and load_model(outcome.model).config == load_model(brought).config
    assert (outcome.model / "tokenizer.json").read_bytes() == (brought / "tokenizer.json").read_bytes()
    assert transformers.AutoTokenizer.from_pretrained(outcome.model).chat_template == theirs.chat_template


def test_private_code_is_measured_at_every_evaluation_and_never_trained_on(tiny: Path, tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir()
    (private / "own.py").write_text("".join(f"def private_{n}():\n    return {n}\n" for n in range(40)))
    settings = ["pretrain.steps=2", "pretrain.eval_every=1", "pretrain.eval_tokens=256", f"pretrain.private={private}"]
    outcome = execute("pretrain", recipes.load(str(tiny), settings), tmp_path / "run")
    rows = [row for row in read_metrics(tmp_path / "run") if "held_out_loss_private" in row]
    assert [row["step"] for row in rows] == [1, 2]
    # The last of them again, by a plain forward over the same pieces.
    assert outcome.model is not None
    tested, length = ModelUnderTest.open(outcome.model, "cpu", 4096), recipes.load(str(tiny)).pretrain.sequence
    ids = tested.text.encode((private / "own.py").read_text())
    pieces = [ids[start : start + length] for start in range(0, len(ids), length)]
    pieces = [piece for piece in pieces if len(piece) > 1]
    taken: list[list[int]] = []
    while sum(map(len, taken)) < 256:
        piece, room = pieces[len(taken) % len(pieces)], 256 - sum(map(len, taken))
        taken.append(piece[: max(2, room)])
    scores = tested.score([ScoredText(piece, 1) for piece in taken])
    loss = -sum(float(part.sum()) for part in scores) / sum(len(piece) - 1 for piece in taken)
    assert rows[-1]["held_out_loss_private"] == pytest.approx(loss, rel=1e-4)


def test_a_model_that_guesses_its_text_is_said_to_have_another_tokenizer(
    tiny: Path, brought: Path, tmp_path: Path
) -> None:
    sure = shutil.copytree(brought, tmp_path / "sure")
    decoder = load_model(brought)
    decoder.lm_head.weight.data.mul_(100)  # sure of itself, and wrong: as with ids of another tokenizer
    save_model(sure, decoder)
    settings = [f"pretrain.model={sure}", "pretrain.steps=1", "pretrain.eval_every=1", "pretrain.eval_tokens=256"]
    execute("pretrain", recipes.load(str(tiny), settings), tmp_path / "run")
    said = (tmp_path / "run" / "log").read_text()
    assert "its tokenizer.json is that of another model, or its weights are random" in said
    assert not wrong_tokenizer(3.0, 1024)


def test_adapters_leave_the_rest_as_it_came(tiny: Path, brought: Path, tmp_path: Path) -> None:
    settings = [f"pretrain.model={brought}", *GENTLE, "pretrain.lora.rank=2", "pretrain.lora.targets=['q_proj']"]
    outcome = execute("pretrain", recipes.load(str(tiny), settings), tmp_path / "run")
    assert outcome.model is not None
    before, after = load_model(brought).state_dict(), load_model(outcome.model).state_dict()
    moved = {name for name, tensor in after.items() if not tensor.equal(before[name])}
    assert moved and all("q_proj" in name for name in moved)


def test_longer_sequences_and_heads_are_trained_on_its_tokens_and_never_on_others(
    tiny: Path, brought: Path, tmp_path: Path
) -> None:
    more = ["extend.steps=1", "extend.sequence=128", "extend.batch_tokens=128", "extend.micro_tokens=128"]
    more += ["mtp.steps=1", "mtp.batch_tokens=128", "mtp.micro_tokens=128", "mtp.sequence=64"]
    # on their own the corpus is made for the model they begin with
    recipe = recipes.load(str(tiny), [f"mtp.model={brought}", *more])
    execute("mtp", recipe, tmp_path / "heads")
    assert load_manifest(tmp_path / "heads/corpus").tokenizer == open_tokenizer(brought).fingerprint
    # a run that has a corpus of its own refuses the checkpoint of another tokenizer
    for stage in ("mtp", "extend"):
        execute("corpus", recipes.load(str(tiny)), tmp_path / stage)
        given = recipes.load(str(tiny), [f"{stage}.model={brought}", *more])
        with pytest.raises(EtudeError, match="is encoded with another tokenizer than that of"):
            execute(stage, given, tmp_path / stage)


def test_a_tokenizer_with_more_ids_than_embeddings_is_refused_before_any_work(
    tiny: Path, template_models: dict[str, Path], tmp_path: Path
) -> None:
    small = bring(tmp_path / "small", template_models["kimi"], rows=300)
    with pytest.raises(EtudeError, match=r"ids and the model only 300 embeddings"):
        execute("pretrain", recipes.load(str(tiny), [f"pretrain.model={small}"]), tmp_path / "run")
    assert not (tmp_path / "run" / "corpus" / "shards").exists()
    with pytest.raises(EtudeError, match="there is no model or run at"):
        execute("pretrain", recipes.load(str(tiny), ["pretrain.model=nowhere"]), tmp_path / "run")
    with pytest.raises(EtudeError, match=r"set pretrain\.model, or pretrain\.lora\.rank to 0"):
        execute("pretrain", recipes.load(str(tiny), ["pretrain.lora.rank=2"]), tmp_path / "run")


def test_a_phase_has_its_own_mix_and_every_source_its_own_held_out_loss(
    tiny: Path, brought: Path, tmp_path: Path
) -> None:
    code = tiny.parent / "code"
    other = shutil.copytree(code, tmp_path / "other")
    for file in other.iterdir():
        file.write_text(file.read_text().replace("return x", "yield -x").replace("def f", "def generator_"))
    sources = f"corpus.sources=[{{use='folder', path='{code}'}}, {{use='folder', path='{other}'}}]"
    settings = [f"pretrain.model={brought}", *GENTLE, sources, "pretrain.weights={other=1}"]
    execute("pretrain", recipes.load(str(tiny), settings), tmp_path / "run")
    rows = [row for row in read_metrics(tmp_path / "run") if "held_out_loss" in row]
    assert [row["step"] for row in rows] == [0, 2, 4]  # before the first step too: what the checkpoint brought
    assert rows[-1]["held_out_loss_other"] < rows[0]["held_out_loss_other"]
    assert {"held_out_loss_code", "held_out_bits_per_byte_other"} <= rows[0].keys()
    corpus = tmp_path / "run" / "corpus"
    taken = np.concatenate(Mix(corpus, "train", 64, 0, weights={"other": 1.0, "code": 0.0}).take(5000))
    text = open_tokenizer(brought).decode(taken.tolist())
    assert "generator_" in text and "def f" not in text
    with pytest.raises(EtudeError, match="no source 'others' to weigh: its sources are code, other"):
        Mix(corpus, "train", 64, 0, weights={"others": 1.0})


def test_a_run_that_is_older_than_a_setting_goes_on(tiny: Path, tmp_path: Path) -> None:
    recipe = recipes.load(str(tiny))
    execute("corpus", recipe, tmp_path / "run")
    written = tmp_path / "run" / "recipe.toml"
    lines = written.read_text().splitlines(keepends=True)
    older = [line for line in lines if not line.startswith(("fim_chars", "order = ", "eval_tokens"))]
    assert len(older) < len(lines)
    written.write_text("".join(older))
    assert execute("pretrain", recipe, tmp_path / "run").done == ("pretrain",)
    with pytest.raises(EtudeError, match=r"corpus\.fim_chars"):
        execute("sft", recipes.load(str(tiny), ["corpus.fim_chars=17"]), tmp_path / "run")


def test_the_recipe_of_all_phases_plans_each_with_its_length_and_memory(brought: Path, tmp_path: Path) -> None:
    with pytest.raises(EtudeError, match=r"needs pretrain.model \(.*\) and sft.data"):
        checked_stages("sft", recipes.load("cpt"))
    data = tmp_path / "conversations.jsonl"
    data.write_text("")
    recipe = recipes.load("cpt", [f"pretrain.model={brought}", f"sft.data={data}"])
    stages = {stage.name: stage.outline(recipe) for stage in checked_stages("sft", recipe)}
    assert list(stages) == ["corpus", "pretrain", "mtp", "extend", "sft"]
    assert recipe.pretrain.sequence == 32_768 and stages["extend"]["sequence"] == 262_144
    assert stages["sft"]["from"] == "this run's extend"
    assert all(stages[name]["memory"].endswith("iB") for name in ("pretrain", "extend"))
