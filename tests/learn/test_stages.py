"""Pretraining and fine-tuning as stages of a run: what they log, how they stop, and that they continue exactly."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from etude.core.errors import EtudeError
from etude.core.policy import Assistant, Call, Message, System, ToolResult, User
from etude.core.run import Run
from etude.core.run_files import read_metrics
from etude.core.settings import OptimSettings, PretrainSettings, RunSettings, SftSettings
from etude.learn.loop import labelled
from etude.learn.pretrain import pretrain
from etude.learn.sft import beside, plan, sft, tokenise
from etude.model.attention import PackedAttend
from etude.model.checkpoint.directory import load_model
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder
from etude.tokens.dialect import ToolSchema, open_dialect
from etude.tokens.native import Native
from etude.tokens.tokenizer import Tokenizer
from tests.learn.lines import Lines

TEXT = Path(__file__).read_text()
MACHINE = RunSettings(seed=3, threads=1)
SETTINGS = PretrainSettings(
    steps=8, batch_tokens=200, micro_tokens=120, sequence=64, eval_every=4, eval_tokens=150, save_every=3
)


@pytest.fixture(scope="module")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tokenizer")
    Tokenizer.train([TEXT], 400).save(directory)
    return directory


def small_decoder(vocab: int, mtp: int = 0) -> Decoder:
    return Decoder(
        ModelConfig(
            vocab_size=vocab,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=8,
            num_nextn_predict_layers=mtp,
        ),
        seed=1,
    )


def start_pretraining(path: Path, tokenizer_dir: Path, stop_after: int | None = None, mtp: int = 0) -> Path:
    """One process's worth of pretraining; `stop_after` asks the run to stop while that batch is drawn."""
    tokenizer = Tokenizer.load(tokenizer_dir)
    with Run.open(path, {"run": {"keep_checkpoints": 9}}) as run:

        class Stopping(Lines):
            taken = 0

            def take(self, tokens: int) -> list[np.ndarray]:
                self.taken += 1
                run.stopping = self.taken == stop_after
                return super().take(tokens)

        decoder = small_decoder(tokenizer.vocab_size, mtp)
        return pretrain(
            run, decoder, Stopping(tokenizer, TEXT), Lines(tokenizer, TEXT), SETTINGS, MACHINE, tokenizer_dir
        )


def test_pretraining_logs_evaluates_saves_and_finishes(tmp_path: Path, tokenizer_dir: Path) -> None:
    last = start_pretraining(tmp_path, tokenizer_dir)
    assert last.name == "pretrain-0000008"
    assert sorted(p.name for p in last.parent.iterdir()) == [f"pretrain-{n:07d}" for n in (3, 6, 8)]
    rows = [row for row in read_metrics(tmp_path) if "loss" in row]
    assert [row["step"] for row in rows] == list(range(1, 9))
    assert {"loss", "bits_per_byte", "tokens_per_second", "grad_norm", "lr", "skipped"} <= rows[0].keys()
    assert rows[-1]["loss"] < rows[0]["loss"]
    tokenizer = Tokenizer.load(last)
    held_out = [row for row in read_metrics(tmp_path) if "held_out_loss" in row]
    assert [row["step"] for row in held_out] == [4, 8]
    # by hand: the loss of the same documents under the saved weights, whole logits and all
    pieces, decoder = Lines(tokenizer, TEXT).take(120) + continued(tokenizer, 120, 30), load_model(last)
    nats, tokens, size = 0.0, 0, 0
    for piece in pieces:
        ids = torch.from_numpy(piece.astype(np.int64))
        logits = decoder.logits(decoder(ids, torch.arange(len(ids)), PackedAttend([len(ids)])))
        nats += float(torch.nn.functional.cross_entropy(logits[:-1], ids[1:], reduction="sum").detach())
        tokens += len(ids) - 1
        size += sum(len(tokenizer.bytes_of(int(i))) for i in ids[1:])
    assert held_out[-1]["held_out_loss"] == pytest.approx(nats / tokens, rel=1e-4)
    assert held_out[-1]["held_out_bits_per_byte"] == pytest.approx(nats / np.log(2) / size, rel=1e-4)
    with Run.open(tmp_path, {"run": {"keep_checkpoints": 9}}) as run:
        assert run.finished("pretrain")


def continued(tokenizer: Tokenizer, skipped: int, tokens: int) -> list[np.ndarray]:
    lines = Lines(tokenizer, TEXT)
    lines.take(skipped)
    return lines.take(tokens)


@pytest.mark.parametrize("stop_after", [1, 3, 5])
def test_a_stopped_run_continues_to_the_same_bits(tmp_path: Path, tokenizer_dir: Path, stop_after: int) -> None:
    straight = start_pretraining(tmp_path / "straight", tokenizer_dir)
    stopped = start_pretraining(tmp_path / "stopped", tokenizer_dir, stop_after)
    assert stopped.name == f"pretrain-{stop_after:07d}"
    resumed = start_pretraining(tmp_path / "stopped", tokenizer_dir)
    for name in ("model.safetensors", "optimiser.safetensors", "data.json", "learner.json"):
        assert (resumed / name).read_bytes() == (straight / name).read_bytes(), name
    losses = [[row.get("loss") for row in read_metrics(tmp_path / run)] for run in ("straight", "stopped")]
    assert losses[0] == losses[1]


def test_a_finished_run_that_lost_its_last_word_is_finished_without_a_step(tmp_path: Path, tokenizer_dir: Path) -> None:
    last = start_pretraining(tmp_path, tokenizer_dir)
    facts = json.loads((tmp_path / "run.json").read_text())
    del facts["stages"]["pretrain"]["finished"]
    (tmp_path / "run.json").write_text(json.dumps(facts))
    before = (last / "model.safetensors").read_bytes()
    assert start_pretraining(tmp_path, tokenizer_dir) == last
    assert (last / "model.safetensors").read_bytes() == before
    assert "held_out_loss" in json.loads((tmp_path / "run.json").read_text())["stages"]["pretrain"]["facts"]


def test_a_checkpoint_without_its_position_is_refused(tmp_path: Path, tokenizer_dir: Path) -> None:
    stopped = start_pretraining(tmp_path, tokenizer_dir, stop_after=2)
    (stopped / "data.json").write_text("{" + " " * ((stopped / "data.json").stat().st_size - 1))
    with pytest.raises(EtudeError, match=r"data\.json is missing or damaged"):
        start_pretraining(tmp_path, tokenizer_dir)


def test_mtp_modules_are_trained_beside_the_main_head(tmp_path: Path, tokenizer_dir: Path) -> None:
    last = start_pretraining(tmp_path, tokenizer_dir, mtp=1)
    rows = [row for row in read_metrics(tmp_path) if "loss" in row]
    assert all(row["mtp_loss"] >= 0 for row in rows)
    fresh = small_decoder(Tokenizer.load(tokenizer_dir).vocab_size, mtp=1)
    assert not torch.equal(load_model(last).mtp[0].eh_proj.weight, fresh.mtp[0].eh_proj.weight)


def test_a_run_whose_gradients_are_never_finite_gives_up(
    tmp_path: Path, tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("etude.learn.loop.HOPELESS", 2)
    tokenizer = Tokenizer.load(tokenizer_dir)
    decoder = small_decoder(tokenizer.vocab_size)
    with torch.no_grad():
        decoder.model.norm.weight.fill_(torch.inf)
    with Run.open(tmp_path, {}) as run, pytest.raises(EtudeError, match="3 of 3 steps of pretrain"):
        pretrain(run, decoder, Lines(tokenizer, TEXT), None, SETTINGS, MACHINE, tokenizer_dir)


# Fine-tuning


def conversation(number: int) -> tuple[Message, ...]:
    return (
        System("You edit code."),
        User(f"Add {number} to the sum, please."),
        Assistant("first the file", "", (Call("read", {"path": f"sum_{number}.py"}),)),
        ToolResult("read", f"total = {number}\n" * (number % 3 + 1)),
        Assistant("", f"It is {number + 1} now."),
    )


CONVERSATIONS = [conversation(number) for number in range(12)]
SFT = SftSettings(
    epochs=2, batch_tokens=300, micro_tokens=150, sequence=200, save_every=2, optim=OptimSettings(lr=1e-3)
)


def start_sft(path: Path, tokenizer_dir: Path, stop_at: int | None = None, text: str = "") -> Path:
    tokenizer = Tokenizer.load(tokenizer_dir)
    lines = Lines(tokenizer, text) if text else None
    with Run.open(path, {"run": {"keep_checkpoints": 9}}) as run:
        log = run.log

        def stopping(stage: str, step: int, **values: float) -> None:
            log(stage, step, **values)
            run.stopping = step == stop_at

        run.log = stopping  # type: ignore[method-assign,assignment]
        decoder = small_decoder(tokenizer.vocab_size)
        return sft(run, decoder, Native(tokenizer), CONVERSATIONS, SFT, MACHINE, text=lines)


def test_only_the_assistants_own_tokens_are_learnt(tokenizer_dir: Path) -> None:
    tokenizer = Tokenizer.load(tokenizer_dir)
    ((ids, own),) = tokenise([conversation(4)], Native(tokenizer), 500)
    learnt = tokenizer.decode(int(i) for i, counts in zip(ids, own, strict=True) if counts)
    assert learnt == "first the filereadpathsum_4.pyIt is 5 now."
    assert own[ids == tokenizer.control["end_of_turn"]].all()
    assert not own[ids == tokenizer.control["assistant"]].any()


def test_fine_tuning_lowers_the_loss_and_leaves_a_model_with_its_tokenizer(tmp_path: Path, tokenizer_dir: Path) -> None:
    last = start_sft(tmp_path, tokenizer_dir)
    rows = read_metrics(tmp_path)
    assert rows[-1]["loss"] < rows[0]["loss"]
    assert Tokenizer.load(last).fingerprint == Tokenizer.load(tokenizer_dir).fingerprint
    load_model(last)


@pytest.mark.parametrize("text", ["", "\n".join(f"line {n} of a text that is learnt beside" for n in range(40))])
def test_fine_tuning_continues_to_the_same_bits(tmp_path: Path, tokenizer_dir: Path, text: str) -> None:
    straight = start_sft(tmp_path / "straight", tokenizer_dir, text=text)
    start_sft(tmp_path / "stopped", tokenizer_dir, stop_at=3, text=text)
    resumed = start_sft(tmp_path / "stopped", tokenizer_dir, text=text)
    assert resumed.name == straight.name
    for name in ("model.safetensors", "optimiser.safetensors"):
        wanted, found = load_file(straight / name), load_file(resumed / name)
        assert all(torch.equal(wanted[key], found[key]) for key in wanted)


def test_text_beside_conversations_has_its_share_of_the_loss() -> None:
    talks = [(np.arange(9), np.array([0, 0, 0, 1, 1, 0, 0, 1, 1], np.float32)), (np.arange(4), np.ones(4, np.float32))]
    text = [np.arange(30, dtype=np.uint16), np.arange(11, dtype=np.uint16)]
    found = beside(talks, text, 0.3)
    drawn = labelled([*talks, *found], [], np.ones(64, np.int64))
    weights = [float(item.streams[0].weight_T[1:].sum()) for item in drawn.batch.items]
    assert sum(weights) == pytest.approx(1.0) and sum(weights[2:]) == pytest.approx(0.3)
    assert [len(ids) for ids, _ in found] == [30, 11] and drawn.predicted == 10


def test_every_epoch_visits_every_conversation_once() -> None:
    lengths = [7, 30, 12, 90, 4, 18, 40]
    steps = plan(lengths, 60, 3, seed=5)
    assert sorted(i for step in steps for i in step) == sorted(list(range(7)) * 3)
    assert all(sum(lengths[i] for i in step) <= 60 or len(step) == 1 for step in steps)
    assert steps == plan(lengths, 60, 3, seed=5)
    assert steps != plan(lengths, 60, 3, seed=6)


@pytest.mark.parametrize(
    ("conversations", "sentence"),
    [
        (
            [conversation(0), (User("Why is   the sky blue?"), Assistant("", "word " * 300))],
            r"conversation 2 \('Why is the sky blue\?'\) has \d+ tokens, sft.sequence is 100",
        ),
        ([(User("hello"),)], r"conversation 1 \('hello'\) has no turn of the assistant"),
        ([(User("a"), Assistant("", "b " * 200))] * 7, "and 4 more"),
        ([], "no conversations"),
    ],
)
def test_conversations_that_cannot_be_learnt_are_refused_by_name(
    tokenizer_dir: Path, conversations: list[tuple[Message, ...]], sentence: str
) -> None:
    with pytest.raises(EtudeError, match=sentence):
        tokenise(conversations, open_dialect(tokenizer_dir), 100)


def test_a_loaded_model_is_fine_tuned_and_keeps_its_template(template_models: dict[str, Path], tmp_path: Path) -> None:
    dialect = open_dialect(template_models["kimi"])
    with Run.open(tmp_path / "run", {}) as run:
        decoder = small_decoder(dialect.vocab_size)
        longer = replace(SFT, sequence=400, batch_tokens=800, micro_tokens=400)
        last = sft(run, decoder, dialect, CONVERSATIONS, longer, MACHINE, tools=[ToolSchema("read")])
    losses = [row["loss"] for row in read_metrics(tmp_path / "run") if "loss" in row]
    assert losses[-1] < losses[0]
    again = open_dialect(last)
    assert again.fingerprint == dialect.fingerprint and again.stop_ids == dialect.stop_ids


def test_a_loaded_model_learns_its_own_turns_and_no_turn_twice(template_models: dict[str, Path]) -> None:
    """A template that drops old thinking makes a sequence of each stretch; in each only what was said there counts."""
    call = Call("read", {"path": "a.py"})
    talk: tuple[Message, ...] = (
        User("one"),
        Assistant("thought 1", "said 1", (call,)),
        ToolResult("read", "shown"),
        Assistant("thought 2", "said 2"),
        User("two"),
        Assistant("thought 3", "said 3"),
    )
    for name, expected in {"qwen3": 2, "hermes": 1, "kimi": 1}.items():
        dialect = open_dialect(template_models[name])
        pieces = tokenise([talk], dialect, 1000, [ToolSchema("read")])
        assert len(pieces) == expected
        learnt = [dialect.decode(int(i) for i in ids[own == 1]) for ids, own in pieces]
        everything = "".join(learnt)
        for part in ("thought 1", "said 1", "a.py", "thought 2", "said 2", "thought 3", "said 3"):
            assert everything.count(part) == 1, (name, part)
        assert not any(word in everything for word in ("one", "two", "shown"))
        ends = sum(int(i) in dialect.stop_ids for ids, own in pieces for i in ids[own == 1])
        assert ends == 3  # a turn's end is the model's to say
    ids, own = tokenise([talk], open_dialect(template_models["qwen3"]), 1000)[1]
    assert "said 1" in open_dialect(template_models["qwen3"]).decode(ids.tolist()) and own.sum() < len(ids)
