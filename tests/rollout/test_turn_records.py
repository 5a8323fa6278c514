"""Rollouts that go on: samples from the record where the prompt is the same, from the policy where it is not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
import pytest

from etude.core.frame_calls import ConnectionLost
from etude.core.policy import Context, Sample, Sampling, Version
from etude.rollout.turn_records import RecordedPolicy, TurnRecord, TurnRecords

STOP = 9
SAMPLING = Sampling(max_tokens=8, seed=3, stop_ids=(STOP,))


def made(ids: tuple[int, ...], stop: str = "stop", step: int = 1, experts: int = 0) -> Sample:
    routed = np.full((experts, 2, 1), step, np.int16) if experts else None
    return Sample("", stop, ids, tuple(-0.1 * i for i in ids), (Version(0, step),) * len(ids), experts=routed)  # type: ignore[arg-type]


class Engine:
    """Answers each prompt with what it is told to, and remembers what it was asked."""

    def __init__(self, *answers: Sample | tuple[Sample, ...]) -> None:
        self.answers = list(answers)  # a tuple: parts, and then the connection is lost
        self.asked: list[tuple[Context, Sampling]] = []

    async def ask(self, context: Context, sampling: Sampling, on_part: Callable[[Sample], None]) -> Sample:
        self.asked.append((context, sampling))
        answer = self.answers.pop(0)
        if isinstance(answer, Sample):
            return answer
        for part in answer:
            on_part(part)
        raise ConnectionLost("the engine is gone")


def sample(policy: RecordedPolicy, ids: tuple[int, ...], sampling: Sampling = SAMPLING) -> Sample:
    return asyncio.run(policy.sample(Context(ids=ids), sampling))


def test_finished_turns_are_answered_from_the_file_exactly(tmp_path: Path) -> None:
    turns = [made((4, 5, STOP), experts=5), made((6, STOP), step=2)]
    record = TurnRecord(tmp_path / "a.turns")
    first = RecordedPolicy(Engine(*turns).ask, record)
    assert [sample(first, (1, 2)), sample(first, (1, 2, 4, 5, STOP, 7))] == turns
    record.close()
    again = TurnRecord(tmp_path / "a.turns")
    assert again.tokens == 5
    engine = Engine(made((8, STOP)))
    second = RecordedPolicy(engine.ask, again)
    found = [sample(second, (1, 2)), sample(second, (1, 2, 4, 5, STOP, 7))]
    assert found == turns and not engine.asked and again.kept_tokens == 5
    assert found[0].experts is not None and np.array_equal(found[0].experts, turns[0].experts)
    # another observation than before: what was sampled behind the old one is not used
    other = sample(second, (1, 2, 4, 5, STOP, 8))
    assert other.ids == (8, STOP) and len(engine.asked) == 1
    # less room than before: what was sampled then may be too long
    engine.answers.append(made((STOP,)))
    assert sample(second, (1, 2), replace(SAMPLING, max_tokens=1)).ids == (STOP,)


def test_a_sample_that_was_cut_short_is_continued_with_other_random_numbers(tmp_path: Path) -> None:
    record = TurnRecord(tmp_path / "a.turns")
    lost = RecordedPolicy(Engine((made((4, 5), "abort"), made((6,), "abort"))).ask, record)
    with pytest.raises(ConnectionLost):
        sample(lost, (1, 2))
    record.close()
    engine = Engine(made((7, STOP), step=4))
    again = TurnRecord(tmp_path / "a.turns")
    found = sample(RecordedPolicy(engine.ask, again), (1, 2))
    context, sampling = engine.asked[0]
    assert context.ids == (1, 2, 4, 5, 6) and sampling.max_tokens == 5 and sampling.seed != SAMPLING.seed
    assert found.ids == (4, 5, 6, 7, STOP) and found.stop == "stop" and again.kept_tokens == 3
    assert [version.step for version in found.versions or ()] == [1, 1, 1, 4, 4]
    assert found.logprobs is not None and len(found.logprobs) == 5
    again.close()
    assert TurnRecord(tmp_path / "a.turns").turns  # it counts as a finished turn from now on


def test_a_lost_connection_is_waited_for_and_the_rest_is_asked_for(tmp_path: Path) -> None:
    engine = Engine((made((4, 5), "abort"),), (), made((6, STOP)))
    policy = RecordedPolicy(engine.ask, TurnRecord(tmp_path / "a.turns"), patience=60.0)
    assert sample(policy, (1,)).ids == (4, 5, 6, STOP)
    assert [context.ids for context, _ in engine.asked] == [(1,), (1, 4, 5), (1, 4, 5)]


@pytest.mark.parametrize(("part", "prompt"), [((4, STOP), (1, 4)), ((STOP,), (1,)), (tuple(range(10, 18)), None)])
def test_the_last_token_is_always_sampled_again(
    tmp_path: Path, part: tuple[int, ...], prompt: tuple[int, ...] | None
) -> None:
    """Whether that was the end, and where its experts are, only the engine knows."""
    record = TurnRecord(tmp_path / "a.turns")
    engine = Engine((made(part, "abort"),), made((STOP,)))
    policy = RecordedPolicy(engine.ask, record, patience=60.0)
    found = sample(policy, (1,))
    asked, sampling = engine.asked[1]
    assert asked.ids == (prompt or (1, *part[:-1])) and sampling.max_tokens >= 1
    assert found.ids == (*(asked.ids or ())[1:], STOP)
    record.close()
    kept = TurnRecord(tmp_path / "a.turns")
    assert [turn.ids for turn in kept.turns.values()] == [found.ids] and not kept.parts


def test_a_file_that_was_cut_off_or_damaged_counts_up_to_there(tmp_path: Path) -> None:
    path = tmp_path / "a.turns"
    record = TurnRecord(path)
    record.add("one", made((4, STOP)))
    whole = path.stat().st_size
    record.add("two", made((5, STOP)))
    record.close()
    data = path.read_bytes()
    for torn in (data[: whole + 7], data[:whole] + b"x" * 40):
        path.write_bytes(torn)
        again = TurnRecord(path)
        assert list(again.turns) == ["one"] and path.stat().st_size == whole
        again.add("three", made((6, STOP)))
        again.close()
        assert list(TurnRecord(path).turns) == ["one", "three"]


@pytest.mark.parametrize("written", [0, 15, 40, -1])
def test_a_disk_that_is_full_for_a_moment_leaves_no_tokens_behind_others_than_their_own(
    tmp_path: Path, written: int
) -> None:
    """Only some bytes of the first part are written (-1: an error says so), and then there is room again."""

    class Full:
        def __init__(self, file: BinaryIO) -> None:
            self.file, self.full = file, True

        def write(self, data: bytes) -> int:
            full, self.full = self.full, False
            if full and written < 0:
                raise OSError(28, "no space left")
            return self.file.write(data[:written] if full else data)

        def close(self) -> None:
            self.file.close()

    path = tmp_path / "a.turns"
    record = TurnRecord(path)
    record._file = cast(BinaryIO, Full(path.open("ab", buffering=0)))
    record.add_part("one", made((4, 5), "abort"))
    record.add_part("one", made((6, 7), "abort"))
    record.add("two", made((8, STOP)))
    record.close()
    again = TurnRecord(path)
    assert not again.parts and not again.turns
    assert record.parts["one"].ids == (4, 5, 6, 7)  # the rollout itself goes on


@pytest.mark.parametrize("cut", [1, 30, 45, 60])
def test_a_part_that_is_half_written_is_not_read_and_those_before_it_are(tmp_path: Path, cut: int) -> None:
    record = TurnRecord(tmp_path / "a.turns")
    versions = (Version(0, 1), Version(0, 1), Version(0, 2))
    first = replace(made((4, 5, 6), "abort"), versions=versions, cached_tokens=3)
    record.add_part("one", first)
    size = record.path.stat().st_size
    record.add_part("one", made((7, 8), "abort"))
    record.close()
    record.path.write_bytes(record.path.read_bytes()[:-cut])
    assert TurnRecord(record.path).parts == {"one": first}
    assert record.path.stat().st_size == size  # so that what is written next stands behind it


def test_a_part_without_its_beginning_is_not_read(tmp_path: Path) -> None:
    record = TurnRecord(tmp_path / "a.turns")
    record.add_part("one", made((4, 5), "abort"))
    size = record.path.stat().st_size
    record.add_part("one", made((6, 7), "abort"))
    record.close()
    record.path.write_bytes(record.path.read_bytes()[size:])
    assert not TurnRecord(record.path).parts


def test_records_of_rollouts_that_are_over_are_removed(tmp_path: Path) -> None:
    records = TurnRecords(tmp_path / "turns")
    assert records.names() == set()
    for name in ("000001-00", "000002-01"):
        record = records.open(name)
        record.add("one", made((4, STOP)))
        record.close()
    records.keep_only(["000002-01"])
    assert records.names() == {"000002-01"}
    records.open("000002-01").remove()
    assert records.names() == set()


def test_what_somebody_else_put_beside_the_records_is_left_alone(tmp_path: Path) -> None:
    records = TurnRecords(tmp_path)
    (tmp_path / "notes.turns").write_text("mine")
    (tmp_path / "000001-00.txt").write_text("mine")
    (tmp_path / "000003-00.turns").mkdir()
    record = records.open("000001-00")
    record.add("one", made((4, STOP)))
    record.close()
    assert records.names() == {"000001-00"}
    records.keep_only(())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000001-00.txt", "000003-00.turns", "notes.turns"]
