"""The block pool against a plain model of who owns what."""

from __future__ import annotations

import pytest
from hypothesis import settings, stateful
from hypothesis import strategies as st

from etude.core.policy import Version
from etude.engine.blocks import BlockPool, first_link, next_link

COUNT, SIZE = 8, 4


class PoolAgainstTables(stateful.RuleBasedStateMachine):
    """Requests come with a chain of hashes, share what is found, register what they computed, and leave."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(COUNT, SIZE)
        self.tables: list[list[int]] = []
        self.chains: list[list[bytes]] = []
        self.contents: dict[int, bytes] = {}  # what was last written to a block

    @stateful.rule(chain=st.lists(st.sampled_from([b"a", b"b", b"c"]), min_size=1, max_size=4))
    def admit(self, chain: list[bytes]) -> None:
        links = [b"".join(chain[: i + 1]) for i in range(len(chain))]
        found = self.pool.find(links)
        for block, link in zip(found, links, strict=False):
            assert self.contents[block] == link, "a found block holds something else"
        self.pool.share(found)
        fresh = len(links) - len(found)
        if self.pool.available < fresh:
            self.pool.release(found)
            return
        new = self.pool.allocate(fresh)
        assert len(set(new) | {b for t in self.tables for b in t} | set(found)) == len(new) + len(
            {b for t in self.tables for b in t} | set(found)
        ), "a block was handed out while somebody holds it"
        for block, link in zip(new, links[len(found) :], strict=True):
            self.contents[block] = link
            self.pool.register(block, link)
        self.tables.append(found + new)
        self.chains.append(links)

    @stateful.rule(count=st.integers(1, 3))
    def grow_privately(self, count: int) -> None:
        if self.tables and self.pool.available >= count:
            new = self.pool.allocate(count)
            for block in new:
                self.contents[block] = b"private"
            self.tables[-1] += new

    @stateful.rule(which=st.integers(0, 20), keep=st.booleans())
    def leave(self, which: int, keep: bool) -> None:
        if self.tables:
            table = self.tables.pop(which % len(self.tables))
            self.pool.release(table, keep)

    @stateful.invariant()
    def books_agree(self) -> None:
        self.pool.check(self.tables)
        held = {block for table in self.tables for block in table}
        assert self.pool.held == len(held)
        assert self.pool.available == COUNT - len(held)


PoolAgainstTables.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestPoolAgainstTables = PoolAgainstTables.TestCase


def test_the_least_recently_used_prefix_is_evicted_first_and_its_tail_before_its_head() -> None:
    pool = BlockPool(4, SIZE)
    old, new = pool.allocate(2), pool.allocate(2)
    for block, link in zip(old + new, (b"o1", b"o2", b"n1", b"n2"), strict=True):
        pool.register(block, link)
    pool.release(old)
    pool.release(new)
    pool.allocate(1)
    assert pool.find([b"o1", b"o2"]) == old[:1]
    assert pool.find([b"n1", b"n2"]) == new


def test_a_hit_makes_a_prefix_recent_again() -> None:
    pool = BlockPool(2, SIZE)
    a, b = pool.allocate(1), pool.allocate(1)
    pool.register(a[0], b"a")
    pool.register(b[0], b"b")
    pool.release(a)
    pool.release(b)
    pool.share(a)
    pool.release(a)
    pool.allocate(1)
    assert pool.find([b"a"]) == a
    assert pool.find([b"b"]) == []


def test_hashes_depend_on_version_position_and_tokens() -> None:
    start = first_link(Version(0, 1))
    assert start != first_link(Version(0, 2)) != first_link(Version(1, 2))
    once = next_link(start, [1, 2])
    assert once != next_link(start, [1, 3])
    assert once != next_link(once, [1, 2])
    assert once != next_link(first_link(Version(0, 2)), [1, 2])
    assert next_link(start, [1, 2]) == once


def test_misuse_is_refused() -> None:
    pool = BlockPool(2, SIZE)
    table = pool.allocate(2)
    with pytest.raises(RuntimeError, match="1 cache blocks asked for, 0 available"):
        pool.allocate(1)
    pool.release(table)
    with pytest.raises(RuntimeError, match="released more often"):
        pool.release(table)
    with pytest.raises(RuntimeError, match="unreferenced"):
        pool.register(0, b"x")


def test_the_check_notices_a_leak() -> None:
    pool = BlockPool(2, SIZE)
    table = pool.allocate(1)
    with pytest.raises(AssertionError, match="wrong reference count"):
        pool.check([])
    pool.check([table])
