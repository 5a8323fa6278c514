"""Tasks that the monitor calls broken: believed where the reference does not solve them, and only then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from etude.audit.base import Finding, Ruling
from etude.core.recipe import Recipe
from etude.harness.trajectory import Trajectory
from etude.rl.broken_tasks import BrokenTasks
from etude.rl.groups import Rollout, compact, pack, unpack
from etude.rl.metrics import describe
from etude.rl.rollout_environment import RolloutEnvironment
from etude.rollout.rollout import GradeCache, Scored, build_setup
from etude.sandbox.hosts import StoringHost
from etude.tasks.format.config import Answer, Facts
from etude.tasks.format.file_tree import Files
from etude.tasks.format.task import SOLUTION, Task
from etude.tasks.grading.submission import Submission
from etude.tasks.grading.verdict import Grade

Sandboxes = tuple[asyncio.AbstractEventLoop, StoringHost]
BROKEN = Ruling("broken task", (Finding("contradiction", "broken task", "tests want both 1 and 2"),))


class Told:
    """A source that remembers what it was told."""

    def __init__(self) -> None:
        self.said: list[tuple[int, str]] = []

    def tasks(self, start: int = 0) -> Iterator[Task]:
        return iter(())

    def broken(self, number: int, why: str) -> bool:
        self.said.append((number, why))
        return True


def scored(task: Task, ruling: Ruling | None = BROKEN) -> Scored:
    return Scored(task, Trajectory(), Submission(), Grade(False, "tests", "no"), 0.0, {}, ruling=ruling)


@pytest.mark.parametrize(("solvable", "told", "asked"), [(False, 1, 1), (True, 0, 1), (None, 0, 3)])
def test_a_source_hears_once_of_a_task_that_its_reference_does_not_solve(
    solvable: bool | None, told: int, asked: int
) -> None:
    source, lines, times = Told(), list[str](), list[str]()

    async def look(task: Task) -> bool | None:
        times.append(task.name)
        return solvable

    broken = BrokenTasks(source, lines.append)
    for _ in range(3):
        asyncio.run(broken.check(4, scored(Task("t", "Do it.")), look))
    assert source.said == [(4, "tests want both 1 and 2")] * told and len(times) == asked
    assert len(lines) == (solvable is not None)


def test_the_reference_of_a_repositorys_task_is_graded_to_know(
    sandboxes: Sandboxes, repository_task: Callable[..., Task]
) -> None:
    loop, host = sandboxes
    grades = GradeCache()
    from dataclasses import replace

    engine: Any = None
    records: Any = None
    setup, broken = replace(build_setup(), grade_cache=grades), BrokenTasks(Told(), print)
    environment = RolloutEnvironment(host, engine, setup, Recipe(), broken, print, lambda edition: setup, records)
    task = repository_task()
    wrong = Files({p: b"x = 1\n" if p.startswith(SOLUTION) and p.endswith(".py") else d for p, d in task.files.items()})
    assert loop.run_until_complete(environment.solvable(task)) is True
    assert loop.run_until_complete(environment.solvable(replace(task, files=wrong))) is False
    assert loop.run_until_complete(environment.solvable(Task("t", "Do it."))) is False
    asked = Task("t", "Which?", facts=Facts(answer=Answer(accepted=["a.py:f"])))  # its reference is an answer
    assert loop.run_until_complete(environment.solvable(asked)) is True
    loop.run_until_complete(grades.close())


def test_rows_count_verdicts_where_somebody_was_asked(tmp_path: Path) -> None:
    def rollout(verdict: str) -> Rollout:
        return Rollout(0.0, {"tests": 0.0}, False, "final", 1, 0, 0, 3, 1.0, 0.1, (), verdict)

    row = describe([rollout("clean"), rollout("hack"), rollout("clean"), rollout("")])
    assert {name: row[name] for name in row if name.startswith("verdict_")} == {
        "verdict_clean": 2,
        "verdict_suspicious": 0,
        "verdict_hack": 1,
        "verdict_broken_task": 0,
    }
    assert not [name for name in describe([rollout("")]) if name.startswith("verdict_")]
    assert unpack(pack(compact(scored(Task("t", "Do it."))))).verdict == "broken task"
    assert compact(scored(Task("t", "Do it."), None)).verdict == ""
