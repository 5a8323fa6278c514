import dataclasses
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.core import recipe
from etude.core.component import resolve
from etude.core.errors import EtudeError
from etude.core.recipe import Recipe, from_dict, load, to_dict, to_toml


def refusal(source: str | None, *overrides: str) -> str:
    with pytest.raises(EtudeError) as caught:
        load(source, overrides)
    return str(caught.value)


def write(path: Path, text: str) -> str:
    path.write_text(textwrap.dedent(text))
    return str(path)


# Reading


def test_every_builtin_recipe_loads_and_says_what_it_is_for():
    assert "nano" in recipe.builtin()
    for name in recipe.builtin():
        assert load(name).about


def test_a_recipe_survives_the_way_through_toml():
    original = load("nano", ["pretrain.optim.betas=[0.8, 0.9]", "run.seed=7"])
    assert from_dict(tomllib.loads(to_toml(original))) == original
    assert from_dict(tomllib.loads(to_toml(original, explain=True))) == original


def test_explain_documents_every_setting():
    text = to_toml(Recipe(), explain=True)
    for key, _, field in recipe.leaves(Recipe()):
        assert f"# {field.metadata['doc']}" in text, key


def test_every_default_is_within_its_own_bounds():
    assert from_dict(to_dict(Recipe())) == Recipe()


def test_a_recipe_may_extend_another(tmp_path: Path):
    write(tmp_path / "base.toml", 'extends = "nano"\n[pretrain]\nsteps = 7\nsave_every = 3\n')
    child = write(tmp_path / "child.toml", 'extends = "base.toml"\n[pretrain]\nsteps = 9\n')
    loaded = load(child)
    assert (loaded.pretrain.steps, loaded.pretrain.save_every) == (9, 3)
    assert loaded.model == load("nano").model


def test_a_circle_of_recipes_is_refused(tmp_path: Path):
    write(tmp_path / "a.toml", 'extends = "b.toml"')
    write(tmp_path / "b.toml", 'extends = "a.toml"')
    assert "extends itself" in refusal(str(tmp_path / "a.toml"))


# Overrides


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("pretrain.steps=50", "pretrain.steps", 50),
        ("pretrain.steps = 50", "pretrain.steps", 50),
        ("pretrain.steps=1_000", "pretrain.steps", 1000),
        ("pretrain.optim.lr=1e-4", "pretrain.optim.lr", 1e-4),
        ("pretrain.optim.lr=1", "pretrain.optim.lr", 1.0),
        ("pretrain.optim.schedule=cosine", "pretrain.optim.schedule", "cosine"),
        ('pretrain.optim.schedule="cosine"', "pretrain.optim.schedule", "cosine"),
        ("model.bias=true", "model.bias", True),
        ("sft.data=a b/c=d.jsonl", "sft.data", "a b/c=d.jsonl"),
        ("sft.data=", "sft.data", ""),
        ("corpus.licenses=['permissive']", "corpus.licenses", ["permissive"]),
        ('corpus.sources=[{use="folder", path="src"}]', "corpus.sources", [{"use": "folder", "path": "src"}]),
        ("pretrain={steps=5, save_every=2}", "pretrain.steps", 5),
    ],
)
def test_overrides_are_toml_values_and_bare_words_are_text(override: str, key: str, value: Any):
    changed = {name: found for name, found, _ in recipe.leaves(load("nano", [override]))}
    assert changed[key] == value and type(changed[key]) is type(value)
    others = {name: found for name, found, _ in recipe.leaves(load("nano"))}
    assert all(changed[name] == found for name, found in others.items() if not name.startswith(key.split(".")[0]))


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("pretrain.stpes=50", "unknown key pretrain.stpes; did you mean pretrain.steps?"),
        ("pretrian.steps=50", "unknown key pretrian; did you mean pretrain?"),
        ("pretrain.width=50", "unknown key pretrain.width; did you mean model.width?"),
        ("pretrain.optim.learning=1", "unknown key pretrain.optim.learning"),
        ("zebra=1", "unknown key zebra"),
        ("pretrain.steps=many", 'pretrain.steps must be a whole number, not "many"'),
        ("pretrain.steps=5.5", "pretrain.steps must be a whole number, not 5.5"),
        ('pretrain.steps="5"', 'pretrain.steps must be a whole number, not "5"'),
        ("pretrain.steps=true", "pretrain.steps must be a whole number, not true"),
        ("pretrain.steps=0", "pretrain.steps is 0, but it must be at least 1"),
        ("corpus.held_out=0.9", "corpus.held_out is 0.9, but it must be at most 0.5"),
        ("model.bias=1", "model.bias must be true or false, not 1"),
        ("run.device=5", "run.device must be text, not 5"),
        ("corpus.licenses=permissive", 'corpus.licenses must be a list, not "permissive"'),
        ("corpus.licenses=[1]", "corpus.licenses[0] must be text, not 1"),
        ("pretrain.optim.matrices=sgd", "pretrain.optim.matrices must be one of 'muon' or 'adamw', not \"sgd\""),
        ("pretrain=5", "pretrain must be a section of keys, not 5"),
        ("pretrain.steps.now=5", "unknown key pretrain.steps.now: steps is a value, not a section"),
        ("pretrain.optim.betas=[1]", "pretrain.optim.betas[1] is missing"),
        ("pretrain.optim.lr=nan", "pretrain.optim.lr must be a finite number, not nan"),
        ("pretrain.steps", "cannot read the override 'pretrain.steps'; write it as section.key=value"),
        ("=5", "cannot read the override '=5'; write it as section.key=value"),
        ("pretrain.sequence=8192", "pretrain.sequence is 8192 tokens, but pretrain.micro_tokens holds only 1024"),
        ("pretrain.micro_tokens=10000", "pretrain.micro_tokens is 10000, more than pretrain.batch_tokens = 2048"),
        ("model.max_positions=256", "pretrain.sequence is 512, longer than model.max_positions = 256"),
    ],
)
def test_a_wrong_override_gets_one_sentence_with_the_dotted_path(override: str, said: str):
    sentence = refusal("nano", override)
    assert sentence.startswith(said) and "\n" not in sentence


@settings(deadline=None)  # a busy machine is no failure
@given(st.text(max_size=40))
def test_no_override_ends_in_anything_but_a_recipe_or_a_sentence(text: str):
    for override in (text, f"sft.data={text}", f"pretrain.steps={text}", f"pretrain.{text}=1", f"{text}=1"):
        try:
            assert isinstance(load("nano", [override]), Recipe)
        except EtudeError as error:
            assert str(error)


# Files that are wrong


def test_broken_toml_is_placed_by_line_and_column(tmp_path: Path):
    path = write(tmp_path / "mine.toml", "[pretrain]\nsteps = = 5\n")
    sentence = refusal(path)
    assert path in sentence and "line 2, column 9" in sentence


def test_a_missing_recipe_is_named_with_the_nearest():
    assert refusal("nanno") == (
        "no recipe is called 'nanno'; did you mean nano? built in: " + ", ".join(recipe.builtin())
        + "; or give the path of a .toml file"
    )  # fmt: skip
    assert "cannot read the recipe ./none.toml: No such file" in refusal("./none.toml")


def test_a_file_that_is_not_text_is_refused(tmp_path: Path):
    (tmp_path / "mine.toml").write_bytes(b"\xff\xfe\x00")
    assert "not UTF-8" in refusal(str(tmp_path / "mine.toml"))


def test_unknown_keys_in_a_file_are_refused(tmp_path: Path):
    path = write(tmp_path / "mine.toml", "[pretrain.optim]\nweight_decy = 0.1\n")
    assert refusal(path) == "unknown key pretrain.optim.weight_decy; did you mean pretrain.optim.weight_decay?"


# Components

MINE = """
from pydantic import BaseModel, Field

class Mine:
    class Settings(BaseModel):
        path: str
        weight: float = Field(1.0, gt=0)

    def __init__(self, settings):
        self.settings = settings

class Bare:
    pass
"""
TABLE = {"folder": "etude.corpus.sources.folder:Folder", "stdlib": "etude.corpus.sources.folder:Stdlib"}


def broken(use: str, **settings: Any) -> str:
    with pytest.raises(EtudeError) as caught:
        resolve("corpus source", use, settings, TABLE, "corpus.sources[0]")
    return str(caught.value)


def test_a_component_of_the_users_own_file_is_built_from_its_settings(tmp_path: Path):
    write(tmp_path / "mine.py", MINE)
    mine = resolve("corpus source", f"{tmp_path}/mine.py:Mine", {"path": "src", "weight": 2}, TABLE)
    assert mine.settings.path == "src" and mine.settings.weight == 2.0


def test_a_component_in_a_recipe_file_is_relative_to_that_file(tmp_path: Path):
    write(tmp_path / "mine.py", MINE)
    path = write(tmp_path / "mine.toml", '[[corpus.sources]]\nuse = "./mine.py:Mine"\npath = "x"\n')
    (source,) = load(path).corpus.sources
    assert source["use"] == f"{tmp_path.resolve()}/mine.py:Mine"


def test_a_component_in_an_override_is_relative_to_where_the_command_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (source,) = load("nano", ["corpus.sources=[{use='./mine.py:Mine'}]"]).corpus.sources
    assert source["use"] == f"{tmp_path.resolve()}/mine.py:Mine"


def test_a_builtin_component_is_imported_only_when_named():
    assert type(resolve("corpus source", "stdlib", {}, TABLE)).__name__ == "Stdlib"
    with pytest.raises(EtudeError, match="folder"):
        resolve("corpus source", "flder", {}, TABLE)


def test_wrong_settings_of_a_component_get_the_same_sentences(tmp_path: Path):
    use = f"{tmp_path}/mine.py:Mine"
    write(tmp_path / "mine.py", MINE)
    assert broken(use, pth="x") == "unknown key corpus.sources[0].pth; did you mean corpus.sources[0].path?"
    assert broken(use, zebra=1, path="x").endswith(f"corpus source {use} takes path, weight")
    assert broken(use) == "corpus.sources[0].path is missing"
    assert broken(use, path=5) == "corpus.sources[0].path must be text, not 5"
    assert "corpus.sources[0].weight is -1" in broken(use, path="x", weight=-1)


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        (MINE, "Mne", "has no class Mne; did you mean Mine?"),
        (MINE, "Bare", "needs a nested class Settings"),
        ("import nothing_of_this_name", "Mine", "cannot be imported at line 1: ModuleNotFoundError"),
        ("x = 1\nclass Mine(\n", "Mine", "cannot be imported at line 2: SyntaxError"),
        ("def f():\n    raise KeyError('k')\nf()", "Mine", "cannot be imported at line 2: KeyError"),
    ],
)
def test_a_users_file_that_is_wrong_is_named_in_one_sentence(tmp_path: Path, text: str, name: str, said: str):
    write(tmp_path / "mine.py", text)
    sentence = broken(f"{tmp_path}/mine.py:{name}")
    assert said in sentence and "\n" not in sentence
    assert "does not exist" in broken(f"{tmp_path}/none.py:Mine")


# Imports


@pytest.mark.parametrize(
    "module",
    [
        "core.recipe",
        "core.component",
        "core.run",
        "core.policy",
        "core.settings",
        "core.progress",
        "cli.main",
        "pipeline.execute",
    ],
)
def test_recipes_and_runs_need_no_torch(module: str):
    check = f"import sys, etude.{module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], timeout=60, check=False).returncode == 0


def test_settings_need_nothing_but_python():
    modules = "etude.core.rl_settings, etude.core.progress, etude.core.policy"
    check = f"import sys, {modules}; sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], timeout=60, check=False).returncode == 0


def test_settings_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        load("nano").pretrain.steps = 5  # type: ignore[misc]


def test_naming_another_component_drops_the_settings_of_the_one_before() -> None:
    kept = load("nano", ["rl.tasks.use=katas", "rl.tasks.seed=5"]).rl.tasks
    assert kept["use"] == "katas" and kept["seed"] == 5 and kept["levels"] == [1]
    assert load("nano", ["rl.tasks.use=folder", "rl.tasks.path=here"]).rl.tasks == {
        "use": "folder",
        "path": "here",
    }
    assert load("nano", ['rl.tasks={use = "folder", path = "here"}']).rl.tasks["path"] == "here"
    assert "levels" not in load("nano", ['rl.tasks={use = "folder", path = "here"}']).rl.tasks


def test_a_table_that_is_named_in_part_keeps_the_defaults_of_its_stage():
    plain, partial = recipe.load(None), recipe.load(None, ["sft.optim.muon_lr=1e-4", "rl.optim.lr=1e-4"])
    assert partial.sft.optim.lr == plain.sft.optim.lr != recipe.load(None).pretrain.optim.lr
    assert partial.sft.optim.muon_lr == partial.rl.optim.lr == 1e-4
    assert (partial.rl.optim.matrices, partial.rl.optim.schedule) == ("adamw", "constant")
