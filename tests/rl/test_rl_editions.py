"""Settings that change while a run goes on: editions, what is refused, and what groups under way keep.

A run that takes up an edit is in test_rl_experts.py, where one is trained anyway."""

from __future__ import annotations

from pathlib import Path

import pytest

from etude.core.errors import EtudeError
from etude.core.policy import Assistant
from etude.core.recipe import Recipe
from etude.core.terms import Terms
from etude.harness.trajectory import MessageRecord, Trajectory
from etude.reward.base import GradedRollout
from etude.reward.compose import build_reward
from etude.rl.editions import Editions
from etude.rl.groups import Rollout
from etude.rl.journal import Journal
from etude.rollout.rollout import build_setup
from etude.tasks.format.task import Task
from etude.tasks.grading.submission import Submission
from etude.tasks.grading.verdict import Grade

MINE = "def mine(rollout, factor=1):\n    return {value} * factor\n"


class Bench:
    def __init__(self, folder: Path) -> None:
        self.folder, self.said = folder, list[str]()
        (folder / "mine.py").write_text(MINE.format(value=2))
        self.open(0)

    def open(self, lineage: int) -> None:
        journal = Journal(self.folder / "rl" / "journal.db", lineage)
        recipe = Recipe()
        setup = build_setup(recipe.harness, recipe.reward, recipe.grader, recipe.audit)
        self.editions = Editions(self.folder, recipe, setup, journal, self.said.append)

    def write(self, text: str) -> bool:
        (self.folder / "live.toml").write_text(text)
        return self.editions.poll()

    def parts(self, edition: int) -> dict[str, float]:
        """What each part of the edition's reward gives."""
        trajectory = Trajectory(stop="final", entries=[MessageRecord(Assistant(final="x"))])
        rollout = GradedRollout(Task("t", "Do it."), trajectory, Submission(()), Grade(True, "passed", ""))
        return self.editions.setup(edition).reward.score(rollout)[1]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_without_the_file_the_recipe_is_the_only_edition(bench: Bench) -> None:
    assert bench.editions.current.number == 0 and bench.editions.current.lr == 3e-4
    assert not bench.editions.poll() and bench.parts(0) == {"tests": 1.0}
    assert not bench.write("") and bench.editions.current.number == 0


def test_an_edit_makes_an_edition_and_older_ones_stay_as_they_were(bench: Bench) -> None:
    mine = bench.folder / "mine.py"
    assert bench.write(f"[reward]\nparts = [{{ use = 'tests' }}, {{ use = '{mine}:mine', factor = 3 }}]\n")
    assert not bench.editions.poll() and bench.editions.current.number == 1
    assert bench.parts(1) == {"tests": 1.0, "mine": 6.0} and bench.parts(0) == {"tests": 1.0}
    mine.write_text(MINE.format(value=50))  # the component itself, with live.toml as it was
    assert bench.editions.poll() and bench.editions.current.number == 2
    assert bench.parts(2)["mine"] == 150.0 and bench.parts(1)["mine"] == 6.0
    assert bench.write("rl.optim.lr = 1e-5") and bench.editions.current.lr == 1e-5 and bench.parts(3) == {"tests": 1.0}
    bench.open(1)  # after a kill, with groups of any edition still to be sampled
    assert bench.editions.current.number == 3 and bench.parts(1)["mine"] == 6.0


def test_a_behaviour_that_a_part_counts_is_loaded_anew_when_its_file_changes(bench: Bench) -> None:
    own = bench.folder / "own.py"
    text = "from etude.behaviours.base import *\n\n\nclass Own(Behaviour):\n    def sites(self, trajectory):\n"
    text += "        return [Site(0, 'own', '')] * {count}\n"
    own.write_text(text.format(count=1))
    assert bench.write(f"[[reward.parts]]\nuse = 'behaviour'\nof = {{ use = '{own}:Own' }}\n")
    assert bench.parts(1) == {"Own": -1.0}
    own.write_text(text.format(count=3))
    assert bench.editions.poll() and bench.parts(2) == {"Own": -3.0} and bench.parts(1) == {"Own": -1.0}
    own.unlink()  # groups of an edition go on with its copy
    bench.open(1)
    assert bench.parts(1) == {"Own": -1.0} and "own.py cannot be read" in bench.said[-1]


TOOL = """
from etude.harness.tools.base import Observation, Tool


class Weather(Tool):
    name, description = "{name}", "tell the weather"

    async def call(self, arguments, context):
        return Observation("rain")
"""


def test_tools_change_with_an_edition_and_a_tool_of_ones_own_is_loaded_anew(bench: Bench) -> None:
    own = bench.folder / "weather.py"
    own.write_text(TOOL.format(name="weather"))
    before = bench.editions.setup(0)
    assert bench.write(f"harness.tools = [{{ use = 'read', max_lines = 9 }}, {{ use = '{own}:Weather' }}]")
    now = bench.editions.setup(1)
    assert list(now.tools) == ["read", "weather"] and "weather" in now.system and "edit" not in now.system
    own.write_text(TOOL.format(name="forecast"))
    assert bench.editions.poll() and list(bench.editions.setup(2).tools) == ["read", "forecast"]
    assert now.system == bench.editions.setup(1).system and before is bench.editions.setup(0)
    # what a rollout of another edition's tools was worth is still known
    rollout = Rollout(1.0, {"tests": 1.0}, True, "final", 1, 0, 0, 3, 1.0, 0.1, (), terms=Terms(edition=2))
    bench.write("reward.parts = [{ use = 'tests', weight = 0.5 }]")
    assert bench.editions.current.tools is None and bench.editions.rewarded(rollout).reward == 0.5
    bench.open(1)
    assert list(bench.editions.setup(1).tools) == ["read", "weather"] and bench.parts(3) == {"tests": 1.0}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[reward", "it is not TOML"),
        (
            "rl.group = 4",
            "cannot change while a run goes on; reward.parts, rl.optim.lr, harness.tools and cluster.engines can",
        ),
        ("rl.optim.lr = -1", "rl.optim.lr is -1; it must be a number of at least 0"),
        ("reward.parts = []", "reward.parts is empty"),
        ("harness.tools = ['read']", "harness.tools must be a list of tables, such as [{ use = 'read' }]"),
        ("harness.tools = [{ use = 'reed' }]", "no tool is called 'reed'; did you mean read"),
        ("reward.parts = [{ use = 'test' }]", "no reward is called 'test'; did you mean tests"),
        ("reward.parts = [{ use = './nowhere.py:x' }]", "cannot be read"),
    ],
)
def test_an_invalid_edit_is_refused_once_with_a_sentence(bench: Bench, text: str, said: str) -> None:
    assert not bench.write(text) and not bench.editions.poll()
    (sentence,) = bench.said
    assert said in sentence and "live.toml is refused, and edition 0 stays" in sentence
    assert bench.editions.current.number == 0
    assert bench.write("rl.optim.lr = 1e-4") and bench.editions.current.number == 1  # mended


def test_new_weights_count_at_once_and_new_parts_with_new_groups(bench: Bench) -> None:
    bench.write("reward.parts = [{ use = 'tests' }, { use = 'ending', weight = 0.2 }]")
    values = {"tests": 1.0, "ending": -1.0}
    rollout = Rollout(0.8, values, True, "final", 1, 0, 0, 3, 1.0, 0.1, (), terms=Terms(edition=1))
    assert bench.editions.rewarded(rollout) is rollout
    bench.write("reward.parts = [{ use = 'tests' }, { use = 'ending', weight = 0.5 }]")
    assert bench.editions.rewarded(rollout).reward == 0.5
    bench.write("reward.parts = [{ use = 'tests' }, { use = 'effort' }]")
    assert bench.editions.rewarded(rollout) is rollout  # its value for the new part is not known


def test_a_function_is_a_reward_and_its_keywords_are_its_settings(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE.format(value=2))
    reward = build_reward([{"use": f"{tmp_path}/mine.py:mine", "weight": 0.5, "factor": 7}])
    rollout = GradedRollout(Task("t", ""), Trajectory(), Submission(()), Grade(True, "passed", ""))
    assert reward.score(rollout) == (7.0, {"mine": 14.0})
    with pytest.raises(EtudeError, match="takes a rollout and its settings as keywords"):
        build_reward([{"use": f"{tmp_path}/mine.py:mine", "wrong": 7}])


def test_how_many_engines_are_wanted_is_no_edition(bench: Bench) -> None:
    assert bench.editions.engines == 1
    assert not bench.write("cluster.engines = 3") and bench.editions.engines == 3 and not bench.said
    assert not bench.write("cluster.engines = 0") and bench.editions.engines == 3
    assert "cluster.engines is 0; it must be a whole number of at least 1" in bench.said[0]
    assert bench.write("cluster.engines = 2\nrl.optim.lr = 1e-5") and bench.editions.engines == 2
    (bench.folder / "live.toml").unlink()
    assert bench.editions.poll() and bench.editions.engines == 1
