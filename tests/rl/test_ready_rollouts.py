"""Rollouts that wait for the learner: bounded in memory, the same when they are taken, and found again after a kill."""

from __future__ import annotations

import asyncio
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from etude.core.errors import EtudeError
from etude.rl.groups import Rollout, RolloutGroup, Slot, Trace, pack
from etude.rl.journal import Journal
from etude.rl.rollout_files import INLINE
from etude.rl.workers.ready_rollouts import ReadyRollouts, size_of

TOKENS = 10_000  # 210 kB in memory, so a file of its own


def rollout(seed: int, tokens: int = TOKENS) -> Rollout:
    draw = np.random.default_rng(seed)
    columns = draw.integers(0, 99, tokens, np.int32), draw.random(tokens) < 0.5, draw.random(tokens, np.float32)
    trace = Trace(*columns, np.full((tokens, 2), seed, np.int32))
    return Rollout(float(seed), {}, False, "final", 1, 0, 0, tokens, 1.0, 0.1, (trace,))


def finish(journal: Journal, ready: ReadyRollouts, number: int, slots: int = 1, tokens: int = TOKENS) -> RolloutGroup:
    """A group whose rollouts are all ready, as the dispatcher leaves it."""
    journal.admit(number, slots, 0)
    group = RolloutGroup(number, 0, [Slot() for _ in range(slots)])
    for index, slot in enumerate(group.slots):
        slot.state, slot.rollout = "ready", rollout(100 * number + index, tokens)
        data = pack(slot.rollout)
        large = len(data) > INLINE
        journal.ready(number, index, journal.files.write(number, index, 0, data) if large else data)
        ready.hold(number, index, slot)
    return group


def test_memory_has_a_budget_and_what_is_taken_is_as_it_was(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db", 0)
    journal.resume(0, 0)
    each = size_of(rollout(0))
    ready = ReadyRollouts(3 * each, journal.files, journal.find)
    tracemalloc.start()
    try:
        groups = [finish(journal, ready, number) for number in range(40)]
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 6 * each  # and not forty
    # The oldest are trained first, and stay.
    assert [group.number for group in groups if group.rollouts] == [0, 1, 2]
    assert ready.bytes == 3 * each and ready.spilled == 37 and not any(group.signal for group in groups)

    asyncio.run(ready.take(groups[2:5]))
    assert ready.bytes == 2 * each
    for group in groups[2:5]:
        (found,) = group.rollouts
        assert pack(found) == pack(rollout(100 * group.number))
    ready.drop(groups[0])
    assert ready.bytes == each


def test_small_ones_come_from_the_journal_and_rewards_are_known_without_them(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db", 0)
    journal.resume(0, 0)
    ready = ReadyRollouts(0, journal.files, journal.find)
    group = finish(journal, ready, 0, slots=3, tokens=50)
    group.slots[1].state = "void"
    assert ready.bytes == 0 and not group.rollouts and group.signal and group.ready
    asyncio.run(ready.take([group]))
    assert [each.reward for each in group.rollouts] == [0.0, 2.0]  # a void one is not read


def test_a_damaged_file_is_said_with_what_to_do(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db", 0)
    journal.resume(0, 0)
    ready = ReadyRollouts(0, journal.files, journal.find)
    group = finish(journal, ready, 0)
    (file,) = journal.files.folder.iterdir()
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(EtudeError, match=r"rollout 0 of group 0 waited on the disk: .*; run the same command again"):
        asyncio.run(ready.take([group]))


def test_one_that_is_sampled_anew_takes_the_place_of_a_damaged_file(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db", 0)
    journal.resume(0, 0)
    ready = ReadyRollouts(0, journal.files, journal.find)
    finish(journal, ready, 0)
    (file,) = journal.files.folder.iterdir()
    file.write_bytes(b"")
    journal.ready(0, 0, pack(rollout(7, 50)))
    group = RolloutGroup(0, 0, [Slot("ready")])
    asyncio.run(ready.take([group]))
    assert [each.reward for each in group.rollouts] == [7.0]
