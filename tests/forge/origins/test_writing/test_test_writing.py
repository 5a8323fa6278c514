"""Tests that somebody is to write: functions lose theirs, and mistakes are found that only those notice."""

from __future__ import annotations

import asyncio
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from etude.forge.environments.environment import Environment
from etude.forge.install.checkout import Repo
from etude.forge.languages.base import LocatedTest
from etude.forge.languages.python.repository import PythonRepository
from etude.forge.languages.python.source import Module
from etude.forge.origins.test_writing.propose import take_out, untested_functions
from etude.forge.pipeline.journal import Journal
from etude.forge.pipeline.make import make_tasks
from etude.forge.steps.context import MakeRequest
from etude.policies.scripted import scripted
from etude.rollout.rollout import Scored, build_setup, run_rollout
from etude.sandbox.hosts import StoringHost
from etude.tasks.format.task import Task
from etude.tasks.kinds.mutants import mutants, needed
from tests.forge.small_repositories import FILES, write_tree

# No plugin of ours takes its time, and nothing is left in the tree.
PLAIN = {"PATH": "/usr/bin:/bin", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"}
pytestmark = pytest.mark.usefixtures("workspace_alone_is_audited")
Sandboxes = tuple[asyncio.AbstractEventLoop, StoringHost]

DATES = '''"""Days of a year."""

LENGTHS = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]


def is_leap(year):
    """Say whether a year has a day more."""
    if year % 400 == 0:
        return True
    return year % 4 == 0 and year % 100 != 0


def length(year, month):
    """Return the days of a month, 1 to 12."""
    if not 1 <= month <= 12:
        raise ValueError(month)
    extra = 1 if month == 2 and is_leap(year) else 0
    return LENGTHS[month - 1] + extra


def number(year, month, day):
    """Return which day of its year a day is, from 1."""
    total = day
    for before in range(1, month):
        total = total + length(year, before)
    return total
'''
TESTS = """import pytest

from shop.dates import is_leap, length, number


@pytest.mark.parametrize(("year", "leap"), [(2000, True), (1900, False), (2024, True), (2023, False)])
def test_leap(year, leap):
    assert is_leap(year) is leap


def test_leap_of_centuries():
    assert [is_leap(year) for year in (1600, 1700, 1800)] == [True, False, False]


def test_length():
    assert [length(2023, month) for month in (1, 2, 4, 12)] == [31, 28, 30, 31]


def test_february():
    assert (length(2024, 2), length(1900, 2)) == (29, 28)


@pytest.mark.parametrize("month", [0, 13])
def test_no_month(month):
    with pytest.raises(ValueError):
        length(2023, month)


def test_first():
    assert number(2023, 1, 1) == 1


def test_last():
    assert (number(2023, 12, 31), number(2024, 12, 31)) == (365, 366)


def test_march():
    assert number(2023, 3, 2) == 61
"""


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Repo:
    files = {**FILES, "src/shop/dates.py": DATES, "tests/test_dates.py": TESTS}
    return Repo("dates", "1.0", "path", write_tree(tmp_path_factory.mktemp("dates"), files), None)


@pytest.fixture(scope="module")
def make(sandboxes: Sandboxes, tiny_environment: Environment, repo: Repo) -> Callable[..., Journal]:
    loop, host = sandboxes

    def run(out: Path, count: int, **wanted: Any) -> Journal:
        asked = MakeRequest(count, out, origins=("testing",), **wanted)
        return loop.run_until_complete(make_tasks(repo, tiny_environment, host, asked))

    return run


@pytest.fixture(scope="module")
def made(make: Callable[..., Journal], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Task]]:
    out = tmp_path_factory.mktemp("testing")
    return out, [Task.load(out / name) for name in make(out, 2).tasks]


def test_a_task_has_mistakes_a_place_for_tests_and_none_of_the_old_ones(made: tuple[Path, list[Task]]) -> None:
    _, tasks = made
    assert len(tasks) == 2
    for task in tasks:
        facts = task.facts
        assert facts.testing is not None and facts.category == "testing" and 1 <= facts.level <= 5
        assert facts.allowed_paths == [facts.testing.file] and facts.testing.file not in task.workspace
        assert 4 <= len(mutants(task)) <= 6 and needed(task) >= 0.66 * len(mutants(task))
        written = Module.read("t.py", task.solution[facts.testing.file])
        assert written is not None
        names = [each.short for each in written.definitions.values() if each.short.startswith("test")]
        here = " ".join(task.workspace.text(path) for path in task.workspace if path.startswith("tests/"))
        assert names and not any(f"def {name}(" in here for name in names)
        for prompt_style in ("terse", "plain", "detailed"):
            assert facts.testing.file in task.worded(prompt_style).instruction


def test_pytest_alone_says_the_same_of_the_reference_and_of_what_is_left(
    made: tuple[Path, list[Task]], tmp_path: Path
) -> None:
    """Without our sandbox, runner or reporter: files on a disk, and the exit code of pytest."""

    def code(*places: str) -> int:
        done = subprocess.run(
            [sys.executable, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", *places],
            cwd=tree,
            env=PLAIN | {"PYTHONPATH": str(tree / "src")},
            capture_output=True,
        )
        return done.returncode

    task = made[1][0]
    assert task.facts.testing is not None
    file, tree = task.facts.testing.file, tmp_path / "tree"
    task.workspace.write(tree)
    assert code("tests") == 0
    (tree / file).write_bytes(task.solution[file])
    assert code(file) == 0
    for files in mutants(task).values():
        for path, data in files.items():
            (tree / path).write_bytes(data)
        assert code(file) == 1
        assert code("tests", f"--ignore={file}") == 0  # no test that is left notices
        for path in files:
            (tree / path).write_bytes(task.workspace[path])


def test_the_reference_passes_and_is_honest_and_null_does_not_pass(
    made: tuple[Path, list[Task]], sandboxes: Sandboxes
) -> None:
    loop, host = sandboxes
    task = made[1][0]
    for policy, passed in (("reference", True), ("null", False)):
        outcome = loop.run_until_complete(run_rollout(task, scripted(policy, task), host, build_setup()))
        assert isinstance(outcome, Scored) and outcome.passed is passed, outcome
        assert outcome.ruling is not None and outcome.ruling.verdict == "clean"


def test_the_script_for_harbor_counts_mistakes(made: tuple[Path, list[Task]], tmp_path: Path) -> None:
    task = made[1][0]
    assert task.facts.testing is not None
    app, tests, logs = tmp_path / "app", tmp_path / "tests", tmp_path / "logs"
    task.tests.write(tests)
    (logs / "verifier").mkdir(parents=True)
    script = task.tests.text("test.sh")
    for name, place in (("/tmp/app", tmp_path / "kept"), ("/app", app), ("/tests", tests), ("/logs", logs)):
        script = script.replace(name, str(place))
    script = script.replace("python -B", f"{sys.executable} -B")
    for text, reward in ((task.solution[task.facts.testing.file], "1\n"), (b"def test():\n    pass\n", "0\n")):
        shutil.rmtree(app, ignore_errors=True)
        shutil.rmtree(tmp_path / "kept", ignore_errors=True)
        task.workspace.write(app)
        (app / task.facts.testing.file).write_bytes(text)
        env = PLAIN | {"PYTHONPATH": str(app / "src")}
        subprocess.run(["sh", "-c", script], env=env, check=True, capture_output=True)
        assert (logs / "verifier/reward.txt").read_text() == reward


def test_the_same_seed_gives_the_same_task(
    make: Callable[..., Journal], made: tuple[Path, list[Task]], tmp_path: Path
) -> None:
    (name,) = make(tmp_path, 1, workers=1).tasks
    assert Task.load(tmp_path / name).digest == made[1][0].digest


def test_functions_are_proposed_once_with_all_tests_that_reach_them(shop_repository: PythonRepository) -> None:
    found = list(untested_functions(shop_repository, random.Random(1)))
    assert found and len({each.key for each in found}) == len(found)
    assert [each.key for each in untested_functions(shop_repository, random.Random(1))] == [each.key for each in found]
    for each in found:
        ids = {piece.id for piece in each.pieces}
        assert each.expected == {test for test in shop_repository.green if shop_repository.traces[test] & ids}


def test_what_goes_from_one_file_is_the_reference(shop_repository: PythonRepository) -> None:
    asked = next(untested_functions(shop_repository, random.Random(1)))
    tests = ("TestCart.test_total", "TestCart.test_discount", "test_add_nothing")
    gone = {
        *(LocatedTest("tests/test_cart.py", name) for name in tests),
        LocatedTest("tests/test_money.py", "test_show"),
    }
    made = take_out(shop_repository, asked, gone, "tests/test_cart.py")
    assert made is not None and made.file.startswith("tests/test_") and made.file not in shop_repository.files
    kept = Module.read(made.file, made.reference)
    assert kept is not None and {name for name in kept.definitions if "test_" in name} == set(tests)
    for path, data in made.changes.items():
        left = Module.read(path, data or b"")
        assert left is not None and not {place.name for place in gone if place.path == path} & set(left.definitions)
