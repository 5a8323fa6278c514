"""Sequences -> micro-batches that fit a token budget and cost about the same, over any number of ranks.

A sequence is never cut: its boundary is its document's. Knows lengths only, neither tokens nor devices.
"""

from __future__ import annotations

from collections.abc import Sequence


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
