"""How good a text is, learnt from examples that a person labelled: a linear classifier of hashed words and word pairs.

What fastText does with its bag of n-grams, in a few lines of numpy: a text is the set of its words and of its pairs of
words, each hashed into a table of weights; logistic regression with AdaGrad. Some hundred examples of each kind are
enough to tell documentation from forum noise. The same labels give the same classifier everywhere.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from etude.core.errors import EtudeError
from etude.corpus.word_hashes import hash_runs, hash_words, split_words

BUCKETS = 1 << 18
WORDS = 2_000  # of a text that are looked at: its quality shows early
EPOCHS = 20
RATE = 0.5
DECAY = 1e-4  # of the weights of the features that an example has; rare words must not decide alone
FEWEST = 10  # examples of each label

Example = tuple[str, bool]


@dataclass(frozen=True, eq=False)
class QualityClassifier:
    weights_B: npt.NDArray[np.float32]
    bias: float

    def score(self, text: str) -> float:
        """The probability that a person would have labelled it 1."""
        features = features_of(text)
        return _probability(self.bias + float(self.weights_B[features].sum()) / max(1.0, len(features)) ** 0.5)


def features_of(text: str) -> npt.NDArray[np.int64]:
    """The buckets of a text's words and pairs of words, each once."""
    words = hash_words(split_words(text)[:WORDS])
    return np.unique(np.concatenate([words, hash_runs(words, 2)]) % np.uint64(BUCKETS)).astype(np.int64)


def train_classifier(examples: Sequence[Example]) -> QualityClassifier:
    texts = [(features_of(text), float(label)) for text, label in examples]
    good = sum(label for _, label in texts)
    if min(good, len(texts) - good) < FEWEST:
        raise EtudeError(
            f"the quality labels have {good:.0f} examples of label 1 and {len(texts) - good:.0f} of label 0: "
            f"give at least {FEWEST} of each"
        )
    weights_B = np.zeros(BUCKETS, np.float32)
    squares_B = np.full(BUCKETS, 1e-8, np.float32)
    bias, bias_square = 0.0, 1e-8
    order = np.random.default_rng(0)
    for _ in range(EPOCHS):
        for number in order.permutation(len(texts)):
            features, label = texts[number]
            # Divided by the root of their number, so that long and short texts speak equally loud.
            scale = 1.0 / max(1.0, len(features)) ** 0.5
            error = _probability(bias + float(weights_B[features].sum()) * scale) - label
            step = error * scale + DECAY * weights_B[features]
            squares_B[features] += step**2
            weights_B[features] -= RATE * step / np.sqrt(squares_B[features])
            bias_square += error**2
            bias -= RATE * error / bias_square**0.5
    return QualityClassifier(weights_B, bias)


def labels_digest(path: Path) -> str:
    return hashlib.sha256(_read(path).encode()).hexdigest()[:16]


def _read(path: Path) -> str:
    try:
        return path.expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise EtudeError(f"corpus.quality.labels: {path} cannot be read: {error}") from None


def read_labels(path: Path) -> list[Example]:
    """Labelled texts from JSONL: `{"text": ..., "label": 0 or 1}` a line."""
    examples: list[Example] = []
    for number, line in enumerate(_read(path).splitlines(), 1):
        try:
            row = json.loads(line)
            text, label = row["text"], row["label"]
        except (ValueError, KeyError, TypeError):
            text, label = None, None
        if not isinstance(text, str) or label not in (0, 1):
            raise EtudeError(f'{path} line {number} is no labelled text: write {{"text": ..., "label": 0 or 1}}')
        examples.append((text, bool(label)))
    return examples


def _probability(logit: float) -> float:
    return float(1.0 / (1.0 + np.exp(-np.clip(logit, -30.0, 30.0))))
