"""Packing: nothing is lost, nothing is too large, and nobody waits long for anybody."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.learn.packing import LEAST, families, ordered, pack
from etude.learn.streams import Item, Label, Stream

LENGTHS = st.lists(st.integers(1, 700), max_size=60)


@settings(max_examples=200, deadline=None)
@given(lengths=LENGTHS, budget=st.integers(1, 900), ranks=st.integers(1, 5))
def test_every_sequence_lands_once_within_the_budget(lengths: list[int], budget: int, ranks: int) -> None:
    packed = pack(lengths, budget, ranks)
    assert len(packed) == ranks
    assert sorted(i for rank in packed for micro in rank for i in micro) == list(range(len(lengths)))
    room = max([budget, *lengths])
    assert all(sum(lengths[i] for i in micro) <= room for rank in packed for micro in rank)
    assert len({len(rank) for rank in packed}) == 1, "ranks must step together"
    if ranks == 1:
        assert all(packed[0])
    assert packed == pack(lengths, budget, ranks), "the same lengths are packed the same way"


@settings(max_examples=200, deadline=None)
@given(lengths=LENGTHS.filter(bool), budget=st.integers(100, 900))
def test_no_more_micro_batches_than_twice_the_fewest(lengths: list[int], budget: int) -> None:
    """Any two micro-batches of a packing that needed more than the fewest cannot both be half empty."""
    room = max([budget, *lengths])
    fewest = -(-sum(lengths) // room)
    assert len(pack(lengths, budget)[0]) <= 2 * fewest


@settings(max_examples=100, deadline=None)
@given(lengths=st.lists(st.integers(1, 700), min_size=8, max_size=80), ranks=st.integers(2, 4))
def test_ranks_differ_by_no_more_than_one_long_sequence(lengths: list[int], ranks: int) -> None:
    cost = [n + n * n / 1536 for n in lengths]
    packed = pack(lengths, 100_000, ranks)
    spent = [sum(cost[i] for micro in rank for i in micro) for rank in packed]
    assert max(spent) - min(spent) <= max(cost) + 1e-6


def test_the_square_of_attention_is_counted() -> None:
    """One sequence of 1000 tokens costs as much as many short ones when the square weighs heavily."""
    packed = pack([1000] + [10] * 200, 100_000, ranks=2, quadratic=1e-3)
    with_long = next(rank[0] for rank in packed if 0 in rank[0])
    assert len(with_long) == 1 + 1 or sum([10] * (len(with_long) - 1)) < 100


SHORT = st.lists(st.integers(0, 2), max_size=5)


@settings(max_examples=200, deadline=None)
@given(texts=st.lists(SHORT, min_size=1, max_size=12), budget=st.integers(1, 600))
def test_families_compute_every_token_that_no_other_item_has_before_it_once(
    texts: list[list[int]], budget: int
) -> None:
    # Each number stands for a run of tokens, so that beginnings in common are long enough to be shared.
    tokens = [np.repeat(np.array([9, *text]), LEAST) for text in texts]
    items = [Item(ids, [Stream("main", np.ones(len(ids), np.float32), Label(ids))]) for ids in tokens]
    found = families(items, budget)
    assert sorted(i for family in found for i in family.members) == list(range(len(items)))
    for family in found:
        begun = {tuple(tokens[i][:end]) for i in family.members for end in range(1, len(tokens[i]) + 1)}
        assert family.tokens == len(begun) and (len(family.members) == 1 or family.tokens <= budget)
        members = [items[i] for i in family.members]
        order, common = ordered(members)
        assert sum(len(members[i].tokens_T) - alike for i, alike in zip(order, common, strict=True)) == family.tokens
