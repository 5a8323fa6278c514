"""What the loop leaves on disk for people and for a resume: the best model, readable rollouts, checkpoints."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from etude.core import recipe as recipes
from etude.core.errors import EtudeError
from etude.core.recipe import Recipe
from etude.core.run import Run
from etude.forge.katas.task_source import katas
from etude.harness.trajectory import Trajectory
from etude.pipeline.stages.table import STAGES
from etude.rl.checkpoint import Checkpoint, keep_readable
from etude.rl.evaluate import BestModel, apart, harness_digest, held_out_jobs
from etude.rl.metrics import Clock, Totals, machine_seconds, processor_seconds
from etude.rollout.rollout import Scored
from etude.rollout.store import saved_rollouts
from etude.tasks.grading.submission import Submission
from etude.tasks.grading.verdict import Grade


def test_evaluations_use_other_tasks_than_the_benchmark_and_always_the_same(
    toy_recipe: Callable[..., Recipe],
) -> None:
    recipe = toy_recipe("rl.eval_tasks=3", "rl.eval_samples=2", "bench.tasks={use='katas', split='held_out', seed=4}")
    jobs = held_out_jobs(recipe)
    assert len(jobs) == 6 and [job.sample for job in jobs] == [0, 1] * 3
    assert len({job.seed for job in jobs}) == 6
    assert jobs == held_out_jobs(recipe)
    bench = {task.name for task in katas("held_out", 50, seed=4, levels=[1])}
    assert not bench & {job.task.name for job in jobs}
    assert {job.task.facts.seed for job in jobs} == {1004}
    # a source without a seed is read from behind the benchmark's own tasks
    assert apart({"use": "folder", "path": "x"}, 100) == ({"use": "folder", "path": "x"}, 100)


def candidate(folder: Path, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name in ("config.json", "model.safetensors", "tokenizer.json", "optimiser.safetensors", "learner.json"):
        (folder / name).write_text(f"{name} {text}")
    return folder


def test_the_best_model_is_kept_whole_and_survives_a_kill_between_two_renames(tmp_path: Path) -> None:
    best = BestModel(tmp_path)
    assert best.offer(candidate(tmp_path / "c", "a"), 0, 0, 0.5, 100)
    assert not best.offer(candidate(tmp_path / "c", "b"), 0, 5, 0.44, 100)  # worse by more than a standard error
    assert best.offer(candidate(tmp_path / "c", "c"), 0, 7, 0.46, 100)  # as good as anybody can tell, and newer
    assert not best.offer(candidate(tmp_path / "c", "b"), 0, 8, 0.42, 100)  # measured against the highest, not the last
    assert best.offer(candidate(tmp_path / "c", "d"), 0, 9, 0.6, 100)
    files = {file.name for file in (tmp_path / "best").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "best.json"} <= files
    assert not files & {"optimiser.safetensors", "learner.json"}
    (tmp_path / "best").rename(tmp_path / ".best.replaced")
    (tmp_path / ".best.saving").mkdir()
    again = BestModel(tmp_path)
    assert again.facts["step"] == 9 and (again.path / "model.safetensors").read_text() == "model.safetensors d"
    assert [path.name for path in tmp_path.glob(".best*")] == []
    # Rates under another harness are not compared with these.
    assert again.offer(candidate(tmp_path / "c", "e"), 0, 10, 0.2, 100, "other") and again.facts["highest"] == 0.2
    assert not again.offer(candidate(tmp_path / "c", "f"), 0, 11, 0.1, 100, "other")
    (again.path / "best.json").write_text("{")
    with pytest.raises(EtudeError, match="cannot be read"):
        BestModel(tmp_path)


def test_only_the_newest_rollouts_stay_readable_and_their_tasks_with_them(tmp_path: Path) -> None:
    tasks = list(katas("train", 4, seed=1, levels=[1]))
    grade = Grade(False, "tests", "it fails")
    found = [
        (f"{number:06d}-{slot:02d}-0", Scored(task, Trajectory(), Submission(), grade, 0.0, {}))
        for number, task in enumerate(tasks)
        for slot in range(2)
    ]
    root = tmp_path / "trajectories"
    keep_readable(found[:4], root, 3)
    assert [path.name for path in saved_rollouts(root)] == ["000000-01-0", "000001-00-0", "000001-01-0"]
    keep_readable(found[4:], root, 3)
    assert [path.name for path in saved_rollouts(root)] == ["000002-01-0", "000003-00-0", "000003-01-0"]
    assert {path.name for path in (root / "tasks").iterdir()} == {task.digest for task in tasks[2:]}
    keep_readable([], root, 0)
    assert not list(saved_rollouts(root)) and not list((root / "tasks").iterdir())


def test_a_commit_point_is_read_as_it_was_written(tmp_path: Path) -> None:
    commit = Checkpoint(7, 123, Totals(seconds=1.5, void={"policy": 2}))
    commit.write(tmp_path)
    assert dataclasses.asdict(Checkpoint.read(tmp_path)) == dataclasses.asdict(commit)
    earlier = json.loads((tmp_path / "rl.json").read_text()) | {"evaluations": {"5": {"pass_rate": 0.25}}}
    (tmp_path / "rl.json").write_text(json.dumps(earlier))
    assert Checkpoint.read(tmp_path).step == 7
    (tmp_path / "rl.json").write_text(json.dumps({"step": 1}))
    with pytest.raises(EtudeError, match="cannot be read"):
        Checkpoint.read(tmp_path)


def test_the_clock_tells_shares_since_the_last_row() -> None:
    import os

    clock = Clock({"engine": os.getpid()})
    clock.wait("data", 0.25)
    end = processor_seconds(os.getpid()) + 0.03
    while processor_seconds(os.getpid()) < end:
        pass
    row = clock.row(learner_seconds=0.01)
    assert 0 < row["engine_busy"] <= 1 and row["cpu_engine"] > 0
    assert row["wait_data"] == pytest.approx(0.25 / row["seconds"])
    assert row["learner_busy"] == pytest.approx(min(1, 0.01 / row["seconds"]))
    assert clock.row(learner_seconds=0.01)["learner_busy"] == 0
    assert processor_seconds(-1) == 0.0


def test_a_run_that_began_before_recipes_had_an_audit_section_goes_on(
    toy_recipe: Callable[..., Recipe], tmp_path: Path
) -> None:
    recipe = recipes.to_dict(toy_recipe())
    before = {name: section for name, section in recipe.items() if name != "audit"}
    with Run.open(tmp_path / "run", before) as run:
        run.begin("rl", [name for name in STAGES["rl"].reads if name != "audit"])
    with Run.open(tmp_path / "run", recipe) as run:
        run.begin("rl", STAGES["rl"].reads)
    # nor does a setting that recipes did not have, as long as it is at its default
    with Run.open(
        tmp_path / "older", before | {"rl": {k: v for k, v in recipe["rl"].items() if k != "normaliser"}}
    ) as run:
        run.begin("rl", STAGES["rl"].reads)
    with Run.open(tmp_path / "older", recipe, defaults=recipes.to_dict(Recipe())) as run:
        run.begin("rl", STAGES["rl"].reads)
    with pytest.raises(EtudeError, match=r"rl\.normaliser \(220 -> 7\)"):
        Run.open(tmp_path / "older", recipe | {"rl": recipe["rl"] | {"normaliser": 7}})
    changed = recipe | {"audit": {"penalty": 0.0}}
    with pytest.raises(EtudeError, match=r"audit\.penalty \(1\.0 -> 0\.0\)"):
        Run.open(tmp_path / "run", changed)


def test_the_harness_of_an_evaluation_has_a_name_of_its_own() -> None:
    recipe = Recipe()
    name = harness_digest(recipe, "local")
    assert name == harness_digest(Recipe(), "local") and len(name) == 16
    limits = dataclasses.replace(recipe.harness.limits, turns=recipe.harness.limits.turns + 1)
    other = dataclasses.replace(recipe, harness=dataclasses.replace(recipe.harness, limits=limits))
    assert len({name, harness_digest(other, "local"), harness_digest(recipe, "docker")}) == 3
    # What is trained changes nothing of it.
    trained = dataclasses.replace(recipe, rl=dataclasses.replace(recipe.rl, steps=recipe.rl.steps + 1))
    assert harness_digest(trained, "local") == name


def test_other_programs_count_on_the_cores_that_this_one_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pinned to four of 16 cores, what runs on the other twelve is no neighbour."""
    cores = ("cpu 616", "cpu0 100 1 10 7 7 2 3 9", "cpu1 200 0 0 0 0 0 0 0", "cpu10 300 0 0 0 0 0 0 0", "intr 5")
    stat = "\n".join([f"{cores[0]} 0 0 0 0 0 0 0", *cores[1:]]) + "\n"
    monkeypatch.setattr(Path, "read_text", lambda path: stat if str(path) == "/proc/stat" else "")
    ticks = os.sysconf("SC_CLK_TCK")
    for cores, found in (({0}, 116), ({0, 10}, 416), ({1}, 200), ({5}, 0)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid, cores=cores: cores)
        assert machine_seconds() == pytest.approx(found / ticks)
