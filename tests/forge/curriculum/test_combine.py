"""Two tasks as one: whose file is taken, what is asked of the tests, and which pairs do not fit."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from etude.forge.curriculum import composite_tasks
from etude.forge.curriculum.composite_tasks import combine, pairs
from etude.forge.curriculum.curriculum import Curriculum
from etude.forge.curriculum.sources import MakesTasks, open_source
from etude.tasks.format.config import Facts, Installed, Withheld
from etude.tasks.format.file_tree import Files
from etude.tasks.format.task import Task
from etude.tasks.grading.withheld.answers import Answers, answers_of

WHOLE = {"shop/a.py": b"def a(): return 1\n", "shop/b.py": b"def b(): return 2\n", "shop/__init__.py": b""}
TESTS = {"tests/test_a.py": b"whole a\n", "tests/test_b.py": b"whole b\n"}
HERE = Installed(digest="ab" * 32)


def task(letter: str, *, gone: str | None = None, digest: Installed = HERE) -> Task:
    """One function and half of its tests are missing."""
    path = gone or f"shop/{letter}.py"
    seen = {**WHOLE, **TESTS, path: b"# deleted for " + letter.encode(), f"tests/test_{letter}.py": b"half\n"}
    facts = Facts(
        level=2,
        fail_to_pass=[f"tests/test_{letter}.py::seen"],
        held_out=[f"tests/test_{letter}.py::hidden"],
        pass_to_pass=["tests/test_a.py::seen", "tests/test_b.py::seen", "tests/test_c.py::x"],
        deleted=[f"{path}:{letter}"],
        allowed_paths=["shop/*.py"],
        environment=digest,
    )
    files = {
        **{f"environment/workspace/{path}": data for path, data in seen.items()},
        **{f"tests/{path}": data for path, data in TESTS.items()},
        f"solution/files/{path}": WHOLE[path],
        "instructions/terse.md": f"fix {letter}".encode(),
    }
    return Task(f"shop-{letter}", f"Write {letter} again.\n", facts=facts, files=Files(files))


def test_both_pieces_are_missing_and_every_test_of_both_counts() -> None:
    found = combine(task("a"), task("b"))
    assert found is not None
    assert found.workspace["shop/a.py"] == b"# deleted for a" and found.workspace["shop/b.py"] == b"# deleted for b"
    assert found.workspace["tests/test_a.py"] == found.workspace["tests/test_b.py"] == b"half\n"
    assert dict(found.solution) == {path: WHOLE[path] for path in ("shop/a.py", "shop/b.py")}
    assert found.facts.fail_to_pass == ["tests/test_a.py::seen", "tests/test_b.py::seen"]
    assert found.facts.held_out == ["tests/test_a.py::hidden", "tests/test_b.py::hidden"]
    assert found.facts.pass_to_pass == ["tests/test_c.py::x"]
    assert found.facts.level == 3
    assert "Write a again." in found.instruction and "Write b again." in found.instruction
    assert "fix a" in found.files.text("instructions/terse.md") and "fix b" in found.files.text("instructions/terse.md")


def recorded(letter: str, site: int) -> Task:
    """A task whose own test file has a test more than the repository, and whose tests are graded by recorded values."""
    made = task(letter)
    own, other = f"tests/test_{letter}.py", f"tests/test_{'b' if letter == 'a' else 'a'}.py"
    records = {f"{own}::seen": [[site, "own"]], f"{own}::hidden": [[site, "held"]], f"{other}::seen": [[0, "stale"]]}
    answers = Answers(
        records=records | {"tests/test_c.py::x": [[0, "same"]]},
        homes={test: test.partition("::")[0] for test in (*records, "tests/test_c.py::x")},
        left={own: [f"left_by_{letter}"], other: ["not_its_file"]},
    )
    files = {**made.files, f"tests/{own}": TESTS[own] + b"with other inputs\n", "tests/answers.json": answers.write()}
    files |= {"tests/tests/test_c.py": b"c\n", "environment/workspace/tests/test_c.py": b"c\n"}
    worth = Withheld(plan=answers.plan, bits=20.0 + site, tests=1, assertions=site)
    return replace(made, facts=made.facts.model_copy(update={"withheld": worth}), files=Files(files))


def test_a_test_file_and_its_recorded_answers_come_from_the_task_that_holds_its_tests_out() -> None:
    first, second = recorded("a", 1), recorded("b", 3)
    found = combine(first, second)
    assert found is not None and found.workspace["tests/test_a.py"] == found.workspace["tests/test_b.py"] == b"half\n"
    for letter in "ab":
        assert found.tests[f"tests/test_{letter}.py"] == f"whole {letter}\nwith other inputs\n".encode()
    answers = answers_of(found)
    assert answers is not None and set(answers.records) == {
        *found.facts.fail_to_pass,
        *found.facts.held_out,
        *found.facts.pass_to_pass,
    }
    assert answers.records["tests/test_b.py::seen"] == [[3, "own"]] and answers.homes["tests/test_c.py::x"]
    assert answers.left == {"tests/test_a.py": ["left_by_a"], "tests/test_b.py": ["left_by_b"]}
    assert found.facts.withheld is not None and found.facts.withheld.bits == 44.0 and found.facts.withheld.tests == 2
    # One is graded by recorded values and the other is not, or a value is not known: no task.
    assert combine(first, task("b")) is None
    unknown = first.facts.model_copy(update={"fail_to_pass": ["tests/test_a.py::nowhere"]})
    assert combine(replace(first, facts=unknown), second) is None


def test_a_file_that_both_changed_makes_the_pair_unfit() -> None:
    assert combine(task("a"), task("b", gone="shop/a.py")) is None


def test_pairs_share_a_repository_and_nothing_that_was_deleted() -> None:
    a, b, elsewhere = task("a"), task("b"), task("b", digest=Installed(digest="cd" * 32))
    assert list(pairs([a, b, elsewhere])) == [(a, b)]
    assert not list(pairs([a, a]))


def asked_until_retired(source: Curriculum, number: int) -> int:
    """All rollouts of every task pass until none is left to ask; the next number."""
    while next(source.tasks(number), None) is not None:
        source.heard(number, 4, 4, 1)
        number += 1
    return number


def test_two_retired_tasks_become_a_harder_one_while_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, run = tmp_path / "tasks", tmp_path / "rl"
    run.mkdir()
    for letter in "ab":
        task(letter).save(folder / f"shop-{letter}")
    checked: list[str] = []

    async def check(found: Task, host: Any) -> SimpleNamespace:
        checked.append(found.name)
        return SimpleNamespace(ok=True)

    monkeypatch.setattr(composite_tasks, "check", check)
    host: Any = None

    def opened(**settings: int) -> Curriculum:
        source = open_source({"use": "curriculum", "path": str(folder), **settings})
        assert isinstance(source, Curriculum) and isinstance(source, MakesTasks)
        source.remember(run / "curriculum.db")
        return source

    assert asyncio.run(opened(combine=1).make_harder(host)) == ""  # nothing is solved yet
    number = asked_until_retired(opened(combine=1), 0)
    assert asyncio.run(opened().make_harder(host)) == "" and not checked  # nobody asked for any
    source = opened(combine=1)
    assert "made the harder task" in asyncio.run(source.make_harder(host)) and checked == ["shop-a--b"]
    assert next(source.tasks(number)).name == "shop-a--shop-b"
    again = opened(combine=1)  # after a kill
    assert next(again.tasks(number)).name == "shop-a--shop-b"
    assert asyncio.run(again.make_harder(host)) == "" and len(checked) == 1


def test_a_pair_that_makes_no_task_is_not_tried_again(tmp_path: Path) -> None:
    for letter in "ab":
        task(letter, gone="shop/a.py").save(tmp_path / "tasks" / f"shop-{letter}")
    source = open_source({"use": "curriculum", "path": str(tmp_path / "tasks"), "combine": 4})
    assert isinstance(source, Curriculum)
    source.remember(tmp_path / "curriculum.db")
    asked_until_retired(source, 0)
    host: Any = None
    assert "both change the same lines" in asyncio.run(source.make_harder(host))
    assert asyncio.run(source.make_harder(host)) == ""
