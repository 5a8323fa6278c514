"""A commit's change to the code is undone in today's tree where that still fits, and its tests are known."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from etude.core.errors import EtudeError
from etude.forge.languages.base import LocatedTest
from etude.forge.languages.python.repository import PythonRepository
from etude.forge.origins.commit.instruct import category, instruct
from etude.forge.origins.commit.propose import commits, own_tests
from etude.forge.steps.candidate import LeftOut
from etude.forge.steps.code_change import CodeChange
from etude.forge.steps.hide_tests import split

Build = Callable[..., PythonRepository]
History = Callable[[list[tuple[str, dict[str, str]]]], Path]

START = "def add(a, b):\n    return a + b\n\n\ndef keep():\n    return 1\n"
FIXED = "def add(a, b):\n    if a is None:\n        return b\n    return a + b\n\n\ndef keep():\n    return 1\n"
GROWN = f'"""Sums."""\n\n{FIXED}\n\ndef double(a):\n    """Return it twice."""\n    return add(a, a)\n'
TESTS = "from tiny import add\n\n\ndef test_add():\n    assert add(1, 2) == 3\n"
MORE = f"{TESTS}\n\ndef test_none():\n    assert add(None, 2) == 2\n"
LAST = f"{MORE}\n\ndef test_double():\n    assert double(2) == 4\n"
STEPS = [
    ("Start", {"tiny.py": START, "tests/test_tiny.py": TESTS}),
    ("Fix add of nothing (#12)", {"tiny.py": FIXED, "tests/test_tiny.py": MORE}),
    ("Docs", {"README.md": "tiny"}),
    ("Double numbers", {"tiny.py": GROWN, "tests/test_tiny.py": LAST}),
]
FILES = {"tiny.py": GROWN, "tests/test_tiny.py": LAST, "README.md": "tiny"}
TRACES = {f"tests/test_tiny.py::test_{name}": {"tiny.py:add"} for name in ("add", "none", "double")}


def test_commits_with_tests_are_undone_newest_first(build_repository: Build, history: History) -> None:
    repository = build_repository(FILES, TRACES, ("",))
    found = list(commits(repository, history(STEPS)))
    assert [each.about for each in found] == ["Double numbers", "Fix add of nothing"]
    newest, fix = found
    assert newest.changes == {"tiny.py": FIXED.encode()}
    assert [(piece.name, piece.gone) for piece in newest.pieces] == [("double", True)]
    assert fix.changes == {"tiny.py": GROWN.replace("    if a is None:\n        return b\n", "").encode()}
    assert [(piece.name, piece.gone) for piece in fix.pieces] == [("add", False)]
    assert (category(newest), category(fix)) == ("new feature", "debugging")


def test_a_commit_s_own_tests_are_known(build_repository: Build, history: History) -> None:
    repository = build_repository(FILES, TRACES, ("",))
    path = history(STEPS)
    newest, fix = commits(repository, path)
    assert own_tests(repository, path, newest.how) == {LocatedTest("tests/test_tiny.py", "test_double")}
    assert own_tests(repository, path, fix.how) == {LocatedTest("tests/test_tiny.py", "test_none")}


def test_a_commit_whose_lines_changed_since_is_left_out(build_repository: Build, history: History) -> None:
    later = FIXED.replace("return b", "return 0 + b")
    steps = [*STEPS[:2], ("Other lines", {"tiny.py": later})]
    repository = build_repository({**FILES, "tiny.py": later, "tests/test_tiny.py": MORE}, TRACES, ("",))
    assert list(commits(repository, history(steps))) == []


def test_what_is_no_history_is_said(build_repository: Build, tmp_path: Path) -> None:
    with pytest.raises(EtudeError, match="git cannot read the history"):
        list(commits(build_repository(FILES, TRACES, ("",)), tmp_path))


def test_commits_that_are_left_out_are_told_with_the_reason(build_repository: Build, history: History) -> None:
    repository = build_repository(FILES, TRACES, ("",))
    told: list[LeftOut] = []
    assert len(list(commits(repository, history(STEPS), told.append))) == 2
    assert [(each.detail, each.reason) for each in told] == [
        ("Docs", "the commit changes no code"),
        ("Start", "the commit changes no code"),  # the first one has nothing to be compared with
    ]


def test_a_fix_with_one_regression_test_holds_it_out(build_repository: Build, history: History) -> None:
    repository = build_repository(FILES, TRACES, ("",))
    fix = list(commits(repository, history(STEPS)))[1]
    assert (fix.least_tests, fix.least_places) == (1, 1)
    parted = split(repository, fix, ["tests/test_tiny.py::test_none"], random.Random(0))
    assert parted is not None and parted.shown == () and parted.held_out == ("tests/test_tiny.py::test_none",)
    text = instruct(repository, CodeChange(fix, split=parted, kept=()), random.Random(0))
    assert "`add`" in text.plain and "`tiny.py`" in text.plain
    assert not re.search("pass|tests for it", text.plain)  # none is shown
    assert "## Tests" not in text.detailed
