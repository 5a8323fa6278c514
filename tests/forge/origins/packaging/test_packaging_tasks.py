"""From a repository to tasks about its packaging: built, valid, judged by the wheel, and open to no shortcut."""

from __future__ import annotations

import asyncio
import importlib.metadata
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from etude.core.settings import GraderSettings, HarnessSettings, RewardSettings
from etude.forge.environments.environment import Environment, environment_digest
from etude.forge.install.checkout import Repo
from etude.forge.origins.packaging.distribution import without_metadata
from etude.forge.origins.packaging.origin import copied
from etude.forge.pipeline.journal import Journal
from etude.forge.pipeline.make import make_tasks
from etude.forge.steps.context import MakeRequest
from etude.policies.scripted import scripted
from etude.rollout.rollout import Scored, build_setup, run_rollout
from etude.sandbox.hosts import StoringHost
from etude.sandbox.store.importing import Bounds
from etude.tasks.check import check
from etude.tasks.format.file_tree import Files
from etude.tasks.format.task import Task
from etude.tasks.grade import grade
from etude.tasks.grading.submission import submission_of

pytestmark = pytest.mark.usefixtures("workspace_alone_is_audited")
Sandboxes = tuple[asyncio.AbstractEventLoop, StoringHost]

PYPROJECT = """[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "shop"
version = "1.0"

[project.scripts]
shop = "shop.cli:main"

[project.optional-dependencies]
fast = ["orjson>=3"]

[tool.setuptools.packages.find]
where = ["src"]

[tool.pytest.ini_options]
addopts = "-p no:cacheprovider"
"""
CLI = '''"""The command."""

import argparse


def main():
    argparse.ArgumentParser(prog="shop").parse_args()
'''
INFORMATION = "Metadata-Version: 2.1\nName: shop\nVersion: 1.0\nProvides-Extra: fast\n\n# shop\n"


@pytest.fixture(scope="module")
def building(
    sandboxes: Sandboxes, tiny_environment: Environment, tmp_path_factory: pytest.TempPathFactory
) -> Environment:
    """The tiny environment with a build backend."""
    _, host = sandboxes
    tree = tmp_path_factory.mktemp("building") / "env"
    shutil.copytree(tiny_environment.layer.path / "opt/env", tree, symlinks=True)
    site = next((tree / "lib").glob("python3*/site-packages"))
    for file in importlib.metadata.distribution("setuptools").files or []:
        if not str(file).startswith("..") and "__pycache__" not in str(file):
            (site / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(str(file.locate()), site / file)
    layer = host.store.add(tree, at="/opt/env", bounds=Bounds(link_loops=True))
    old = tiny_environment
    digest = environment_digest(layer, "", ("src",), old.suite, {})
    made = Environment("tiny", "1", digest, layer, old.python, ("src",), old.suite, "")
    made.save(host.store.root)
    return made


@pytest.fixture(scope="module")
def shop_to_build(small_shop_files: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Repo:
    own = {"pyproject.toml": PYPROJECT, "src/shop/cli.py": CLI, "PKG-INFO": INFORMATION}
    own["shop.egg-info/entry_points.txt"] = "[console_scripts]\nshop = shop.cli:main\n"
    tree = tmp_path_factory.mktemp("shop_to_build")
    for path, text in {**small_shop_files, **own}.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text(text)
    return Repo("shop", "1.0", "path", tree, None)


@pytest.fixture(scope="module")
def made(
    sandboxes: Sandboxes,
    tiny_environment: Environment,
    building: Environment,
    shop_to_build: Repo,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, Journal]:
    loop, host = sandboxes
    out = tmp_path_factory.mktemp("made")
    wanted = MakeRequest(1, out, origins=("devops",))
    return out, loop.run_until_complete(make_tasks(shop_to_build, tiny_environment, host, wanted, building=building))


def test_a_task_is_about_packaging_and_says_what_its_tests_ask(made: tuple[Path, Journal]) -> None:
    out, journal = made
    assert len(journal.tasks) == 1
    for name in journal.tasks:
        task = Task.load(out / name)
        facts = task.facts
        assert facts.category == "DevOps" and len(facts.fail_to_pass) + len(facts.held_out) >= 3
        assert facts.allowed_paths == ["pyproject.toml"] and facts.pass_to_pass
        hidden = facts.held_out[0].partition("::")[0]
        assert hidden in task.tests and hidden not in task.workspace
        source = task.tests.text(hidden)
        for prompt_style in ("terse", "plain", "detailed"):
            told = task.files.text(f"instructions/{prompt_style}.md")
            for word in ("shop.cli:main", "orjson>=3"):
                demanded = f"{word!r}" in source and word not in task.workspace.text("pyproject.toml")
                assert not demanded or word in told


def test_no_copy_of_the_metadata_is_left(made: tuple[Path, Journal]) -> None:
    out, journal = made
    workspace = Task.load(out / journal.tasks[0]).workspace
    assert workspace["PKG-INFO"] == b"Metadata-Version: 2.1\nName: shop\nVersion: 1.0\n"
    assert not any("egg-info" in path for path in workspace)
    left = without_metadata(Files({"uv.lock": b"x", "a/b.egg-info/requires.txt": b"x", "src/a.py": b"x"}))
    assert list(left) == ["src/a.py"]


def test_another_file_that_says_it_is_a_leak(made: tuple[Path, Journal]) -> None:
    out, journal = made
    task = Task.load(out / journal.tasks[0])
    facts = {
        "entry_points": {"console_scripts": {"deliver": "shop.cli:main"}},
        "requirements": {"": [], "fast": ["orjson"]},
    }
    assert copied(task, facts, ("scripts", "extras")) == ""
    for text in (b"deliver = 'shop.cli:main'", b'Requires-Dist: orjson; extra == "fast"\n'):
        told = replace(task, files=task.files.replaced({"environment/workspace/notes.txt": text}))
        assert copied(told, facts, ("scripts", "extras")).startswith("notes.txt says ")
        assert copied(told, facts, ("version",)) == ""


def test_the_reference_solves_null_and_stub_do_not_and_the_check_agrees(
    sandboxes: Sandboxes, made: tuple[Path, Journal]
) -> None:
    loop, host = sandboxes
    out, journal = made
    task = Task.load(out / journal.tasks[0])
    setup = build_setup(HarnessSettings(), RewardSettings(), GraderSettings())
    for policy, passed in (("reference", True), ("null", False), ("stub", False)):
        outcome = loop.run_until_complete(run_rollout(task, scripted(policy, task), host, setup))
        assert isinstance(outcome, Scored), outcome
        assert outcome.passed is passed, outcome.grade.reason
    report = loop.run_until_complete(check(task, host))
    assert report.ok, report.problems


def test_settings_of_the_runner_do_not_reach_the_grader(sandboxes: Sandboxes, made: tuple[Path, Journal]) -> None:
    loop, host = sandboxes
    out, journal = made
    task = Task.load(out / journal.tasks[0])
    text = task.solution.text("pyproject.toml").replace("no:cacheprovider", "no:python").encode()
    found = loop.run_until_complete(grade(task, host, submission_of(task, {"pyproject.toml": text}), quick=True))
    assert not found.passed and found.refused[0][0] == "pyproject.toml"


def test_the_same_seed_proposes_the_same_and_a_second_start_repeats_nothing(
    sandboxes: Sandboxes,
    tiny_environment: Environment,
    building: Environment,
    shop_to_build: Repo,
    made: tuple[Path, Journal],
) -> None:
    loop, host = sandboxes
    out, journal = made
    again = loop.run_until_complete(
        make_tasks(shop_to_build, tiny_environment, host, MakeRequest(1, out, origins=("devops",)), building=building)
    )
    assert again.tasks == journal.tasks and again.tried == journal.tried
