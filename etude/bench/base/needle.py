"""Needle retrieval: a fact at some depth of a long text of code, asked for at its end.

A fact is an assignment (`BRIGHT_HARBOUR = "483920"`), the question the start of an assertion about it, so that no
instruction has to be followed. Other facts of the same kind stand elsewhere in the text. Exact match of the greedy
answer is what counts in the end; the probability and the rank of the true answer among candidates show what a small
model has already learned.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from statistics import fmean

import numpy as np

from etude.bench.base.model_under_test import Advance, ModelUnderTest, ScoredText
from etude.core.errors import EtudeError

FIRST = (
    *("AMBER", "BRIGHT", "CALM", "DISTANT", "EARLY", "FROZEN"),
    *("GOLDEN", "HIDDEN", "INNER", "LOUD", "MISTY", "NARROW"),
)
SECOND = (
    *("ANCHOR", "BRIDGE", "CANYON", "FOREST", "GARDEN", "HARBOUR"),
    *("ISLAND", "LANTERN", "MEADOW", "ORCHARD", "RIVER"),
)
DIGITS = 6
SHORTEST = 64  # tokens


@dataclass(frozen=True)
class Needle:
    """One question: a text, where in it the fact stands, and the answers to choose from, the true one first."""

    text: str  # ends right before the value
    line: int  # of the fact, from 0
    lines: int  # in all, the question not counted
    candidates: tuple[str, ...]


@dataclass(frozen=True)
class NeedlePosition:
    """All needles of one length and depth."""

    length: int  # tokens
    depth: float
    trials: int
    exact: float  # share of greedy answers that are right
    probability: float  # of the true answer among the candidates, mean
    rank: float  # of the true answer, mean; 1 is best


@dataclass(frozen=True)
class Needles:
    exact: float  # means over all places
    probability: float
    rank: float
    candidates: int  # chance is a probability of 1 / candidates
    left_out: list[int]  # lengths that pass the model's positions
    places: list[NeedlePosition]


def measure_needles(
    tested: ModelUnderTest,
    filler: Sequence[str],
    lengths: Sequence[int],
    depths: Sequence[float],
    trials: int,
    candidates: int,
    seed: int,
    advance: Advance = lambda needles: None,
) -> Needles:
    possible = [length for length in lengths if SHORTEST <= length <= tested.positions]
    if not possible or not depths or not all(0 <= depth <= 1 for depth in depths):
        raise EtudeError(
            f"base.needle_lengths are {list(lengths)}, base.needle_depths {list(depths)}: lengths must be from "
            f"{SHORTEST} to the model's {tested.positions} positions, depths from 0 to 1"
        )
    places = []
    for length in possible:
        for depth in depths:
            names = [f"{seed}/{length}/{depth}/{trial}" for trial in range(trials)]
            made = [hide(tested, filler, length, depth, candidates, random.Random(name)) for name in names]
            places.append(_ask(tested, made, length, depth))
            advance(trials)
    return Needles(
        exact=fmean(place.exact for place in places),
        probability=fmean(place.probability for place in places),
        rank=fmean(place.rank for place in places),
        candidates=candidates,
        left_out=[length for length in lengths if length not in possible],
        places=places,
    )


def hide(
    tested: ModelUnderTest, filler: Sequence[str], length: int, depth: float, candidates: int, rng: random.Random
) -> Needle:
    """A text of as many lines of filler as fit into `length` tokens together with the longest answer."""
    names = rng.sample([f"{first}_{second}" for first in FIRST for second in SECOND], 1 + candidates // 2)
    values = _values(rng, candidates)
    others = [f'{name} = "{value}"' for name, value in zip(names[1:], values[1:], strict=False)]
    question = f'assert {names[0]} == "'
    offset = rng.randrange(len(filler))
    places = [rng.random() for _ in others]

    def build(count: int) -> Needle:
        lines = [filler[(offset + place) % len(filler)] for place in range(count)]
        for other, place in zip(others, places, strict=True):
            lines.insert(round(place * len(lines)), other)
        line = round(depth * len(lines))
        lines.insert(line, f'{names[0]} = "{values[0]}"')
        return Needle("".join(f"{each}\n" for each in lines) + question, line, len(lines), tuple(values))

    def size(count: int) -> int:
        needle = build(count)
        return len(tested.text.encode(f'{needle.text}{needle.candidates[0]}"'))

    if size(0) > length:
        raise EtudeError(
            f"{length} tokens are too few for a needle and {len(others)} other facts: raise base.needle_lengths"
        )
    low, high = 0, length  # every line is a token at least
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if size(middle) <= length else (low, middle - 1)
    return build(low)


def _ask(tested: ModelUnderTest, needles: Sequence[Needle], length: int, depth: float) -> NeedlePosition:
    exact, probability, rank = [], [], []
    prompts, rests = [], []
    for needle in needles:
        whole = [tested.text.encode(f'{needle.text}{value}"') for value in needle.candidates]
        # Where a value begins inside a token, the token belongs to the answer: all candidates as they would be written.
        shared = len(list(takewhile(lambda column: len(set(column)) == 1, zip(*whole, strict=False))))
        prompts.append(whole[0][:shared])
        rests.append(whole[0][shared:])
        scores = np.array([part.sum() for part in tested.score([ScoredText(ids, shared) for ids in whole])])
        odds = np.exp(scores - scores.max())
        probability.append(float(odds[0] / odds.sum()))
        # Ties count against the model.
        rank.append(1 + int((scores[1:] >= scores[0]).sum()))
    for answer, rest in zip(tested.greedy(prompts, [len(rest) for rest in rests]), rests, strict=True):
        exact.append(tested.text.decode(answer) == tested.text.decode(rest))
    return NeedlePosition(length, depth, len(needles), fmean(exact), fmean(probability), fmean(rank))


def _values(rng: random.Random, count: int) -> list[str]:
    """Different numbers; the true one first."""
    return [str(number) for number in rng.sample(range(10 ** (DIGITS - 1), 10**DIGITS), count)]
