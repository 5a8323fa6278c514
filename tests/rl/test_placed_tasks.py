"""A task's folder is there as long as a rollout of it may ask for it, and no run fills the disk with them."""

from __future__ import annotations

from pathlib import Path

from etude.forge.katas.task_source import katas
from etude.rl.workers.placed_tasks import PlacedTasks
from etude.rollout.store import TASKS, TaskRef, load_task
from etude.tasks.format.task import Task


def placed(tasks: PlacedTasks, task: Task) -> None:
    with tasks.use(task) as place:
        load_task(TaskRef.model_validate(vars(place)), tasks.root, "a test")


def test_a_task_in_use_stays_and_one_that_is_given_again_counts_as_new(tmp_path: Path) -> None:
    first, again, *others = katas("train", 8, seed=3)
    tasks = PlacedTasks(tmp_path, most=2)
    with tasks.use(first) as place:  # a long rollout, while many short ones begin and end
        placed(tasks, again)
        for other in others:
            placed(tasks, other)
        assert load_task(TaskRef.model_validate(vars(place)), tmp_path, "a test").digest == first.digest
    placed(tasks, again)
    # The one that was given again is younger than what began before it.
    assert {each.name for each in (tmp_path / TASKS).iterdir()} == {others[-1].digest, again.digest}


def test_two_rollouts_of_a_task_share_its_folder_until_the_last_has_ended(tmp_path: Path) -> None:
    shared, *others = katas("train", 4, seed=4)
    tasks = PlacedTasks(tmp_path, most=1)
    with tasks.use(shared) as one:
        placed(tasks, shared)
        for other in others:
            placed(tasks, other)
        assert (tmp_path / TASKS / one.digest).is_dir()
    placed(tasks, others[0])
    assert [each.name for each in (tmp_path / TASKS).iterdir()] == [others[0].digest]
