"""Scheduling rules, without a model: who computes, who waits, who steps back."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from etude.core.policy import Sampling, Version
from etude.core.settings import EngineSettings
from etude.engine.blocks import BlockPool
from etude.engine.request import Request
from etude.engine.scheduler import Scheduler

NOW = Version(0, 0)


class Notes:
    """Rows that only remember what was asked of them."""

    def __init__(self) -> None:
        self.fills: list[tuple[int, list[int]]] = []
        self.moves: list[tuple[int, int, int]] = []

    def fill(self, row: int, blocks: Sequence[int]) -> None:
        self.fills.append((row, list(blocks)))

    def move(self, source: int, target: int, tokens: int) -> None:
        self.moves.append((source, target, tokens))


class Desk:
    """A scheduler and the part of the engine that books what a step computed; every answer is token 1."""

    def __init__(self, **changes: int) -> None:
        self.settings = EngineSettings(
            **{"max_running": 4, "cache_tokens": 64, "block_tokens": 4, "max_length": 60, "prefill_tokens": 8} | changes
        )
        self.notes = Notes()
        self.pool = BlockPool(self.settings.cache_tokens // self.settings.block_tokens, self.settings.block_tokens)
        self.scheduler = Scheduler(self.settings, self.pool, self.notes)
        self.number = 0

    def add(self, prompt: Sequence[int], answer: int) -> Request:
        request = Request(self.number, tuple(prompt), Sampling(max_tokens=answer))
        self.number += 1
        self.scheduler.add(request)
        return request

    def step(self, version: Version = NOW) -> dict[int, int]:
        """Computed tokens by request."""
        chunks = self.scheduler.plan(version)
        self.scheduler.check()
        ready = [chunk.request for chunk in chunks if chunk.samples]
        for chunk in chunks:
            chunk.request.computed += chunk.count
            self.scheduler.store(chunk.request)
        for request in ready:
            request.append(1, 0.0, version)
            if request.finished:
                self.scheduler.remove(request)
        self.scheduler.check()
        return {chunk.request.number: chunk.count for chunk in chunks}

    def until(self, holds: Callable[[], bool]) -> None:
        for _ in range(1000):
            if holds():
                return
            self.step()
        raise AssertionError("it never comes to that")

    def finish(self, limit: int = 2000) -> int:
        for steps in range(limit):
            if not (self.scheduler.waiting or self.scheduler.running):
                return steps
            self.step()
        raise AssertionError("somebody starves")


def distinct(request: int, length: int) -> list[int]:
    return [100 * request + i for i in range(length)]


def test_prompts_are_computed_in_pieces_beside_running_requests() -> None:
    desk = Desk()
    desk.add(distinct(0, 3), 20)
    assert desk.step() == {0: 3}
    desk.add(distinct(1, 18), 5)
    assert [desk.step() for _ in range(4)] == [{0: 1, 1: 8}, {0: 1, 1: 8}, {0: 1, 1: 2}, {0: 1, 1: 1}]


def test_older_prompts_are_computed_first() -> None:
    desk = Desk()
    desk.add(distinct(0, 6), 3)
    desk.add(distinct(1, 6), 3)
    assert desk.step() == {0: 6, 1: 2}
    assert desk.step() == {0: 1, 1: 4}


def test_a_group_computes_its_prompt_once_and_shares_its_blocks() -> None:
    desk = Desk(prefill_tokens=32)
    group = [desk.add(distinct(0, 14), 4) for _ in range(4)]
    assert desk.step() == {0: 14}
    assert desk.step() == {0: 1, 1: 2, 2: 2, 3: 2}
    assert all(request.table[:3] == group[0].table[:3] for request in group)
    assert len({request.table[3] for request in group}) == 4
    assert [request.cached_tokens for request in group] == [0, 12, 12, 12]


def test_a_member_takes_over_when_the_one_that_computed_the_prompt_leaves() -> None:
    desk = Desk(prefill_tokens=4)
    first, second = desk.add(distinct(0, 14), 4), desk.add(distinct(0, 14), 4)
    desk.step()
    desk.scheduler.remove(first)
    assert desk.step() == {second.number: 4}
    assert second.cached_tokens == 4
    desk.finish()


def test_others_may_pass_one_that_waits_for_a_shared_prefix() -> None:
    desk = Desk(prefill_tokens=8)
    desk.add(distinct(0, 7), 4)
    desk.add(distinct(0, 7), 4)
    desk.add(distinct(2, 3), 4)
    assert desk.step() == {0: 7, 2: 1}
    assert desk.step()[1] == 3


def test_a_whole_prompt_in_the_cache_still_computes_its_last_token() -> None:
    desk = Desk()
    desk.add(distinct(0, 8), 1)
    desk.finish()
    again = desk.add(distinct(0, 8), 1)
    assert desk.step() == {again.number: 4}


def test_the_newest_is_preempted_keeps_its_tokens_and_comes_back() -> None:
    desk = Desk(cache_tokens=40, prefill_tokens=32)
    old, new = desk.add(distinct(0, 10), 25), desk.add(distinct(1, 8), 20)
    desk.until(lambda: new.preemptions > 0)
    assert not old.preemptions
    assert not new.table
    assert desk.scheduler.waiting == [new]
    assert len(new.sampled) > 0
    tokens = list(new.tokens)
    desk.finish()
    assert new.tokens[: len(tokens)] == tokens
    assert len(new.sampled) == 20
    assert len(old.sampled) == 25


def test_nobody_overtakes_a_request_that_does_not_fit_yet() -> None:
    desk = Desk(cache_tokens=40, prefill_tokens=32)
    desk.add(distinct(0, 16), 12)
    desk.step()
    big, small = desk.add(distinct(1, 32), 2), desk.add(distinct(2, 2), 2)
    desk.until(lambda: big.running or small.running)
    assert big.running
    desk.finish()


def test_letting_one_in_leaves_a_block_for_each_that_runs() -> None:
    desk = Desk(cache_tokens=32, prefill_tokens=32)
    desk.add(distinct(0, 9), 8)
    desk.step()
    late = desk.add(distinct(1, 20), 2)
    desk.until(lambda: late.running)
    desk.finish()
    assert desk.scheduler.preemptions == 0


def test_everybody_is_served_under_pressure() -> None:
    desk = Desk(cache_tokens=60, max_running=6)
    requests = [desk.add(distinct(i % 7, 5 + 7 * i % 30), 3 + 11 * i % 23) for i in range(60)]
    desk.finish()
    assert all(request.stop == "length" for request in requests)
    assert desk.scheduler.preemptions > 0
    assert desk.pool.held == 0


def test_rows_stay_dense_when_one_leaves() -> None:
    desk = Desk(prefill_tokens=32)
    first, _, third = desk.add(distinct(0, 5), 9), desk.add(distinct(1, 6), 9), desk.add(distinct(2, 7), 9)
    desk.step()
    desk.scheduler.remove(first)
    assert desk.notes.moves == [(2, 0, 7)]
    assert third.row == 0
    desk.scheduler.check()


def test_blocks_of_one_version_are_not_found_by_another() -> None:
    desk = Desk(prefill_tokens=32)
    desk.add(distinct(0, 14), 1)
    desk.step(Version(0, 1))
    late = desk.add(distinct(0, 14), 1)
    assert desk.step(Version(0, 2)) == {late.number: 14}
    back = desk.add(distinct(0, 14), 1)
    assert desk.step(Version(0, 1)) == {back.number: 2}


def test_prompts_are_held_back_while_more_requests_decode() -> None:
    desk = Desk(max_running=8, prefill_every=3, prefill_tokens=32)
    early = [desk.add([1, 2, 3 + i], 20) for i in range(3)]
    desk.step()
    late = desk.add([9, 9, 9], 2)
    steps = [desk.step() for _ in range(4)]
    decoding = {request.number: 1 for request in early}
    assert steps[:3] == [decoding, decoding, decoding | {late.number: 3}]
    assert steps[3] == decoding | {late.number: 1}


def test_prompts_are_not_held_back_when_as_many_wait_as_decode() -> None:
    desk = Desk(max_running=8, prefill_every=100, prefill_tokens=32)
    desk.add([1, 2, 3], 20)
    desk.step()
    desk.add([9, 9, 9], 2)
    assert desk.step() == {0: 1, 1: 3}


def test_everybody_is_served_though_prompts_are_held_back() -> None:
    desk = Desk(max_running=3, cache_tokens=24, max_length=20, prefill_every=4)
    for number in range(12):
        desk.add(distinct(number, 3 + number % 5), 6)
    desk.finish()
