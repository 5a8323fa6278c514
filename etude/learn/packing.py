"""Sequences -> micro-batches that fit a token budget and cost about the same, over any number of ranks.

A sequence is never cut: its boundary is its document's. Sequences that begin alike can come into one micro-batch, where
one forward computes their beginning for all of them: the rollouts of a group have their prompt in common, and often
whole turns. In the order of their tokens each shares most with the one before it; the gradient of what it shares is the
sum of what all ask of it. Knows neither decoders nor devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from etude.learn.streams import Item, Label, Sampled

LEAST = 16  # tokens in common: fewer are not worth the copies of their keys and values


def pack(lengths: Sequence[int], budget: int, ranks: int = 1, quadratic: float = 1 / 1536) -> list[list[list[int]]]:
    """Indices by rank and micro-batch; each rank gets as many micro-batches (of few sequences, some are empty).

    A sequence of n tokens costs n + quadratic * n * n, since attention grows with the square. The longest go
    first, each into the cheapest micro-batch with room for it. One longer than the budget raises the budget.
    """
    if not lengths:
        return [[] for _ in range(ranks)]
    cost = [n + quadratic * n * n for n in lengths]
    room = max(budget, *lengths)
    rounds = -(-sum(lengths) // (room * ranks))
    while (bins := _fill(lengths, cost, room, rounds * ranks)) is None:
        rounds += 1
    bins.sort(key=lambda members: -sum(cost[i] for i in members))
    rows = [bins[r * ranks : (r + 1) * ranks][:: -1 if r % 2 else 1] for r in range(rounds)]  # to and fro over ranks
    return [[row[rank] for row in rows] for rank in range(ranks)]


def _fill(lengths: Sequence[int], cost: Sequence[float], room: int, count: int) -> list[list[int]] | None:
    bins: list[list[int]] = [[] for _ in range(count)]
    tokens, spent = [0] * count, [0.0] * count
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        fits = [b for b in range(count) if tokens[b] + lengths[i] <= room]
        if not fits:
            return None
        best = min(fits, key=spent.__getitem__)
        bins[best].append(i)
        tokens[best] += lengths[i]
        spent[best] += cost[i]
    return bins


@dataclass(frozen=True)
class Family:
    """Items that lie one behind the other in one micro-batch."""

    members: list[int]
    tokens: int  # that are computed


def can_share(items: Sequence[Item]) -> bool:
    """Whether tokens of these count by themselves: neither a router, a twin nor a head further ahead asks for more."""
    heard = [stream for item in items for stream in item.streams if stream.counts]
    plain = all(stream.depth == 0 and isinstance(stream.target, Label | Sampled) for stream in heard)
    return plain and all(item.experts_TBK is None for item in items)


def ordered(items: Sequence[Item]) -> tuple[list[int], list[int]]:
    """The items by their tokens, and how many leading ones each has in common with the one before it."""
    keys = [(item.temperature, np.asarray(item.tokens_T, ">u4").tobytes()) for item in items]
    order = sorted(range(len(items)), key=keys.__getitem__)
    common = [0] * len(items)
    for place, (before, here) in enumerate(pairwise(order), start=1):
        alike = begin_alike(items[before].tokens_T, items[here].tokens_T)
        if alike >= LEAST and items[before].temperature == items[here].temperature:
            common[place] = alike
    return order, common


def begin_alike(a_T: npt.NDArray[Any], b_T: npt.NDArray[Any]) -> int:
    """How many leading tokens two sequences have in common."""
    return int(np.append(a_T[: len(b_T)] != b_T[: len(a_T)], True).argmax())


def families(items: Sequence[Item], budget: int) -> list[Family]:
    """The items in families that fit a budget of tokens; one that is larger comes in parts, each with the beginning."""
    found: list[Family] = []
    for place, alike in zip(*ordered(items), strict=True):
        whole = len(items[place].tokens_T)
        if alike and found[-1].tokens + whole - alike <= budget:
            last = found.pop()
            found.append(Family([*last.members, place], last.tokens + whole - alike))
        else:
            found.append(Family([place], whole))
    return found
