"""Rollouts in flight without any: places, retries, voids, and what is left when everything stops."""

from __future__ import annotations

import asyncio
import dataclasses
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from etude.audit.base import Ruling, Verdict
from etude.core.errors import EtudeError
from etude.core.policy import Assistant, Sample, Sampling, User, Version
from etude.core.rl_settings import RLSettings
from etude.core.terms import Terms
from etude.harness.trajectory import Trajectory
from etude.rl.admission import Admission
from etude.rl.dispatcher import Dispatcher
from etude.rl.journal import Journal
from etude.rollout.rollout import Outcome, Scored, Void
from etude.tasks.format.task import Task
from etude.tasks.grading.submission import Submission
from etude.tasks.grading.verdict import Grade
from etude.tokens.native import Native
from etude.tokens.tokenizer import Tokenizer


class Numbers:
    """A task source: tasks named by their number."""

    def __init__(self, count: int = 10_000) -> None:
        self.count = count

    def tasks(self, start: int = 0) -> Iterator[Task]:
        return (Task(str(number), f"task {number}") for number in range(start, self.count))


@pytest.fixture(scope="module")
def scored() -> Callable[[Task, Version], Scored]:
    dialect = Native(Tokenizer.train(["some text to learn from, and some more of it"], 300))

    def make(task: Task, version: Version) -> Scored:
        from etude.harness.trajectory import MessageRecord, Segment

        trajectory = Trajectory(sampling=Sampling(temperature=1.0), stop="final")
        segment = Segment()
        segment.append([User(task.instruction)], [0], dialect, most=1000, open_turn=True)
        segment.append_sample(Sample("", "stop", (65, 66, 67), (-1.0, -2.0, -0.5), (version,) * 3), 1, dialect)
        trajectory.segments.append(segment)
        trajectory.entries += [MessageRecord(User(task.instruction)), MessageRecord(Assistant(final="x"), stop="stop")]
        grade = Grade(False, "tests", "it fails")
        return Scored(task, trajectory, Submission(), grade, float(task.name), {"tests": 0.0})

    return make


class Stage:
    """A dispatcher, and the environment it runs in; `script(task, time)` says how a rollout comes out."""

    def __init__(self, folder: Path, script: Callable[[Task, int], Any], source: Any = None, **settings: Any) -> None:
        self.settings = RLSettings(
            **({"groups": 2, "group": 3, "concurrency": 4, "staleness": 1, "steps": 3} | settings)
        )
        self.journal = Journal(folder / "journal.db", 0)
        self.journal.resume(0, 0)
        self.script, self.source = script, source or Numbers()
        self.tries: Counter[str] = Counter()
        self.most = self.now = 0
        self.voids: list[Void] = []
        self.broken: list[tuple[int, str]] = []
        self.settled: set[str] = set()

    async def run_rollout(
        self, task: Task, seed: int, terms: Terms, on_grading: Callable[[], None], name: str
    ) -> Outcome:
        self.tries[task.name] += 1
        time = self.tries[task.name]
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(0)
            on_grading()
            outcome = self.script(task, time)
            if outcome is None:
                await asyncio.get_running_loop().create_future()
            return outcome
        finally:
            self.now -= 1

    async def check_void(self, void: Void) -> None:
        self.voids.append(void)

    async def check_broken(self, number: int, outcome: Scored) -> None:
        self.broken.append((number, outcome.task.name))

    refill = 0

    def dispatcher(self, tasks: asyncio.TaskGroup) -> Dispatcher:
        admission = Admission(self.settings.staleness, self.settings.groups, self.settings.steps)
        return Dispatcher(
            self.settings,
            admission,
            self.journal,
            self.source,
            self,
            tasks,
            seed=0,
            step=0,
            refill=self.refill,
            on_settled=self.settled.add,
        )

    def states(self, number: int) -> list[tuple[int, str]]:
        rows = sqlite3.connect(self.journal.path).execute(
            "SELECT slot, state FROM changes WHERE number = ? ORDER BY row", (number,)
        )
        return list(rows)


async def steps(dispatcher: Dispatcher, count: int) -> list[list[int]]:
    """Takes and publishes as the learner would; the groups of each step."""
    taken = []
    dispatcher.fill()
    while len(taken) < count and not dispatcher.over:
        dispatcher.changed.clear()
        if (groups := dispatcher.take()) is None:
            await asyncio.wait_for(dispatcher.changed.wait(), 60)
            continue
        taken.append([group.number for group in groups])
        dispatcher.publish(len(taken))
    return taken


def run_steps(stage: Stage, count: int) -> tuple[list[list[int]], Dispatcher]:
    async def work() -> tuple[list[list[int]], Dispatcher]:
        async with asyncio.TaskGroup() as tasks:
            dispatcher = stage.dispatcher(tasks)
            taken = await asyncio.wait_for(steps(dispatcher, count), 120)
            await dispatcher.stop()
            dispatcher.close()
        return taken, dispatcher

    return asyncio.run(work())


def test_every_task_once_and_never_more_in_flight_than_asked(tmp_path: Path, scored: Any) -> None:
    stage = Stage(tmp_path, lambda task, time: scored(task, Version(0, 0)))
    taken, dispatcher = run_steps(stage, 3)
    assert taken == [[0, 1], [2, 3], [4, 5]]
    assert stage.tries == {str(number): 3 for number in range(6)} and stage.most == 4
    assert dispatcher.in_flight == 0 and not dispatcher.voids
    for number in range(6):
        for slot in range(3):
            seen = [state for at, state in stage.states(number) if at == slot]
            assert seen == ["queued", "running", "grading", "ready"]


def test_groups_without_signal_are_replaced_and_trained_with_the_step(tmp_path: Path, scored: Any) -> None:
    def script(task: Task, time: int) -> Outcome:
        # every second task is solved alike by all
        return dataclasses.replace(scored(task, Version(0, 0)), reward=float(time if int(task.name) % 2 else 0))

    stage = Stage(tmp_path, script)
    stage.refill = 1
    taken, dispatcher = run_steps(stage, 3)
    with_signal = [[number for number in step if number % 2] for step in taken]
    assert all(len(step) == 2 for step in with_signal) and not dispatcher.voids
    # none is lost: what was replaced belongs to the step that was taken next
    numbers = sorted(number for step in taken for number in step)
    assert numbers == list(range(len(numbers)))


def test_a_policy_that_fails_at_everything_still_comes_to_its_steps(tmp_path: Path, scored: Any) -> None:
    stage = Stage(tmp_path, lambda task, time: dataclasses.replace(scored(task, Version(0, 0)), reward=0.0))
    stage.refill = 2
    taken, _ = run_steps(stage, 3)
    assert [len(step) for step in taken] == [6, 6, 6]  # two, and at most two more for each of them


def test_a_source_that_ends_in_groups_without_signal_ends_the_run(tmp_path: Path, scored: Any) -> None:
    stage = Stage(
        tmp_path, lambda task, time: dataclasses.replace(scored(task, Version(0, 0)), reward=0.0), source=Numbers(3)
    )
    stage.refill = 2
    taken, dispatcher = run_steps(stage, 3)
    assert taken == [[0, 1, 2]] and dispatcher.over


def test_a_group_of_one_is_void_when_its_only_rollout_is(tmp_path: Path, scored: Any) -> None:
    def script(task: Task, time: int) -> Outcome:
        return Void(task, "sandbox", False, "gone") if task.name == "1" else scored(task, Version(0, 0))

    stage = Stage(tmp_path, script, group=1)
    taken, dispatcher = run_steps(stage, 2)
    assert taken == [[0, 2], [3, 4]] and dispatcher.voids["group"] == 1


def test_a_task_that_the_monitor_calls_broken_is_checked_by_its_number(tmp_path: Path, scored: Any) -> None:
    def script(task: Task, time: int) -> Outcome:
        verdict: Verdict = "broken task" if task.name == "12" and time == 2 else "clean"
        return dataclasses.replace(scored(task, Version(0, 0)), ruling=Ruling(verdict))

    stage = Stage(tmp_path, script, first_task=10)
    _, dispatcher = run_steps(stage, 3)
    assert stage.broken == [(12, "12")] and not dispatcher.voids


def test_a_spoiled_rollout_is_tried_again_and_one_void_member_is_borne(tmp_path: Path, scored: Any) -> None:
    def script(task: Task, time: int) -> Outcome:
        if (task.name == "0" and time <= 2) or (task.name == "1" and time <= 1):
            return Void(task, "sandbox", task.name == "0", "a bad moment")
        return scored(task, Version(0, 0))

    stage = Stage(tmp_path, script)
    taken, dispatcher = run_steps(stage, 3)
    assert taken == [[0, 1], [2, 3], [4, 5]]
    assert stage.tries["0"] == 5  # two more
    assert stage.tries["1"] == 3 and dispatcher.voids == {"sandbox": 1}  # no retry where that cannot help
    assert Counter(state for _, state in stage.states(1)) == {
        "queued": 3,
        "running": 3,
        "grading": 3,
        "ready": 2,
        "void": 1,
    }
    assert len(stage.voids) == 3


def test_a_group_with_too_few_valid_members_is_void_and_replaced(tmp_path: Path, scored: Any) -> None:
    def script(task: Task, time: int) -> Outcome | None:
        if task.name == "1":
            return None if time == 1 else Void(task, "policy", True, "gone")  # one of them would never end
        return scored(task, Version(0, 0))

    stage = Stage(tmp_path, script, retries=1)
    taken, dispatcher = run_steps(stage, 3)
    assert taken == [[0, 2], [3, 4], [5, 6]]
    assert dispatcher.voids == {"policy": 2, "group": 1} and dispatcher.in_flight == 0
    assert stage.states(1)[-1] == (-1, "void")
    # Also of the one that was cancelled: nobody goes on from its recorded turns.
    assert {f"000001-0{slot}" for slot in range(3)} <= stage.settled


def test_machinery_that_spoils_everything_stops_the_run(tmp_path: Path) -> None:
    stage = Stage(tmp_path, lambda task, time: Void(task, "grader", True, "the grader is broken"), concurrency=2)
    with pytest.raises(ExceptionGroup) as failed:
        run_steps(stage, 3)
    (error,) = failed.value.exceptions
    assert isinstance(error, EtudeError) and "in a row were spoiled" in str(error) and "is broken" in str(error)


def test_a_source_that_ends_is_trained_to_its_end(tmp_path: Path, scored: Any) -> None:
    stage = Stage(tmp_path, lambda task, time: scored(task, Version(0, 0)), Numbers(5), steps=9)
    taken, dispatcher = run_steps(stage, 9)
    assert taken == [[0, 1], [2, 3], [4]] and dispatcher.over


def test_rollouts_of_an_evaluation_share_the_places_and_come_first(tmp_path: Path, scored: Any) -> None:
    stage = Stage(tmp_path, lambda task, time: scored(task, Version(0, 0)), concurrency=2)
    order: list[str] = []

    async def other(name: str) -> str:
        order.append(name)
        assert stage.now < 2
        await asyncio.sleep(0)
        return name

    async def work() -> list[str]:
        async with asyncio.TaskGroup() as tasks:
            dispatcher = stage.dispatcher(tasks)
            found = asyncio.create_task(dispatcher.run_evaluation([lambda name=name: other(name) for name in "abcde"]))
            await asyncio.sleep(0)
            await steps(dispatcher, 3)
            return await found

    assert asyncio.run(work()) == list("abcde") and sorted(order) == list("abcde")


def test_what_was_under_way_is_queued_again(tmp_path: Path, scored: Any) -> None:
    stage = Stage(tmp_path, lambda task, time: None if task.name == "1" else scored(task, Version(0, 0)))

    async def work() -> None:
        async with asyncio.TaskGroup() as tasks:
            dispatcher = stage.dispatcher(tasks)
            dispatcher.fill()
            while not dispatcher.groups[0].ready:
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            await dispatcher.stop()
            assert dispatcher.in_flight == 0

    asyncio.run(work())
    stage.journal.close()
    resumed = Journal(tmp_path / "journal.db", 1).resume(0, 0)
    assert [slot.state for slot in resumed.groups[0][1]] == ["ready"] * 3
    assert [slot.state for slot in resumed.groups[1][1]] == ["queued"] * 3
