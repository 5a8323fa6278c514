"""Half of the loop for debugging, with real processes; and what may change when a run is continued."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from etude.core import recipe as recipes
from etude.core.errors import EtudeError
from etude.core.recipe import Recipe
from etude.core.run import Run
from etude.core.run_files import read_metrics
from etude.pipeline.execute import MAY_CHANGE, open_run
from etude.pipeline.half_loop import rollouts_only, train_only
from etude.rl import editions
from etude.rl.editions import Editions
from etude.rl.journal import Journal
from etude.rl.train_only import copy_journal
from etude.rollout.listing import Wanted, list_rollouts
from etude.rollout.rollout import build_setup

MakeRecipe = Callable[..., Recipe]


def states(run: Path) -> dict[str, int]:
    with sqlite3.connect(run / "rl" / "journal.db") as base:
        newest = dict(base.execute("SELECT number || '/' || slot, state FROM changes ORDER BY row").fetchall())
    return {state: list(newest.values()).count(state) for state in set(newest.values())}


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory, toy_model: Path, toy_recipe: MakeRecipe) -> tuple[Path, Recipe]:
    """A run whose journal --rollouts-only filled: two steps of two groups of three, more than staleness allows."""
    path = tmp_path_factory.mktemp("half") / "run"
    recipe = toy_recipe(f"rl.model={toy_model}", "rl.steps=2", "rl.staleness=0", "rl.eval_every=0", "run.threads=1")
    found = rollouts_only(recipe, path)
    assert found["rollouts"] == 12 and not found["stopped"]
    return path, recipe


def test_rollouts_only_fills_the_journal_and_trains_nothing(collected: tuple[Path, Recipe]):
    path, recipe = collected
    assert states(path) == {"ready": 12}
    assert not (path / "checkpoints").exists() and len(list_rollouts(path, Wanted())) == recipe.rl.keep_trajectories
    rows = read_metrics(path)
    assert [(row["stage"], row["step"], row["rollouts"]) for row in rows] == [
        ("rl.rollouts", 1, 6),
        ("rl.rollouts", 2, 6),
    ]
    with Run.open(path, recipes.to_dict(recipe)) as run:
        assert not run.finished("rl")


def test_train_only_trains_on_a_copy_of_the_journal(collected: tuple[Path, Recipe], tmp_path: Path):
    path, recipe = collected
    found = train_only(recipe, tmp_path / "one", path)
    assert (found["steps"], found["groups"]) == (2, 4)
    assert (tmp_path / "one" / "checkpoints" / "rl-0000002" / "model.safetensors").exists()
    assert states(path) == {"ready": 12} and states(tmp_path / "one") == {"trained": 12}
    rows = read_metrics(tmp_path / "one")
    assert [row["step"] for row in rows] == [1, 2] and rows[0]["trained_tokens"] > 0
    with pytest.raises(EtudeError, match="has no group whose rollouts are all finished"):
        train_only(recipe, tmp_path / "one", path)


def test_train_only_without_a_journal_says_how_to_get_one(collected: tuple[Path, Recipe], tmp_path: Path):
    with pytest.raises(EtudeError, match="has no journal of rollouts; `etude rl RECIPE --rollouts-only --run"):
        train_only(collected[1], tmp_path / "run", tmp_path)


# What may change when a run is continued


def begin(path: Path, recipe: Recipe) -> None:
    with open_run(path, recipe) as run:
        run.begin("rl", ("rl", "reward"))


def test_rate_and_rewards_may_change_when_an_unfinished_run_is_continued(tmp_path: Path):
    assert MAY_CHANGE["rl"] == editions.MAY_CHANGE
    begin(tmp_path, recipes.load("nano"))
    parts = "reward.parts=[{use='tests', weight=2.0}]"
    begin(tmp_path, recipes.load("nano", ["rl.optim.lr=1e-5", parts]))
    with pytest.raises(EtudeError, match=r"another recipe: rl\.group \(\d+ -> 3\);"):
        begin(tmp_path, recipes.load("nano", ["rl.optim.lr=2e-5", parts, "rl.group=3"]))


def test_they_may_not_when_it_is_finished(tmp_path: Path):
    begin(tmp_path, recipes.load("nano"))
    with open_run(tmp_path, recipes.load("nano")) as run:
        run.finish("rl")
    with pytest.raises(EtudeError, match=r"rl\.optim\.lr"):
        begin(tmp_path, recipes.load("nano", ["rl.optim.lr=1e-5"]))


def open_editions(path: Path, lineage: int, recipe: Recipe) -> Editions:
    journal = Journal(path / "rl" / "journal.db", lineage)
    journal.resume(0, 0)
    setup = build_setup(recipe.harness, recipe.reward, recipe.grader, recipe.audit)
    return Editions(path, recipe, setup, journal, lambda text: None)


def test_another_value_on_the_command_line_is_an_edition_and_groups_under_way_keep_theirs(tmp_path: Path):
    before = recipes.load(None, ["rl.optim.lr=3e-4", "reward.parts=[{use='tests'}]"])
    after = recipes.load(None, ["rl.optim.lr=1e-5", "reward.parts=[{use='tests'}, {use='ending', weight=0.5}]"])
    assert open_editions(tmp_path, 0, before).current.number == 0
    changed = open_editions(tmp_path, 1, after)
    assert (changed.current.number, changed.current.lr) == (1, 1e-5)
    names = [[part.name for part in changed.setup(number).reward.parts] for number in (0, 1)]
    assert "ending" not in names[0] and "ending" in names[1]
    assert open_editions(tmp_path, 2, after).current.number == 1  # nothing new
    back = open_editions(tmp_path, 3, before)
    assert (back.current.number, back.current.lr) == (2, 3e-4)
    (tmp_path / "live.toml").write_text("[rl.optim]\nlr = 7e-5\n")
    assert back.poll() and back.current.lr == 7e-5


def test_a_journal_from_before_editions_were_written_knows_the_recipe_that_it_began_with(tmp_path: Path):
    before = recipes.load("nano")
    begin(tmp_path, before)
    Journal(tmp_path / "rl" / "journal.db", 0).resume(0, 0)
    after = recipes.load("nano", ["rl.optim.lr=1e-5"])
    begin(tmp_path, after)
    found = open_editions(tmp_path, 1, after)
    assert found.editions[0].lr == before.rl.optim.lr and found.current.lr == 1e-5


def test_a_journal_of_an_older_version_is_copied_and_read(tmp_path: Path) -> None:
    source, run = tmp_path / "source", tmp_path / "run"
    (source / "rl").mkdir(parents=True)
    Journal(source / "rl" / "journal.db", 0).close()
    with closing(sqlite3.connect(source / "rl" / "journal.db")) as base:  # what version 2 was
        base.executescript("DROP TABLE unmoved; PRAGMA user_version = 2;")
    copy_journal(source, run)
    journal = Journal(run / "rl" / "journal.db", 0)
    assert journal.resume(0, 0).groups == {}
    journal.close()
