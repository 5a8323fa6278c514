"""What a benchmark is called: "held-out" only where the run's own list says so."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest

from etude.bench.report.page import write_report
from etude.bench.result import load_result, save_result
from etude.bench.run_data import read_run
from etude.bench.trained_on import called, count_trained, tasks_trained_on, warning
from etude.core import recipe as recipes
from etude.core.run import Run
from etude.forge.katas.task_source import Katas
from etude.rollout.trained_tasks import FILE, TrainedTasks, read_trained_tasks, task_identity
from etude.tasks.format.task import Task


def katas(split: str, count: int) -> list[Task]:
    return list(islice(Katas(Katas.Settings(split=split)).tasks(), count))  # type: ignore[arg-type]


def test_a_task_is_the_same_in_other_words_and_on_disk_and_another_task_is_not(tmp_path: Path) -> None:
    first, second = katas("train", 2)
    reworded = dataclasses.replace(first, instruction="Mend it.", name="elsewhere")
    first.save(tmp_path / "task")
    loaded = Task.load(tmp_path / "task")
    assert task_identity(first) == task_identity(reworded) == task_identity(loaded) != task_identity(second)
    assert first.digest != reworded.digest


def test_the_list_is_kept_once_for_each_task_and_survives_a_kill(tmp_path: Path) -> None:
    first, second = katas("train", 2)
    listed = TrainedTasks(tmp_path)
    listed.add(first, "demos")
    listed.add(first, "demos")
    with (tmp_path / FILE).open("a") as file:
        file.write('{"task": "half a li')
    again = TrainedTasks(tmp_path)
    again.add(first, "demos")
    again.add(second, "rl")
    assert len((tmp_path / FILE).read_text().splitlines()) == 2
    assert list((read_trained_tasks(tmp_path) or {}).values()) == [first.name, second.name]
    assert list((read_trained_tasks(tmp_path, "rl") or {}).values()) == [second.name]
    assert read_trained_tasks(tmp_path / "nothing") is None


def test_a_run_answers_for_the_runs_that_its_model_came_from(tmp_path: Path) -> None:
    first, second = katas("train", 2)
    for name, task, more in (("one", first, []), ("two", second, [f"rl.model={json.dumps(str(tmp_path / 'one'))}"])):
        with Run.open(tmp_path / name, recipes.to_dict(recipes.load(None, more))) as run:
            run.begin("rl")
            TrainedTasks(run.path).add(task, "rl")
    trained = tasks_trained_on(tmp_path / "two" / "checkpoints" / "rl-0000001")
    assert trained is not None and set(trained.values()) == {first.name, second.name}
    (tmp_path / "one" / FILE).unlink()  # a run of an earlier version
    assert tasks_trained_on(tmp_path / "two") is None
    assert tasks_trained_on(tmp_path) is None


@pytest.mark.parametrize(
    ("trained", "name", "says"),
    [
        (None, "benchmark tasks", "not known"),
        (0, "held-out tasks", ""),
        (3, "tasks, 3 of them trained on", "3 of these 10 tasks"),
        (10, "training tasks", "all of these 10 tasks"),
    ],
)
def test_only_what_is_held_out_is_called_so(trained: int | None, name: str, says: str) -> None:
    assert called(10, trained) == name
    assert says in warning(10, trained) and bool(says) == bool(warning(10, trained))


def test_the_report_says_when_a_benchmark_is_of_tasks_that_were_trained_on(fake_run: Callable[..., Path]) -> None:
    run = fake_run(arms=False)
    assert "held-out tasks." in write_report(run).read_text()
    assert "No training task came twice" not in (text := write_report(run).read_text())
    assert "Training asked 12 tasks, each 40.0 times on average" in text
    listed = TrainedTasks(run)
    for task in katas("held_out", 100):
        listed.add(task, "rl")
    text = write_report(run).read_text()
    assert "on 100 training tasks." in text and "Held-out tasks" not in text
    assert "The model was trained on all of these 100 tasks" in text


def test_a_report_with_other_benchmarks_does_not_say_that_there_is_none(fake_run: Callable[..., Path]) -> None:
    run = fake_run()
    for name in ("sft", "rl"):
        (run / "bench" / f"{name}.json").unlink()
    text = write_report(run).read_text()
    assert "There is no benchmark" not in text and "sft-more: pass@1 is" in text


def test_a_result_without_identities_claims_nothing(fake_run: Callable[..., Path]) -> None:
    run = fake_run()
    old = load_result(run / "bench" / "rl.json")
    save_result(
        dataclasses.replace(old, tasks=[dataclasses.replace(row, identity="") for row in old.tasks]),
        run / "bench" / "rl.json",
    )
    data = read_run(run)
    assert data.after is not None and count_trained(data.after.rows(), data.trained) is None
    assert data.called(data.after) == "benchmark tasks"


def test_written_tokens_do_not_count_the_prompt(fake_run: Callable[..., Path]) -> None:
    text = write_report(fake_run()).read_text()
    assert "written <b>58" in text and "whole <b>17" in text  # 67 - 9, and 192 - 14 on average at the end
