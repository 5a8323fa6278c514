"""Stages whose text lies in files: each rank reads its own share, and all learn what one rank learns."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.scale import layouts
from etude.core.cluster_settings import LearnerRanks
from etude.core.errors import EtudeError
from etude.core.policy import Assistant, Message, User
from etude.core.run import Run
from etude.core.run_files import read_metrics
from etude.core.settings import ExtendSettings, MtpSettings, OptimSettings, PretrainSettings, RunSettings, SftSettings
from etude.core.token_files import Slice, write_arrays
from etude.core.transport import pack, write_frame
from etude.learn import loop
from etude.learn.extend import extend, stretch
from etude.learn.mtp import train_heads
from etude.learn.parallel.host_group import HostGroup
from etude.learn.parallel.launch import Ranks
from etude.learn.parallel.layout import Layout
from etude.learn.parallel.lead import LeadLearner
from etude.learn.parallel.manifest import ItemFacts, Manifest
from etude.learn.parallel.rank_learner import RankLearner
from etude.learn.pretrain import pretrain
from etude.learn.sft import sft
from etude.learn.streams import Batch, Ids
from etude.learn.texts import Text, TextFiles, Texts
from etude.model.checkpoint.directory import load_model, named_weights
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder
from etude.tokens.native import Native
from etude.tokens.tokenizer import Tokenizer
from tests.learn.lines import Lines
from tests.learn.parallel.groups import Found, run_ranks, worst

ONE, TWO = LearnerRanks(), LearnerRanks(ranks=2)
TEXT = Path(__file__).read_text()
MACHINE = RunSettings(seed=3, threads=1)
OPTIM = OptimSettings(lr=1e-3, muon_lr=1e-3)


class FileLines(Lines):
    """Lines that lie in a file; for several ranks nobody may take them all."""

    def __init__(self, tokenizer: Tokenizer, path: Path, ranks: int) -> None:
        super().__init__(tokenizer, TEXT)
        self.places, self.ranks = write_arrays(path, "u2", self.lines), ranks

    def take(self, tokens: int) -> list[Ids]:
        assert self.ranks == 1, "rank 0 takes the tokens of all"
        return super().take(tokens)

    def slices(self, tokens: int) -> list[Slice]:
        first = self.next
        lengths = map(len, super().take(tokens))
        places = (self.places[n % len(self.places)] for n in range(first, self.next))
        return [replace(place, stop=place.start + n) for place, n in zip(places, lengths, strict=True)]


def shape(vocabulary: int, heads: int = 0) -> ModelConfig:
    return ModelConfig(
        vocab_size=vocabulary,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        num_nextn_predict_layers=heads,
    )


def conversation(number: int) -> tuple[Message, ...]:
    asked = User(f"What is {number} and one more? " + "Think. " * (number % 4))
    return asked, Assistant(final=f"It is {number + 1}."), User("And now?"), Assistant(final=f"Then {number + 2}.")


def stage_of(name: str, tokenizer: Tokenizer, folder: Path) -> Callable[[Run, LearnerRanks], Path]:
    def documents(ranks: LearnerRanks) -> tuple[FileLines, FileLines]:
        train, held_out = folder / "train.ids", folder / "held_out.ids"
        return FileLines(tokenizer, train, ranks.ranks), FileLines(tokenizer, held_out, ranks.ranks)

    common: dict[str, Any] = {"batch_tokens": 200, "micro_tokens": 64, "optim": OPTIM, "save_every": 5}
    text = common | {"steps": 10, "sequence": 64, "eval_every": 5, "eval_tokens": 150}

    def train(run: Run, ranks: LearnerRanks) -> Path:
        decoder = Decoder(shape(tokenizer.vocab_size, int(name == "sft")), seed=1)
        if name == "sft":
            talks = [conversation(number) for number in range(36)]
            settings = SftSettings(**common, epochs=1, sequence=200, text_share=0.3)
            return sft(run, decoder, Native(tokenizer), talks, settings, MACHINE, ranks=ranks, text=documents(ranks)[0])
        if name == "mtp":
            heads = MtpSettings(**text, heads=2)
            return train_heads(run, decoder, *documents(ranks), heads, MACHINE, folder / "tokenizer", ranks)
        if name == "extend":
            longer = ExtendSettings(**text, rope_theta=50_000.0)
            stretched = stretch(decoder, longer, 32)
            return extend(run, stretched, *documents(ranks), longer, MACHINE, folder / "tokenizer", ranks=ranks)
        return pretrain(
            run, decoder, *documents(ranks), PretrainSettings(**text), MACHINE, folder / "tokenizer", ranks=ranks
        )

    return train


@pytest.mark.parametrize("name", ["pretrain", "sft", "mtp", "extend"])
def test_a_stage_on_two_ranks_is_that_of_one_and_sends_no_tokens(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All on two ranks, and begun on two and ended on one; rank 0 sends no item."""
    tokenizer = Tokenizer.train([TEXT], 400)
    tokenizer.save(tmp_path / "tokenizer")
    train = stage_of(name, tokenizer, tmp_path)

    def refuse(*_: object) -> bytes:
        raise AssertionError("rank 0 sends items")

    monkeypatch.setattr(HostGroup, "scatter", refuse)
    with Run.open(tmp_path / "one", {}) as run:
        one = train(run, ONE)
    step = LeadLearner.step

    def stopping(self: LeadLearner) -> dict[str, float]:
        halves.stopping = self.steps + 1 == 5
        return step(self)

    with Run.open(tmp_path / "two", {}) as run:
        two = train(run, TWO)
        assert not list(run.path.glob("*-texts"))
    with Run.open(tmp_path / "halves", {}) as halves:
        monkeypatch.setattr(LeadLearner, "step", stopping)
        train(halves, TWO)
    with Run.open(tmp_path / "halves", {}) as run:
        resumed = train(run, ONE)
    expected, rows = named_weights(load_model(one)), read_metrics(tmp_path / "one")
    for found in (two, resumed):
        weights = named_weights(load_model(found))
        assert max(worst(weights[key], expected[key]) for key in expected) < 1e-4
    for other in ("two", "halves"):
        for row, wanted in zip(read_metrics(tmp_path / other), rows, strict=True):
            numbers = {key: wanted[key] for key in wanted if key not in ("tokens_per_second", "time")}
            numbers = {key: value for key, value in numbers.items() if isinstance(value, float)}
            assert {key: row[key] for key in numbers} == pytest.approx(numbers, rel=1e-4, abs=1e-5)


def texts(folder: Path, longest: int = 40) -> Texts:
    """Of the vocabulary of the layouts' models: some tokens count, some sequences have one that does, or none."""
    rng = np.random.default_rng(0)
    lengths = [longest, 30, 2, 1, 17, longest, 9, 40, 30]
    pieces = [(rng.integers(0, layouts.VOCABULARY, n), (rng.random(n) < 0.6).astype(np.float32)) for n in lengths]
    pieces[4][1][:] = 0
    files = TextFiles(folder)
    sizes = files.sizes(rng.integers(0, 9, layouts.VOCABULARY))
    found = files.texts(pieces)
    found[-2:] = [Text.whole(text.ids, 0.25) for text in found[-2:]]
    made = loop.labelled_texts(found, [("mtp.1", 0.3)], sizes).batch.items
    assert isinstance(made, Texts)
    return made


def in_memory(made: Texts) -> loop.Draw:
    """The same batch as one rank without files has it."""
    assert made.sizes is not None
    arrays = [(text.ids.read(), text.counts()) for text in made.texts]
    return loop.labelled(arrays, made.heads, made.sizes.read().astype(np.int64))


def share(rank: int, ranks: int, folder: Path) -> Found:
    """One rank's part: what it read of the files, and the metrics of all."""
    made = texts(folder / f"{rank}")  # a folder for each: the same numbers
    sources = dict(zip(("live", "frozen"), layouts.starting("moe"), strict=True)) if not rank else {}
    learner = RankLearner(layouts.spec("moe", Layout(4, 1, 2, expert=4, context=2)), sources)
    read: list[tuple[str, int, int]] = []
    from_file = np.fromfile

    def reads(file: str, dtype: np.dtype[Any], count: int, offset: int) -> Any:
        read.append((Path(file).name, offset // dtype.itemsize, count))
        return from_file(file, dtype, count, offset=offset)

    np.fromfile = reads
    metrics = learner.forward_backward(Manifest.of(Batch(made)))
    return {"read": sorted(read), "metrics": metrics}


def test_a_rank_reads_its_own_sequences_and_no_other(tmp_path: Path) -> None:
    """Two pairs of ranks: a pair computes its sequences together. It reads its own, and no byte of the other pair's."""
    found = run_ranks(functools.partial(share, folder=tmp_path), 4, tmp_path)
    tokens = [[place for place in each["read"] if place[0] != "sizes"] for each in found]
    assert tokens[0] == tokens[1] and tokens[2] == tokens[3]
    assert tokens[0] and tokens[2] and not {*tokens[0]} & {*tokens[2]}
    made = texts(tmp_path)
    slices = [each for n, text in enumerate(made.texts) if made.depths(n) for each in (text.ids, text.own) if each]
    wanted = {(Path(each.file).name, each.start, len(each)) for each in slices}
    assert {*tokens[0], *tokens[2]} == wanted
    # Ids once; what counts is read a second time, by the same rank, for its bytes.
    ids = [place for place in [*tokens[0], *tokens[2]] if place[0] == "ids"]
    assert len(ids) == len({*ids})
    drawn = in_memory(made)
    assert round(found[0]["metrics"]["text_bytes"]) == drawn.bytes and drawn.predicted == round(made.predicted)
    alone = layouts.alone("moe")
    assert found[0]["metrics"]["loss"] == pytest.approx(alone.forward_backward(drawn.batch)["loss"], abs=1e-5)


@pytest.mark.parametrize(
    ("model", "layout"),
    [
        ("dense", Layout(2, 1, 2)),
        ("dense", Layout(4, 2, 2)),
        ("moe", Layout(4, 1, 2, expert=4, context=2)),
        ("lora", Layout(4, 1, 4)),
    ],
)
def test_gradients_and_scores_are_those_of_one_rank(model: str, layout: Layout, tmp_path: Path) -> None:
    """Every element, against one rank that has the batch in memory."""
    made, alone = texts(tmp_path), layouts.alone(model)
    drawn = in_memory(made).batch
    with Ranks(layout.ranks) as ranks:
        learner = layouts.open_ranks(ranks, model, layout)
        expected, found = alone.forward_backward(drawn), learner.forward_backward(Batch(made))
        assert found["loss"] == pytest.approx(expected["loss"], abs=1e-5)
        gradients, compared = learner.gradients(), 0
        for name, parameter in alone.decoder.named_parameters():
            if parameter.grad is not None:
                assert gradients[name].shape == parameter.grad.shape
                assert worst(gradients[name], parameter.grad) < 1e-4, name
                compared += bool(parameter.grad.any())
            elif name in gradients:
                assert not gradients[name].any(), name
        assert compared > 4
        for score, wanted in zip(learner.score(made), alone.score(drawn.items), strict=True):
            np.testing.assert_allclose(score, wanted, atol=1e-5)
        learner.close()


def test_what_is_sent_does_not_grow_with_the_tokens(tmp_path: Path) -> None:
    sizes = [len(write_frame(pack(Manifest.of(Batch(texts(tmp_path / f"{n:05d}", n)))))) for n in (10_000, 90_000)]
    assert sizes[1] - sizes[0] < 16 * 9  # digits


def test_an_entry_is_known_without_reading(tmp_path: Path) -> None:
    made = texts(tmp_path)
    assert [ItemFacts.of_text(made, n) for n in range(len(made))] == [ItemFacts.of(item) for item in made]
    scored = Texts([Text.whole(text.ids) for text in made.texts])
    assert [ItemFacts.of_text(scored, n) for n in range(len(made))] == [ItemFacts.of(item) for item in scored]
    wrong = replace(made, texts=[replace(made.texts[0], last=0), *made.texts[1:]])
    with pytest.raises(EtudeError, match="not what its manifest says"):
        Manifest.of(Batch(wrong)).open(0)


def test_a_slice_of_another_file_is_refused(tmp_path: Path) -> None:
    first, second = write_arrays(tmp_path / "ids", "u2", [np.arange(3), np.arange(5)])
    assert (first.read().tolist(), second.read().tolist(), len(second)) == ([0, 1, 2], [0, 1, 2, 3, 4], 5)
    for wrong, words in (
        (replace(first, stop=9), "ends before number 9"),
        (replace(first, start=-1), "has no numbers"),
        (replace(first, digest="0" * 64), "not the file that was written"),
        (replace(first, file=str(tmp_path / "none")), "cannot be read"),
    ):
        with pytest.raises(EtudeError, match=words):
            wrong.read()
