"""Heads from scratch: what stays as it was, what they learn, and that their acceptance is counted right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from etude.core.run import Run
from etude.core.run_files import read_metrics
from etude.core.settings import MtpSettings, OptimSettings, RunSettings
from etude.learn.mtp import acceptance, attach, train_heads
from etude.model.attention import PackedAttend
from etude.model.checkpoint.directory import load_model
from etude.model.decoder import Decoder
from etude.tokens.tokenizer import Tokenizer
from tests.learn.lines import Lines

TEXT = Path(__file__).read_text()
MACHINE = RunSettings(seed=3, threads=1)
SETTINGS = MtpSettings(
    heads=2,
    steps=12,
    batch_tokens=400,
    micro_tokens=200,
    sequence=64,
    eval_every=6,
    eval_tokens=300,
    save_every=5,
    optim=OptimSettings(lr=1e-2, muon_lr=1e-2, warmup=0.0),
)


@pytest.fixture(scope="module")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tokenizer")
    Tokenizer.train([TEXT], 300).save(directory)
    return directory


def test_new_heads_change_nothing_that_the_model_says(make_decoder: Callable[..., Decoder]) -> None:
    old = make_decoder(mtp=1)
    grown = attach(old, 2, seed=5)
    assert grown.config.num_nextn_predict_layers == 2 and len(grown.mtp) == 2
    assert grown.lm_head.weight is grown.model.embed_tokens.weight
    ids, places, attend = torch.arange(9), torch.arange(9), PackedAttend([9])
    assert torch.equal(old(ids, places, attend), grown(ids, places, attend))
    assert not torch.equal(old.mtp[0].eh_proj.weight, grown.mtp[0].eh_proj.weight)
    assert torch.equal(attach(old, 2, seed=5).mtp[1].eh_proj.weight, grown.mtp[1].eh_proj.weight)


def test_heads_learn_the_models_own_distribution_and_the_model_stands_still(
    tmp_path: Path, tokenizer_dir: Path, make_decoder: Callable[..., Decoder]
) -> None:
    tokenizer = Tokenizer.load(tokenizer_dir)
    decoder = make_decoder(vocab_size=tokenizer.vocab_size)
    with Run.open(tmp_path, {}) as run:
        last = train_heads(
            run, decoder, Lines(tokenizer, TEXT, 30), Lines(tokenizer, TEXT, 30), SETTINGS, MACHINE, tokenizer_dir
        )
        assert run.finished("mtp")
    trained = load_model(last)
    for name, parameter in decoder.named_parameters():
        assert torch.equal(parameter, dict(trained.named_parameters())[name]), name
    rows = read_metrics(tmp_path)
    losses = [row["mtp_loss"] for row in rows if "mtp_loss" in row]
    assert len(losses) == 12 and losses[-1] < losses[0] and not any("loss" in row for row in rows)
    measured = [row for row in rows if "accepted.1" in row]
    assert [row["step"] for row in measured] == [0, 6, 12]
    assert measured[-1]["accepted.1"] > measured[0]["accepted.1"]
    assert run.facts("mtp")["accepted.2"] == pytest.approx(measured[-1]["accepted.2"])


def test_a_stopped_training_of_heads_continues_to_the_same_bits(
    tmp_path: Path, tokenizer_dir: Path, make_decoder: Callable[..., Decoder]
) -> None:
    tokenizer = Tokenizer.load(tokenizer_dir)
    decoder = make_decoder(vocab_size=tokenizer.vocab_size)
    made = []
    for name, stops in (("whole", (None,)), ("cut", (4, None))):
        for stop in stops:
            with Run.open(tmp_path / name, {}) as run:

                class Stopping(Lines):
                    taken = 0

                    def take(self, tokens: int) -> list[np.ndarray]:
                        self.taken += 1
                        run.stopping = run.stopping or self.taken == stop  # noqa: B023
                        return super().take(tokens)

                made.append(
                    train_heads(run, decoder, Stopping(tokenizer, TEXT), None, SETTINGS, MACHINE, tokenizer_dir)
                )
    assert made[1].name == "mtp-0000004"
    whole, cut = (dict(load_model(path).named_parameters()) for path in (made[0], made[2]))
    assert all(torch.equal(whole[name], cut[name]) for name in whole)


def test_acceptance_is_what_a_loop_over_places_finds(tokenizer_dir: Path, make_decoder: Callable[..., Decoder]) -> None:
    tokenizer = Tokenizer.load(tokenizer_dir)
    decoder = make_decoder(vocab_size=tokenizer.vocab_size, mtp=2, deviation=0.1)
    found = acceptance(decoder, Lines(tokenizer, TEXT, 30), 200, 90)
    kept: list[list[float]] = [[], []]
    agreed: list[list[float]] = [[], []]
    lengths: list[float] = []
    again, left = Lines(tokenizer, TEXT, 30), 200
    while left > 0:
        pieces = again.take(min(90, left))
        left -= sum(map(len, pieces))
        for piece in pieces:
            ids = torch.from_numpy(piece.astype(np.int64))
            places, attend = torch.arange(len(ids)), PackedAttend([len(ids)])
            with torch.no_grad():
                states = [decoder(ids, places, attend)]
                for depth in (1, 2):
                    states.append(decoder.mtp_hidden(depth, states[-1], ids.roll(-depth), places, attend))
                chances = [decoder.logits(state).double().softmax(-1) for state in states]
            for t in range(len(ids) - 2):
                both = [torch.minimum(chances[0][t + d], chances[d][t]).sum().item() for d in (1, 2)]
                for d in (0, 1):
                    kept[d].append(both[d])
                    agreed[d].append(float(chances[0][t + d + 1].argmax() == chances[d + 1][t].argmax()))
                lengths.append(1 + both[0] + both[0] * both[1])
    for d in (0, 1):
        assert found[f"accepted.{d + 1}"] == pytest.approx(np.mean(kept[d]), rel=1e-5)
        assert found[f"greedy.{d + 1}"] == pytest.approx(np.mean(agreed[d]))
    assert found["accepted_length"] == pytest.approx(np.mean(lengths), rel=1e-5)
