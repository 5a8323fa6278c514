"""Quality learnt from labels: it generalises, is the same everywhere, and gives every phase its part of the corpus."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path

import numpy as np
import pytest

from etude.core.errors import EtudeError
from etude.core.settings import CorpusSettings, QualitySettings, TokensSettings
from etude.corpus.build import build_corpus
from etude.corpus.mix import Mix
from etude.corpus.quality import read_labels, train_classifier
from etude.corpus.sources.table import open_sources
from etude.tokens.text_tokenizer import open_tokenizer

TOPICS = ("parser", "cursor", "buffer", "thread", "socket", "kernel", "vector", "matrix", "object", "driver")


def documentation(seed: int) -> str:
    draw = random.Random(seed)
    lines = [f"Returns the {draw.choice(TOPICS)} of the {draw.choice(TOPICS)} for number {i}." for i in range(12)]
    return "\n".join(lines) + "\n"


def noise(seed: int) -> str:
    draw = random.Random(seed)
    lines = [
        f"lol my {draw.choice(TOPICS)} broke again, pls help with {draw.choice(TOPICS)} {i} asap" for i in range(12)
    ]
    return "\n".join(lines) + "\n"


def labels(path: Path, count: int = 30) -> Path:
    rows = [{"text": documentation(n), "label": 1} for n in range(count)]
    rows += [{"text": noise(n), "label": 0} for n in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_unseen_texts_are_told_apart_and_training_is_repeatable(tmp_path: Path) -> None:
    examples = read_labels(labels(tmp_path / "labels.jsonl"))
    classifier, again = train_classifier(examples), train_classifier(examples)
    assert np.array_equal(classifier.weights_B, again.weights_B) and classifier.bias == again.bias
    good = [classifier.score(documentation(seed)) for seed in range(1000, 1050)]
    bad = [classifier.score(noise(seed)) for seed in range(1000, 1050)]
    assert min(good) > 0.5 > max(bad)
    assert 0 < classifier.score("") < 1


def test_each_phase_takes_its_level_and_all_above(tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    for seed in range(100, 130):
        (code / f"good{seed}.md").write_text(documentation(seed))
        (code / f"bad{seed}.md").write_text(noise(seed))
    quality = QualitySettings(str(labels(tmp_path / "labels.jsonl")), [0.5])
    settings = CorpusSettings(near_threshold=1.0, held_out=0.2, fim_rate=0.0, quality=quality)
    sources = open_sources([{"use": "folder", "path": str(code)}])
    out = tmp_path / "corpus"
    made = build_corpus(sources, settings, TokensSettings(vocab_size=300), out, 0)
    assert {(shard.split, shard.level) for shard in made.shards} == {("train", 0), ("train", 1), ("held_out", 0)}
    tokenizer = open_tokenizer(out / "tokenizer")

    def text(split: str, quality: int) -> str:
        mix = Mix(out, split, 512, 0, quality=quality)  # type: ignore[arg-type]
        return tokenizer.decode(np.concatenate(mix.take(20_000)).tolist())

    assert "Returns the" in text("train", 0) and "lol" in text("train", 0)
    assert "Returns the" in text("train", 1) and "lol" not in text("train", 1)
    assert "lol" in text("held_out", 1)  # measured whole
    with pytest.raises(EtudeError, match="no text in its train split of quality level 2 or more"):
        Mix(out, "train", 512, 0, quality=2)
    other = dataclasses.replace(settings, quality=QualitySettings(quality.labels, [0.9]))
    with pytest.raises(EtudeError, match=r"corpus\.quality\.levels"):
        build_corpus(sources, other, TokensSettings(vocab_size=300), out, 0)
    labels(tmp_path / "labels.jsonl", 31)
    with pytest.raises(EtudeError, match=r"other settings \(quality_labels\)"):
        build_corpus(sources, settings, TokensSettings(vocab_size=300), out, 0)


def test_labels_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    with pytest.raises(EtudeError, match="cannot be read"):
        read_labels(tmp_path / "none.jsonl")
    (tmp_path / "bad.jsonl").write_text('{"text": "x", "label": 1}\n{"text": "x", "label": "good"}\n')
    with pytest.raises(EtudeError, match="line 2 is no labelled text"):
        read_labels(tmp_path / "bad.jsonl")
    with pytest.raises(EtudeError, match="1 examples of label 1 and 0 of label 0"):
        train_classifier([("x", True)])
