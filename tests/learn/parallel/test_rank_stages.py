"""Stages and the learner process of rl on two ranks: the recipe's table is all that changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from etude.core.cluster_settings import LearnerRanks
from etude.core.errors import EtudeError
from etude.core.policy import Version
from etude.core.run import Run
from etude.core.run_files import read_metrics
from etude.core.settings import ExtendSettings, MtpSettings, OptimSettings, PretrainSettings, RunSettings
from etude.learn.extend import extend, stretch
from etude.learn.learner import Learner
from etude.learn.mtp import train_heads
from etude.learn.pretrain import pretrain
from etude.learn.streams import Batch, Item, Label, Stream
from etude.model.checkpoint.directory import load_model, named_weights, save_model
from etude.model.checkpoint.outlines import load_outline
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder
from etude.model.weight_transfer.shared_memory import WeightBoard
from etude.rl.learner.client import launch_learner
from etude.rl.learner.messages import LearnerSpec
from etude.tokens.tokenizer import Tokenizer
from tests.learn.lines import Lines

TWO = LearnerRanks(ranks=2)
TEXT = Path(__file__).read_text()
SETTINGS = PretrainSettings(
    steps=4, batch_tokens=200, micro_tokens=64, sequence=64, eval_every=2, eval_tokens=150, save_every=2
)


def shape(vocabulary: int) -> ModelConfig:
    return ModelConfig(
        vocab_size=vocabulary,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
    )


def test_pretraining_begins_on_one_rank_and_continues_on_two(tmp_path: Path) -> None:
    """The second half on two ranks logs what one rank alone logs: batches do not depend on how many ranks there are."""
    tokenizer = Tokenizer.train([TEXT], 400)
    tokenizer.save(tmp_path / "tokenizer")

    def train(name: str, ranks: LearnerRanks, stop_after: int = 0) -> list[dict[str, Any]]:
        with Run.open(tmp_path / name, {"run": {"keep_checkpoints": 9, "save_in_background": True}}) as run:

            class Stopping(Lines):
                def take(self, tokens: int) -> list[np.ndarray]:
                    found = super().take(tokens)
                    run.stopping = len(read_metrics(run.path)) + 1 == stop_after
                    return found

            documents = Stopping(tokenizer, TEXT), Lines(tokenizer, TEXT)
            decoder = Decoder(shape(tokenizer.vocab_size), seed=1)
            machine = RunSettings(seed=3, threads=1)
            pretrain(run, decoder, *documents, SETTINGS, machine, tmp_path / "tokenizer", ranks=ranks)
        return read_metrics(tmp_path / name)

    whole = train("one", LearnerRanks())
    train("two", LearnerRanks(), stop_after=1)
    continued = train("two", TWO)
    assert len(list((tmp_path / "two/checkpoints/pretrain-0000004").glob("model-*.safetensors"))) == 2
    # Written beside step 3, by both ranks: the model of step 2.
    for name, expected in named_weights(load_model(tmp_path / "one/checkpoints/pretrain-0000002")).items():
        found = named_weights(load_model(tmp_path / "two/checkpoints/pretrain-0000002"))[name]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    facts = ("step", "loss", "grad_norm", "held_out_loss")
    for row, expected in zip(continued, whole, strict=True):
        for fact in facts:
            assert row.get(fact) == (pytest.approx(expected[fact], abs=1e-5) if fact in expected else None)


def test_new_heads_and_longer_sequences_are_trained_on_two_ranks_as_on_one(tmp_path: Path) -> None:
    """From outlines: no rank has the whole model. Losses and the fate of drafts are those of one rank."""
    tokenizer = Tokenizer.train([TEXT], 400)
    tokenizer.save(tmp_path / "tokenizer")
    save_model(tmp_path / "model", Decoder(shape(tokenizer.vocab_size), seed=1))
    common = {"steps": 2, "batch_tokens": 120, "micro_tokens": 64, "sequence": 64, "eval_every": 2, "eval_tokens": 150}
    heads, longer = MtpSettings(**common, heads=2), ExtendSettings(**common, rope_theta=50_000.0)
    machine = RunSettings(seed=3, threads=1)

    def train(name: str, load: Callable[[Path], Decoder], ranks: LearnerRanks) -> list[dict[str, Any]]:
        with Run.open(tmp_path / name, {}) as run:

            def documents() -> tuple[Lines, Lines]:
                return Lines(tokenizer, TEXT), Lines(tokenizer, TEXT)

            last = tmp_path / "tokenizer"
            grown = train_heads(run, load(tmp_path / "model"), *documents(), heads, machine, last, ranks)
            extend(run, stretch(load(grown), longer, 32), *documents(), longer, machine, last, ranks=ranks)
        return read_metrics(tmp_path / name)

    one, two = train("one", load_model, LearnerRanks()), train("two", load_outline, TWO)
    assert {row["stage"] for row in one} == {"mtp", "extend"}
    for row, expected in zip(two, one, strict=True):
        timed = {"tokens_per_second", "time"}
        assert {k: v for k, v in row.items() if k not in timed and isinstance(v, float)} == pytest.approx(
            {k: v for k, v in expected.items() if k not in timed and isinstance(v, float)}, rel=1e-4, abs=1e-5
        )


@pytest.mark.parametrize("files", [False, True], ids=["sent", "files"])
def test_the_learner_process_of_rl_has_two_ranks(tmp_path: Path, files: bool) -> None:
    save_model(tmp_path / "model", Decoder(shape(31), seed=3))
    (tmp_path / "model/tokenizer.json").write_text('{"a": "tokenizer"}')
    optim = OptimSettings(lr=1e-3, muon_lr=1e-3)
    batches = tmp_path / "batch" if files else None
    spec = LearnerSpec(tmp_path / "model", optim, 4, 32, tmp_path / "board", ranks=TWO, batches=batches)
    alone = Learner(load_model(tmp_path / "model"), optim, 4, 32)
    rng = np.random.default_rng(0)
    tokens = [rng.integers(0, 31, n) for n in (20, 7, 13)]
    batch = Batch([Item(t, [Stream("main", np.full(len(t), 0.02, np.float32), Label(t))]) for t in tokens])

    async def drive() -> None:
        async with await launch_learner(spec, log=tmp_path / "log", deadline=600) as learner:
            for lr in (1e-3, 5e-4):
                found = await learner.forward_backward(batch) | await learner.step(lr)
                alone.optim = alone.optimiser.settings = OptimSettings(lr=lr, muon_lr=1e-3)
                expected = alone.forward_backward(batch) | alone.step()
                assert found["loss"] == pytest.approx(expected["loss"], abs=1e-5)
                assert found["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-4)
                assert found["lr"] == expected["lr"]
                assert (tmp_path / "batch").exists() == files and not list(tmp_path.glob("batch/*"))
                assert found["update_rms"] > 0
            scores = await learner.score(batch.items)
            assert not list(tmp_path.glob("batch/*"))
            for score, expected in zip(scores, alone.score(batch.items), strict=True):
                np.testing.assert_allclose(score, expected, atol=1e-5)
            with pytest.raises(EtudeError, match="no 'frozen' weights"):
                await learner.score(batch.items, "frozen")
            await learner.publish(Version(0, 2))
            published = Decoder(shape(31))
            WeightBoard.attach(tmp_path / "board").load_into(published, Version(0, 2))
            (tmp_path / "saved").mkdir()
            await learner.begin_save(tmp_path / "saved")
            await learner.forward_backward(batch)
            await learner.step()  # moves the weights while both ranks write those of before
            await learner.finish_save()
            assert await learner.saved() and (tmp_path / "saved/tokenizer.json").is_file()
            stored = named_weights(load_model(tmp_path / "saved"))
            for name, weight in named_weights(alone.decoder).items():
                torch.testing.assert_close(named_weights(published)[name], weight, rtol=1e-4, atol=1e-5)
                torch.testing.assert_close(stored[name], weight, rtol=1e-4, atol=1e-5)

    asyncio.run(drive())
