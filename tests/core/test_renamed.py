"""What was written under a name that has changed since still loads."""

from __future__ import annotations

from pathlib import Path

import pytest

from etude.core import recipe as recipes
from etude.core.errors import EtudeError
from etude.core.renamed import DEFAULTS
from etude.core.run import Run
from etude.core.run_files import check_recipe, read_facts
from etude.forge.curriculum.sources import open_source
from etude.forge.katas.task_source import Katas
from etude.reward.compose import build_reward
from etude.tasks.format import config


def test_old_names_of_components_and_settings_load_under_the_new_ones() -> None:
    reward = build_reward([{"use": "tests"}, {"use": "honest", "suspicious": 0.5}])
    assert [part.name for part in reward.parts] == ["tests", "hack_penalty"]
    source = open_source({"use": "katas", "registers": ["terse"]})
    assert isinstance(source, Katas) and source.settings.prompt_styles == ["terse"]


def test_old_facts_of_a_task_load_and_are_written_under_the_new_name() -> None:
    found, facts = config.read(b'[metadata.etude]\nregister = "terse"\n', "task.toml")
    assert facts.prompt_style == "terse"
    assert b'prompt_style = "terse"' in config.write(found, facts)


def test_an_old_name_beside_its_new_one_is_refused() -> None:
    with pytest.raises(EtudeError, match="both register and prompt_style"):
        config.read(b'[metadata.etude]\nregister = "terse"\nprompt_style = "plain"\n', "task.toml")


def test_a_run_that_was_made_with_defaults_of_before_is_continued(tmp_path: Path) -> None:
    defaults = recipes.to_dict(recipes.Recipe())
    before = recipes.load("nano")
    for key, (old, new) in DEFAULTS.items():
        section, name = key.split(".")
        assert defaults[section][name] == new
        object.__setattr__(getattr(before, section), name, old)
    with Run.open(tmp_path, recipes.to_dict(before)) as run:
        run.begin("rl", ("rl",))
    facts = read_facts(tmp_path)
    check_recipe(tmp_path, facts, recipes.to_dict(recipes.load("nano")), defaults)
    with pytest.raises(EtudeError, match=r'rl\.correction \("truncate" -> "mask"\)'):
        check_recipe(tmp_path, facts, recipes.to_dict(recipes.load("nano", ["rl.correction=mask"])), defaults)
    with pytest.raises(EtudeError, match=r"rl\.monitor"):
        check_recipe(tmp_path, facts, recipes.to_dict(recipes.load("nano", ["rl.monitor=[]"])), defaults)
