"""Docstrings that somebody is to write: functions lose theirs, and mistakes are found that their examples notice."""

from __future__ import annotations

import ast
import asyncio
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from etude.forge.environments.environment import Environment
from etude.forge.install.checkout import Repo
from etude.forge.origins.docstrings.propose import documented_functions
from etude.forge.pipeline.journal import Journal
from etude.forge.pipeline.make import make_tasks
from etude.forge.steps.context import MakeRequest
from etude.policies.scripted import scripted
from etude.rollout.rollout import Scored, build_setup, run_rollout
from etude.sandbox.hosts import StoringHost
from etude.tasks.format.task import Task
from etude.tasks.kinds.docstring_examples import differs_in_code
from etude.tasks.kinds.mutants import mutants, needed
from tests.forge.small_repositories import FILES, Build, write_tree

PLAIN = {"PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
pytestmark = pytest.mark.usefixtures("workspace_alone_is_audited")
Sandboxes = tuple[asyncio.AbstractEventLoop, StoringHost]
PATH = "src/shop/dates.py"
EXAMPLES = """    >>> [is_leap(year) for year in (1900, 2000, 2023, 2024)]
    [False, True, False, True]
    >>> is_leap(1600), is_leap(1700), is_leap(1800), is_leap(2100)
    (True, False, False, False)
"""
DATES = f'''"""Days of a year."""


def is_leap(year):
    """Say whether a year has a day more.

{EXAMPLES}    """

    if year % 400 == 0:
        return True
    return year % 4 == 0 and year % 100 != 0


def clamp(number, low, high):
    """Return the number, or the bound that it is over: low or high.

    >>> [clamp(number, 2, 5) for number in range(8)]
    [2, 2, 2, 3, 4, 5, 5, 5]
    >>> clamp(3, 7, high=9)
    7
    """
    if number < low:
        return low
    if number > high:
        return high
    return number


def half(number):
    """Return half of it.

    >>> half(4)
    2
    """
    return number // 2


def other(number, unused=None):
    """Return it.

    >>> other(4), other(5)
    (4, 5)
    >>> other(6)
    6
    """
    return number + 0
'''


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Repo:
    files = {**FILES, PATH: DATES, "docs/leap.rst": f"Leap years\n==========\n\n{EXAMPLES}"}
    return Repo("dates", "1.0", "path", write_tree(tmp_path_factory.mktemp("dates"), files), None)


@pytest.fixture(scope="module")
def made(
    sandboxes: Sandboxes, tiny_environment: Environment, repo: Repo, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Journal, list[Task]]:
    loop, host = sandboxes
    out = tmp_path_factory.mktemp("documentation")
    asked = MakeRequest(2, out, origins=("documentation",), workers=1)
    journal = loop.run_until_complete(make_tasks(repo, tiny_environment, host, asked))
    return journal, [Task.load(out / name) for name in journal.tasks]


def test_a_task_has_mistakes_and_neither_docstrings_nor_copies_of_them(
    made: tuple[Journal, list[Task]], repo: Repo
) -> None:
    journal, tasks = made
    assert tasks, [entry.reason for entry in journal.entries]
    for task in tasks:
        asked = task.facts.documentation
        assert asked is not None and task.facts.category == "documentation" and task.facts.allowed_paths == [PATH]
        text = task.workspace.text(PATH)
        assert not differs_in_code(DATES, text) and task.solution.text(PATH) == DATES
        for name in asked.functions:
            (node,) = [
                each
                for each in ast.parse(text).body
                if isinstance(each, ast.FunctionDef) and f"{PATH}:{each.name}" == name
            ]
            assert ast.get_docstring(node) is None
        if f"{PATH}:is_leap" in asked.functions:
            assert "docs/leap.rst" not in task.workspace  # it has the same examples
        assert 4 <= len(mutants(task)) <= 6 and needed(task) >= 0.66 * len(mutants(task))
        for prompt_style in ("terse", "plain", "detailed"):
            told = task.worded(prompt_style).instruction
            assert all(name.partition(":")[2] in told for name in asked.functions) and PATH in told


def test_doctest_alone_says_the_same_of_the_reference(made: tuple[Journal, list[Task]], tmp_path: Path) -> None:
    """Without our sandbox, reader or runner: the whole file with docstrings, and the exit code of doctest."""
    task = made[1][0]
    for number, mutant in enumerate([{}, *mutants(task).values()]):
        text = DATES
        if mutant:
            before, after = task.workspace.text(PATH).splitlines(), mutant[PATH].decode().splitlines()
            wrong = [(old, new) for old, new in zip(before, after, strict=False) if old != new]
            if len(before) != len(after):
                continue  # a lost statement moves all lines
            ((old, new),) = wrong
            assert DATES.count(old) == 1
            text = DATES.replace(old, new)
        file = tmp_path / f"dates{number}.py"
        file.write_text(text)
        done = subprocess.run([sys.executable, "-m", "doctest", str(file)], env=PLAIN, capture_output=True)
        assert bool(done.returncode) == bool(mutant), done.stdout


def test_the_reference_passes_and_is_honest_and_null_does_not_pass(
    made: tuple[Journal, list[Task]], sandboxes: Sandboxes
) -> None:
    loop, host = sandboxes
    task = made[1][0]
    for policy, passed in (("reference", True), ("null", False)):
        outcome = loop.run_until_complete(run_rollout(task, scripted(policy, task), host, build_setup()))
        assert isinstance(outcome, Scored) and outcome.passed is passed, outcome
        assert outcome.ruling is not None and outcome.ruling.verdict == "clean"


def test_the_script_for_harbor_counts_mistakes(made: tuple[Journal, list[Task]], tmp_path: Path) -> None:
    task = made[1][0]
    app, tests, logs = tmp_path / "app", tmp_path / "tests", tmp_path / "logs"
    task.tests.write(tests)
    (logs / "verifier").mkdir(parents=True)

    def placed(text: str) -> str:
        for name, place in (("/tmp/app", tmp_path / "kept"), ("/app", app), ("/tests", tests), ("/logs", logs)):
            text = text.replace(name, str(place))
        return text.replace("python -B", f"{sys.executable} -B")

    (tests / "examples.py").write_text(placed(task.tests.text("examples.py")))
    for data, reward in ((task.solution[PATH], "1\n"), (task.workspace[PATH], "0\n")):
        shutil.rmtree(app, ignore_errors=True)
        shutil.rmtree(tmp_path / "kept", ignore_errors=True)
        task.workspace.write(app)
        (app / PATH).write_bytes(data)
        env = PLAIN | {"PYTHONPATH": str(app / "src")}
        subprocess.run(["sh", "-c", placed(task.tests.text("test.sh"))], env=env, check=True, capture_output=True)
        assert (logs / "verifier/reward.txt").read_text() == reward


def test_functions_with_few_examples_or_unnamed_parameters_are_left_out(build_repository: Build) -> None:
    repository = build_repository({PATH: DATES, "tests/test_a.py": ""}, {"tests/test_a.py::test": set(), "": set()})
    found = list(documented_functions(repository, random.Random(1)))
    names = {piece.name for each in found for piece in each.pieces}
    assert names == {"is_leap", "clamp"} and len({each.key for each in found}) == len(found)
    assert [each.key for each in documented_functions(repository, random.Random(1))] == [each.key for each in found]
