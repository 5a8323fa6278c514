"""Vectors of words, trained so that a sentence lies near the code that it is about and far from other code.

In-batch contrast: of the codes of a batch, the sentence's own is to be the nearest. A text is the sum of its words'
vectors, by the logarithm of their counts, as `harness/code_search/embedding.py` computes it afterwards without torch.
Takes bags of words (word -> count) and gives a matrix; knows neither files nor languages.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Bag = Mapping[str, float]


def train_word_vectors(
    pairs: Sequence[tuple[Bag, Bag]],
    *,
    width: int = 64,
    words: int = 30_000,
    least: int = 3,
    steps: int = 1500,
    batch: int = 256,
    lr: float = 0.01,
    temperature: float = 0.05,
    seed: int = 0,
) -> tuple[list[str], Tensor]:
    """The commonest words that are in at least `least` bags, and their vectors (word, width)."""
    among = Counter(word for pair in pairs for bag in pair for word in bag)
    vocabulary = [word for word, times in among.most_common(words) if times >= least]
    numbers = {word: number for number, word in enumerate(vocabulary)}
    found = [(_numbered(asked, numbers), _numbered(code, numbers)) for asked, code in pairs]
    found = [pair for pair in found if pair[0][0] and pair[1][0]]
    generator = torch.Generator().manual_seed(seed)
    # A word begins as an almost random direction whose length says how rare it is: a start that is BM25's idea.
    table = nn.EmbeddingBag(len(vocabulary), width, mode="sum", sparse=True)
    rarity = torch.tensor([math.log(1 + 2 * len(pairs) / among[word]) for word in vocabulary])
    with torch.no_grad():
        table.weight.copy_(torch.randn(len(vocabulary), width, generator=generator) / math.sqrt(width))
        table.weight.mul_(rarity[:, None] / rarity.mean())
    optimiser = torch.optim.SparseAdam(table.parameters(), lr=lr)
    rng = random.Random(seed)
    size = min(batch, len(found))
    for step in range(steps if size > 1 else 0):
        chosen = rng.sample(found, size)
        asked_BD, code_BD = (_embedded(table, [pair[side] for pair in chosen]) for side in (0, 1))
        similar_BB = asked_BD @ code_BD.T / temperature
        right_B = torch.arange(size)
        loss = F.cross_entropy(similar_BB, right_B) + F.cross_entropy(similar_BB.T, right_B)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        for group in optimiser.param_groups:
            group["lr"] = lr * (1 - step / steps)
        optimiser.step()  # type: ignore[no-untyped-call]
    return vocabulary, table.weight.detach()


def _numbered(bag: Bag, numbers: Mapping[str, int]) -> tuple[list[int], list[float]]:
    known = [(numbers[word], math.log1p(count)) for word, count in bag.items() if word in numbers]
    return [number for number, _ in known], [weight for _, weight in known]


def _embedded(table: nn.EmbeddingBag, bags: Sequence[tuple[list[int], list[float]]]) -> Tensor:
    ids = torch.tensor([number for numbers, _ in bags for number in numbers])
    weights = torch.tensor([weight for _, each in bags for weight in each])
    lengths = torch.tensor([0, *(len(numbers) for numbers, _ in bags)])
    return F.normalize(table(ids, lengths.cumsum(0)[:-1], per_sample_weights=weights), dim=-1)
