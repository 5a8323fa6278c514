"""The journal under kills: whatever the moment, no task is lost and none is trained twice."""

from __future__ import annotations

import random
import shutil
import sqlite3
import tracemalloc
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from etude.core.errors import EtudeError
from etude.core.policy import Sample, Version
from etude.core.rl_settings import RLSettings
from etude.rl.checkpoint import Checkpoint
from etude.rl.groups import RolloutGroup, Slot, State, slot_name
from etude.rl.journal import Journal, Resumed
from etude.rl.orchestrator import _keep_young
from etude.rollout.turn_records import TurnRecords

GROUPS, GROUP, STEPS, SAVE_EVERY = 2, 2, 6, 2


@dataclass
class World:
    """A loop without rollouts: random events through a real journal. It stops after `rows` rows, as if killed."""

    path: Path
    chance: random.Random
    commits: list[tuple[int, int]] = field(default_factory=list)  # (step, row) of the checkpoints that exist
    lineage: int = 0

    def live(self, rows: int | None) -> bool:
        """Runs until the journal holds so many rows more; True when training came to its end."""
        journal = Journal(self.path, self.lineage)
        self.lineage += 1
        step, row = self.commits[-1] if self.commits else (0, 0)
        resumed = journal.resume(row, step, replays=STEPS)
        replays = list(resumed.replays)
        last = None if rows is None else journal.row + rows
        states = {
            (number, slot): saved.state
            for number, (_, slots) in resumed.groups.items()
            for slot, saved in enumerate(slots)
        }
        for number, (began, slots) in resumed.groups.items():
            assert began <= step + len(replays) and len(slots) == GROUP
            for slot, saved in enumerate(slots):  # what was finished is there, byte for byte
                assert saved.state in ("queued", "ready", "void")
                assert saved.data == (f"{number}/{slot}".encode() if saved.state == "ready" else None)
        upcoming = resumed.next
        try:
            while step < STEPS:
                if last is not None and journal.row >= last:
                    journal._passing.clear()  # what a kill takes along
                    return False
                numbers = sorted({number for number, _ in states})
                ready = [n for n in numbers if all(states[n, s] in ("ready", "void") for s in range(GROUP))]
                if len(ready) >= GROUPS and self.chance.random() < 0.5:
                    step += 1
                    # Any of them, as in a loop where some are ready earlier; but first those that were trained before.
                    batch = replays.pop(0) if replays else self.chance.sample(ready, GROUPS)
                    assert set(batch) <= set(ready)
                    slots = [(n, [s for s in range(GROUP) if states[n, s] == "ready"]) for n in batch]
                    journal.trained(slots, step)
                    states = {key: state for key, state in states.items() if key[0] not in batch}
                    if step % SAVE_EVERY == 0 and not (last is not None and journal.row >= last):
                        self.commits = [*self.commits[-1:], (step, journal.row)]
                        journal.forget(self.commits[0][1])
                    continue
                if len(numbers) < 2 * GROUPS and self.chance.random() < 0.4:
                    journal.admit(upcoming, GROUP, step)
                    states |= {(upcoming, slot): "queued" for slot in range(GROUP)}
                    upcoming += 1
                    continue
                moving = [key for key, state in states.items() if state in ("queued", "running", "grading")]
                if moving:
                    self.move(journal, states, *self.chance.choice(moving))
            self.commits.append((step, journal.row))
            return True
        finally:
            journal.close()

    def move(self, journal: Journal, states: dict[tuple[int, int], str], number: int, slot: int) -> None:
        state = states[number, slot]
        if state == "queued":
            journal.change(number, slot, "running")
            states[number, slot] = "running"
        elif state == "running":
            failed = self.chance.random() < 0.1
            journal.change(number, slot, "void" if failed else "grading")
            states[number, slot] = "void" if failed else "grading"
            if sum(states[number, other] == "void" for other in range(GROUP)) > 1:
                journal.void_group(number)
                for other in range(GROUP):
                    del states[number, other]
        else:
            journal.ready(number, slot, f"{number}/{slot}".encode())
            states[number, slot] = "ready"


def audit(path: Path) -> None:
    """By a rule of its own: a row counts unless a later lineage went on from before it."""
    base = sqlite3.connect(path)
    starts = base.execute("SELECT lineage, row FROM lineages").fetchall()
    rows = base.execute("SELECT row, lineage, number, slot, state, step FROM changes ORDER BY row").fetchall()
    base.close()
    void = {number for _, _, number, slot, state, _ in rows if slot < 0}
    trained: dict[tuple[int, int], int] = {}
    for row, lineage, number, slot, state, step in rows:
        if state == "trained" and all(row <= at for later, at in starts if later > lineage):
            assert (number, slot) not in trained, f"group {number} was trained twice"
            trained[number, slot] = step
    numbers = {number for number, _ in trained}
    assert len(numbers) == GROUPS * STEPS and not numbers & void
    begun = {number for _, _, number, _, _, _ in rows}
    assert begun == set(range(len(begun)))
    for step in range(1, STEPS + 1):
        assert len({number for (number, _), at in trained.items() if at == step}) == GROUPS
    same_weights(path)


def same_weights(path: Path) -> None:
    """Where lineages are said to have steps in common, those were made of the same groups in the same order."""
    base = sqlite3.connect(path)
    starts = {lineage: (step, row) for lineage, step, row in base.execute("SELECT lineage, step, row FROM lineages")}
    trained = "SELECT row, lineage, number, step FROM changes WHERE state = 'trained' ORDER BY row"
    rows = base.execute(trained).fetchall()
    base.close()
    steps: dict[int, dict[int, list[int]]] = {}  # those that led to the weights of each lineage
    for lineage in starts:
        made = steps.setdefault(lineage, {})
        for row, of, number, step in rows:
            if of <= lineage and all(row <= starts[later][1] for later in starts if of < later <= lineage):
                made.setdefault(step, []).append(number)
    for lineage in starts:
        for before in (each for each in starts if each < lineage):
            common = min(starts[later][0] for later in starts if before < later <= lineage)
            for step in range(1, common + 1):
                ours, theirs = steps[lineage].get(step), steps[before].get(step)
                assert ours == theirs or ours is None or theirs is None, (before, lineage, step)
    newest = max(starts)
    assert all(step in steps[newest] for step in range(1, starts[newest][0] + 1))


def test_a_kill_after_every_row_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    whole = World(tmp_path / "whole.db", random.Random(0))
    assert whole.live(None)
    audit(whole.path)
    total = sqlite3.connect(whole.path).execute("SELECT max(row) FROM changes").fetchone()[0]
    assert total > 100
    for rows in range(total):
        world = World(tmp_path / "killed.db", random.Random(0))
        for file in tmp_path.glob("killed.db*"):
            file.unlink()
        if not world.live(rows):
            assert world.live(None)
        audit(world.path)


@pytest.mark.parametrize("seed", range(12))
def test_kills_again_and_again(tmp_path: Path, seed: int) -> None:
    world = World(tmp_path / "journal.db", random.Random(seed))
    kills = 0
    while kills < 12 and not world.live(world.chance.randint(0, 25)):
        kills += 1
        if world.chance.random() < 0.2 and len(world.commits) > 1:
            world.commits.pop()  # the newest checkpoint is damaged, and somebody removed it
    if kills == 12:
        assert world.live(None)
    audit(world.path)


def test_a_copy_taken_while_it_is_open_is_whole(tmp_path: Path) -> None:
    """What a killed process leaves: the file and its log, without anybody having closed them."""
    journal = Journal(tmp_path / "journal.db", 0)
    journal.resume(0, 0)
    journal.admit(0, 2, 0)
    journal.ready(0, 1, b"rollout")
    (tmp_path / "copy").mkdir()
    for file in tmp_path.glob("journal.db*"):
        shutil.copy(file, tmp_path / "copy" / file.name)
    resumed = Journal(tmp_path / "copy" / "journal.db", 1).resume(0, 0)
    assert [(saved.state, saved.data) for saved in resumed.groups[0][1]] == [("queued", None), ("ready", b"rollout")]
    assert resumed.next == 1


def test_rollouts_are_forgotten_once_no_checkpoint_could_ask_for_them(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db", 0)
    journal.resume(0, 0)
    for number in (0, 1):
        journal.admit(number, 1, 0)
        journal.ready(number, 0, b"x" * 100)
    journal.trained([(0, [0])], 1)
    first = journal.row
    journal.trained([(1, [0])], 2)
    journal.forget(first)
    assert sqlite3.connect(journal.path).execute("SELECT number FROM rollouts").fetchall() == [(1,)]
    journal.close()
    # a lineage that goes on from the first checkpoint trains group 1 again, and not group 0
    again = Journal(tmp_path / "journal.db", 1)
    assert list(again.resume(first, 1).groups) == [1]
    assert again.branches() == {0: 1}
    # its trained row was a dead branch's: forgetting up to a later row must not take it from this one
    again.forget(again.row)
    assert again._base.execute("SELECT number FROM rollouts").fetchall() == [(1,)]


def test_a_journal_older_than_its_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EtudeError, match="ends at row 0, before row 7 of the checkpoint at step 3"):
        Journal(tmp_path / "journal.db", 1).resume(7, 3)


def test_a_file_that_is_no_journal_is_refused(tmp_path: Path) -> None:
    (tmp_path / "journal.db").write_bytes(b"not a database, and long enough to be looked at" * 100)
    with pytest.raises(EtudeError, match="cannot be used"):
        Journal(tmp_path / "journal.db", 0)


def test_recorded_turns_are_kept_only_where_they_are_trained_within_the_staleness(tmp_path: Path) -> None:
    """Lineage 0 was killed at step 7 and goes on from its checkpoint at step 4."""
    records = TurnRecords(tmp_path / "turns")

    def record(number: int, slot: int, *steps: int) -> None:
        made = records.open(slot_name(number, slot))
        made.add("turn", Sample("", "stop", (1,) * len(steps), (-1.0,) * len(steps), [Version(0, s) for s in steps]))  # type: ignore[arg-type]
        made.close()

    record(0, 0, 3, 4)  # one step old
    record(0, 1, 4, 6)  # two steps away on the branch that is gone
    record(1, 0, 4, 7)  # three
    record(2, 0, 4, 5)  # one, but two groups are trained in a step before it: then it is two
    record(4, 0, 4, 6)  # two, and would be four
    record(5, 0, 4)  # as old as what is sampled now
    one: list[State] = ["queued"]
    states: list[list[State]] = [["queued", "queued"], ["queued", "ready"], one, ["ready"], one, one]
    groups = [RolloutGroup(n, 3 if n == 0 else 4, [Slot(state) for state in of]) for n, of in enumerate(states)]
    settings = RLSettings(groups=2, staleness=2)
    _keep_young(records, groups, Resumed({}, 6), {0: 4}, Checkpoint(4), settings)
    assert sorted(records.names()) == ["000000-00", "000000-01", "000002-00", "000005-00"]
    assert [group.began for group in groups] == [2, 4, 3, 4, 4, 4]


def test_turns_sampled_behind_the_checkpoint_are_kept_as_the_lost_steps_are_repeated(tmp_path: Path) -> None:
    """Killed at step 7, back to step 4; without the same steps once more, its weights would be six steps away."""
    journal = Journal(tmp_path / "journal.db", 0)
    journal.resume(0, 0)
    for number in range(10):
        journal.admit(number, 1, max(0, number - 2))
        if number < 8:
            journal.ready(number, 0, b"rollout")
    row = 0
    for step, number in enumerate((0, 1, 2, 3, 5, 4, 6), start=1):
        journal.trained([(number, [0])], step)
        row = journal.row if step == 4 else row
    journal.close()
    records = TurnRecords(tmp_path / "turns")
    for number, version in ((8, Version(0, 6)), (9, Version(0, 7))):
        made = records.open(slot_name(number, 0))
        made.add("turn", Sample("", "stop", (1,), (-1.0,), [version]))  # type: ignore[arg-type]
        made.close()
    again = Journal(tmp_path / "journal.db", 1)
    resumed = again.resume(row, 4, {8, 9}, replays=20)
    assert resumed.replays == [[5], [4], [6]] and again.branches() == {0: 7}
    groups = [
        RolloutGroup(number, began, [Slot(saved.state) for saved in slots])
        for number, (began, slots) in sorted(resumed.groups.items())
    ]
    _keep_young(records, groups, resumed, again.branches(), Checkpoint(4), RLSettings(groups=1, staleness=2))
    assert sorted(records.names()) == ["000008-00", "000009-00"]
    # As it was when the run was killed: 7 waits to be trained, and the other two go on at the weights of then.
    assert {group.number: group.began for group in groups if group.number > 6} == {7: 5, 8: 6, 9: 7}


def test_steps_that_moved_no_weights_make_no_recorded_turn_older(tmp_path: Path) -> None:
    """Killed at step 7, back to step 5. Since version 1 only step 4 had a gradient: versions are 1 and 4, not 7."""
    journal = Journal(tmp_path / "journal.db", 0)
    journal.resume(0, 0)
    for number in range(10):
        journal.admit(number, 1, number)
        if number < 7:
            journal.ready(number, 0, b"rollout")
    row = 0
    for step in range(1, 8):
        journal.trained([(step - 1, [0])], step, moved=step in (1, 4))
        row = journal.row if step == 5 else row
    journal.close()
    records = TurnRecords(tmp_path / "turns")
    for number, version in ((7, Version(0, 1)), (8, Version(0, 4)), (9, Version(0, 0))):
        made = records.open(slot_name(number, 0))
        made.add("turn", Sample("", "stop", (1,), (-1.0,), [version]))  # type: ignore[arg-type]
        made.close()
    again = Journal(tmp_path / "journal.db", 1)
    resumed = again.resume(row, 5, {7, 8, 9}, replays=20)
    assert resumed.replays == [[5], [6]] and resumed.unmoved == [6, 7]
    groups = [RolloutGroup(number, began, [Slot()]) for number, (began, _) in sorted(resumed.groups.items())]
    checkpoint = Checkpoint(5, row, unmoved=[2, 3, 5])
    _keep_young(records, groups, resumed, again.branches(), checkpoint, RLSettings(groups=9, staleness=1))
    assert sorted(records.names()) == ["000007-00", "000008-00"]  # one step old, none, and two
    assert {group.number: group.began for group in groups if group.number > 6} == {7: 6, 8: 7, 9: 7}


def test_a_lost_step_is_repeated_only_if_all_of_its_rollouts_are_left(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db", 0)
    journal.resume(0, 0)
    for number in range(3):
        journal.admit(number, 1, 0)
        journal.ready(number, 0, b"rollout")
        journal.trained([(number, [0])], number + 1)
    journal._base.execute("DELETE FROM rollouts WHERE number = 1")
    journal.close()
    again = Journal(tmp_path / "journal.db", 1)
    assert again.resume(0, 0, replays=1).replays == [[0]]
    assert again.resume(0, 0, replays=9).replays == [[0]] and again.branches() == {0: 1}
    assert again.resume(0, 0).replays == [] and again.branches() == {0: 0}  # nobody promised to repeat it


def test_what_was_trained_long_ago_takes_no_memory_at_a_resume(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db", 0)
    journal.resume(0, 0)
    for number in range(300):
        journal.admit(number, 8, 0)
    journal.trained([(number, range(8)) for number in range(299)], 1)
    row = journal.row
    journal.close()
    again = Journal(tmp_path / "journal.db", 1)
    tracemalloc.start()
    try:
        found = again.resume(row, 1)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert list(found.groups) == [299] and found.next == 300
    assert most < 200_000  # with every slot of the run in a dictionary, 714,256


def test_states_that_a_resume_takes_for_queued_are_written_with_what_comes_next(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db", 0)
    journal.resume(0, 0)
    journal.admit(0, 3, 0)

    def rows() -> list[tuple[int, str]]:
        with closing(sqlite3.connect(tmp_path / "journal.db")) as other:
            return other.execute("SELECT slot, state FROM changes ORDER BY row").fetchall()

    first = [(slot, "queued") for slot in range(3)]
    journal.change(0, 0, "running")
    journal.change(0, 1, "running")
    journal.change(0, 0, "grading")
    assert rows() == first
    journal.ready(0, 0, b"rollout")
    second = [*first, (0, "running"), (1, "running"), (0, "grading"), (0, "ready")]
    assert rows() == second
    journal.change(0, 2, "running")
    row = journal.row
    journal.sync()
    assert rows() == [*second, (2, "running")]
    journal.change(0, 1, "grading")
    journal.close()
    again = Journal(tmp_path / "journal.db", 1)
    assert again.row == row + 1 and rows()[-1] == (1, "grading")
    assert [slot.state for slot in again.resume(row, 0).groups[0][1]] == ["ready", "queued", "queued"]
    again.close()
