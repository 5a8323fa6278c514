"""What belongs to the project and what to its tests, and what a task made of it may change."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from etude.forge.environments.environment import Suite
from etude.forge.languages.python.repository import PythonRepository
from etude.forge.languages.python.tests import timing_tests
from etude.forge.steps.candidate import Candidate
from etude.forge.steps.write import allowed_paths, choose_kept

Build = Callable[..., PythonRepository]

INSIDE = {
    "setup.py": "",
    "docs/conf.py": "x = 1\n",
    "pkg/__init__.py": "",
    "pkg/core.py": "def f():\n    return 1\n",
    "pkg/testing.py": "def helper():\n    return 1\n",
    "pkg/tests/__init__.py": "",
    "pkg/tests/test_core.py": "def test_f():\n    pass\n",
    "pkg/tests/test_more.py": "def test_g():\n    pass\n",
    "pkg/tests/test_others.py": "def test_h():\n    pass\n",
    "pkg/tests/data.txt": "",
    "conftest.py": "",
}


@pytest.mark.parametrize("folders", [("pkg",), ("pkg/tests",), (".",)])
def test_tests_inside_the_package_are_told_from_it(build_repository: Build, folders: tuple[str, ...]) -> None:
    repository = build_repository(INSIDE, {}, ("",))
    repository = replace(repository, environment=replace(repository.environment, suite=Suite("pytest", folders)))
    assert set(repository.modules) == {"pkg/__init__.py", "pkg/core.py", "pkg/testing.py"}
    assert len(repository.tests) == 5 and "pkg/tests/__init__.py" in repository.tests


def test_a_folder_of_tests_by_another_name_is_one(build_repository: Build) -> None:
    files = {"pkg/core.py": "", "checks/test_a.py": "", "checks/test_b.py": "", "checks/shared.py": ""}
    repository = build_repository(files, {}, ("",))
    repository = replace(repository, environment=replace(repository.environment, suite=Suite("pytest", ("checks",))))
    assert set(repository.modules) == {"pkg/core.py"}


def test_the_project_s_folders_may_change_and_its_tests_and_settings_not(build_repository: Build) -> None:
    repository = build_repository(INSIDE, {}, ("",))
    candidate = Candidate("deletion", "bodies", {"pkg/core.py": b""}, ())
    assert allowed_paths(repository, candidate) == ["pkg/*.py"]


def test_where_tests_lie_beside_the_code_only_changed_files_are_allowed(build_repository: Build) -> None:
    files = {"one.py": "", "test_one.py": "", "pkg/a.py": "", "pkg/test_a.py": "", "pkg/sub/b.py": ""}
    repository = build_repository(files, {}, ("",))
    candidate = Candidate("deletion", "bodies", {"one.py": b"", "pkg/a.py": b"", "pkg/sub/b.py": b""}, ())
    assert allowed_paths(repository, candidate) == ["pkg/sub/*.py", "one.py", "pkg/a.py"]


def test_tests_near_the_change_are_kept_first_and_parameters_together(build_repository: Build) -> None:
    near = {f"tests/test_a.py::test_near[{n}]": {"src/a.py:f"} for n in range(50)}
    far = {f"tests/test_b.py::test_far{n}": {"src/b.py:g"} for n in range(600)}
    files = {"src/a.py": "def f(): return 1\n", "src/b.py": "def g(): return 1\n"}
    repository = build_repository(files, {**near, **far})
    candidate = Candidate("deletion", "bodies", {"src/a.py": b""}, ())
    kept = choose_kept(repository, candidate, repository.green, random.Random(0))
    assert len(kept) == 300 and set(near) <= set(kept)


def test_tests_that_take_long_are_left_to_those_who_make_the_task(build_repository: Build) -> None:
    traces = {f"tests/test_a.py::test_{n}": {"src/a.py:f"} for n in range(9)}
    slow, *others = sorted(traces)
    lazy = "tests/test_b.py::test_that_waits_for_its_file"
    took = {slow: 60.0, others[0]: 3.0, "tests/test_b.py": 9.0}
    repository = replace(
        build_repository({"src/a.py": "def f(): return 1\n"}, {**traces, lazy: {"src/a.py:f"}}), took=took
    )
    asked = repository, Candidate("bug", "", {"src/a.py": b""}, ()), repository.green, random.Random(0)
    assert choose_kept(*asked) == others
    assert choose_kept(*asked, read=["tests/test_b.py"]) == [*others, lazy]


def test_an_inherited_test_is_kept_once(build_repository: Build) -> None:
    text = "class TestA:\n    def test_x(self):\n        pass\n\n\nclass TestB(TestA):\n    pass\n"
    ids = ("tests/test_a.py::TestA::test_x", "tests/test_a.py::TestB::test_x")
    repository = build_repository({"tests/test_a.py": text}, {name: set() for name in ids})
    assert choose_kept(repository, Candidate("bug", "", {}, ()), repository.green, random.Random(0)) == [ids[0]]


def test_tests_that_take_the_time_judge_nobody(build_repository: Build) -> None:
    helper = "import time\n\n\ndef measured(work):\n    before = time.perf_counter()\n    work()\n"
    tests = "def test_fast():\n    assert timeit('1') < 1\n\n\ndef test_linear():\n    assert measured(list) < 1\n"
    tests += "\n\ndef test_late():\n    assert time.time() > 0\n"
    traces = {
        "tests/test_a.py::test_fast": {"tests/test_a.py:test_fast"},
        "tests/test_a.py::test_linear": {"tests/test_a.py:test_linear", "tests/clocks.py:measured"},
        "tests/test_a.py::test_late": {"tests/test_a.py:test_late"},
    }
    repository = build_repository({"tests/clocks.py": helper, "tests/test_a.py": tests}, traces)
    assert timing_tests(repository) == {"tests/test_a.py::test_fast", "tests/test_a.py::test_linear"}


def test_doctests_are_asked_of_nobody(build_repository: Callable[..., PythonRepository]) -> None:
    files = {
        "src/shop/text.py": 'def f():\n    """\n    >>> f()\n    """\n',
        "tests/test_text.py": "def test_f():\n    pass\n\n\nclass T:\n    def test_a_b(self):\n        pass\n",
    }
    traces = {
        "src/shop/text.py::shop.text.f": set(),
        "tests/test_text.py::test_f[a.b]": set(),
        "tests/test_text.py::T::test_a_b": set(),
        "tests/test_text.py::tests.test_text.helper": set(),
        "tests/test_text.py::test_text": set(),
        "docs/a.rst::a.rst": set(),
    }
    repository = build_repository(files, traces)
    asked = [test for test in repository.green if repository.stands_in_tests(test)]
    assert asked == ["tests/test_text.py::T::test_a_b", "tests/test_text.py::test_f[a.b]"]
