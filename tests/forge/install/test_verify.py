"""How many tests have to pass: those that want what no sandbox has do not count against an environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from etude.forge.environments.suite_run import SuiteRun
from etude.forge.install.checkout import Repo
from etude.forge.install.install import with_advice
from etude.forge.install.result import InstallFailed
from etude.forge.install.verify import check_run
from etude.sandbox.base import Layer

NO_GIT = "E   git.exc.InvalidGitRepositoryError: /workspace"


def run_of(passed: int, failed: int, says: str) -> SuiteRun:
    red = [f"tests/test_a.py::test_red{number}" for number in range(failed)]
    green = [f"tests/test_a.py::test_green{number}" for number in range(passed)]
    return SuiteRun(
        {**dict.fromkeys(green, "passed"), **dict.fromkeys(red, "failed")},
        *(1.0, True, ""),
        texts=dict.fromkeys(red, says),
    )


def test_tests_that_want_a_git_repository_are_left_aside(tmp_path: Path) -> None:
    workspace = Layer("", tmp_path)
    check_run(run_of(62, 8, NO_GIT), workspace, 60.0)
    with pytest.raises(
        InstallFailed, match=r"8 of 70 tests fail \(all in tests/test_a\.py\): tests/test_a\.py::test_red0: V"
    ):
        check_run(run_of(62, 8, "E   ValueError"), workspace, 60.0)


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("7 of 64 tests fail (all in tests/test_memcached.py): 1 != None", "--deselect"),
        ("only 6 tests pass, and 10 are needed: ValueError", "--policy"),
        ("pip cannot install it: error: command 'gcc' failed", "NAME==VERSION"),
        ("only 0 tests pass, and 10 are needed", "clone its repository"),
        ("only 0 tests pass, and 10 are needed: test/test_a.py::test_b: Failed: no plugin", "--policy"),
        ("3 of 9 tests fail: FileNotFoundError: tests/data.txt", "clone its repository"),
        ("shop is installed, but no folder of the repository holds it", "--policy"),
        (
            "the suite could not be run (pytest's code 4): E   ImportError: cannot import name 'getargspec' from "
            "'inspect' (/usr/lib/python3.11/inspect.py)",
            "an older Python",
        ),
        ("only 0 tests pass: AttributeError: module 'collections' has no attribute 'Callable'", "an older Python"),
        (
            "only 0 tests pass: t_test.py: ImportError: cannot import name '_shop' from partially initialized module "
            "'shop' (most likely due to a circular import)",
            "compiled module is missing",
        ),
        ("only 2 tests pass: cannot import name 'a' from 'b' (/opt/lib/python3.11/site-packages/b.py)", "--policy"),
        (
            "only 5 tests pass: test_a.py::test_b: FileNotFoundError: a.sock (mocked commands that only succeed: soak)",
            "which this machine does not have",
        ),
        ("the suite takes over 300 s: give more time: --suite-seconds 1200", "--suite-seconds"),
    ],
)
def test_every_refusal_says_what_to_do(tmp_path: Path, reason: str, advice: str) -> None:
    said = with_advice(reason, Repo("shop", "1.0", "package", tmp_path, None))
    assert said.startswith(reason) and advice in said


@pytest.mark.parametrize(("passed", "says"), [(5, "only 5 tests pass, and 10 are needed"), (20, "30 of 50 tests fail")])
def test_an_environment_in_which_hardly_anything_runs_is_none(passed: int, says: str, tmp_path: Path) -> None:
    with pytest.raises(InstallFailed, match=rf"{says} \(30 want a network or a git repository"):
        check_run(run_of(passed, 30, NO_GIT), Layer("", tmp_path), 60.0)
