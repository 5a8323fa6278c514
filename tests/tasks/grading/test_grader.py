"""The grader on small tasks: what it accepts, what it rejects and why, and what is nobody's score."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from etude.core.errors import EtudeError
from etude.core.settings import GraderSettings
from etude.forge.katas.task_source import katas
from etude.sandbox.base import CommandResult, SandboxLimits
from etude.tasks.format.task import Task
from etude.tasks.grade import grade
from etude.tasks.grading.grader import GraderFailure
from etude.tasks.grading.test_plan import draw, processes_needed

TEST = "import unittest\nfrom shop import double\n\n\nclass T(unittest.TestCase):\n"
TEST += "    def test_a(self):\n        self.assertEqual(double(2), 4)\n"
HIDDEN = TEST.replace("double(2), 4", "double(7), 14").replace("class T", "class H")
TESTS = {"test_shop.py": TEST, "test_hidden.py": HIDDEN}
IDS: dict[str, Any] = {"fail_to_pass": ["test_shop.T.test_a"], "held_out": ["test_hidden.H.test_a"]}
DOUBLE = "def double(x):\n    return 2 * x\n"


def with_grading(task: Task, grading: str | None) -> Task:
    return dataclasses.replace(task, facts=task.facts.model_copy(update={"grading": grading}))


@pytest.fixture(params=["apart", "together"])
def task(request: pytest.FixtureRequest, make_task: Any) -> Task:
    return make_task(TESTS, {"shop.py": DOUBLE}, grading=request.param, **IDS)


def test_solution_is_accepted_and_nothing_else(grounds: Any, task: Task) -> None:
    found = grounds.grade(task)
    assert (found.passed, found.kind, found.reason, found.canaries) == (True, "passed", "", {})
    assert set(found.tests.values()) == {"passed"}
    assert found.apart == (task.facts.grading == "apart")
    assert found.checked >= 4
    assert found.backend == "local"
    null = grounds.grade(task, {})
    assert (null.passed, null.kind) == (False, "tests")
    assert list(null.tests) == ["test_shop.T.test_a", "test_hidden.H.test_a"]


def test_knowing_the_visible_tests_is_not_enough(grounds: Any, task: Task) -> None:
    found = grounds.grade(task, {"shop.py": b"def double(x):\n    return 4\n"})
    assert found.tests == {"test_shop.T.test_a": "passed", "test_hidden.H.test_a": "failed"}
    assert found.details["test_hidden.H.test_a"] == "AssertionError: 4 != 14"
    assert found.share == 0.5


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("def double(x):\n    while True:\n        pass\n", "time"),
        ("def double(x):\n    hog = []\n    while True:\n        hog.append(bytearray(1 << 24))\n", "memory"),
        ("import os\nos._exit(0)\n", "crash"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n", "crash"),
        ("def double(x:\n", "tests"),
        ("raise KeyboardInterrupt\n", "tests"),
        ("def double(x):\n    return double(x)\n", "tests"),
    ],
)
def test_code_that_misbehaves_is_a_failed_grade(grounds: Any, task: Task, code: str, kind: str) -> None:
    found = grounds.grade(task, {"shop.py": code.encode()})
    assert (found.passed, found.kind) == (False, kind)


def test_sleeping_code_meets_the_wall_clock(grounds: Any, task: Task) -> None:
    quick = GraderSettings(seconds=10, cpu_seconds=5)
    found = grounds.grade(task, {"shop.py": b"import time\ntime.sleep(60)\n"}, settings=quick)
    assert (found.kind, found.reason) == ("time", "the tests ran out of time")
    assert found.seconds < 50


def test_time_that_the_reference_has_to_wait_for_as_well_is_nobodys_score(grounds: Any, make_task: Any) -> None:
    waiting = f"import time\ntime.sleep(60)\n{DOUBLE}"
    task = make_task(TESTS, {"shop.py": waiting}, grading="together", **IDS)
    quick = GraderSettings(seconds=1, cpu_seconds=5)
    with pytest.raises(GraderFailure, match="own solution ran out of time too") as failure:
        grounds.grade(task, {"shop.py": waiting.encode()}, settings=quick)
    assert failure.value.cause == "busy"
    busy = grounds.grade(task, {"shop.py": b"while True:\n    pass\n"}, settings=GraderSettings(cpu_seconds=1))
    assert busy.kind == "time"


def test_skipped_expected_and_absent_tests_are_not_passed(grounds: Any, make_task: Any) -> None:
    test = TEST + (
        "    @unittest.skip('later')\n    def test_b(self):\n        pass\n"
        "    @unittest.expectedFailure\n    def test_c(self):\n        self.assertEqual(double(1), 3)\n"
        "    @unittest.expectedFailure\n    def test_d(self):\n        self.assertEqual(double(1), 2)\n"
        "    def test_e(self):\n        with self.subTest(1):\n            self.assertEqual(double(1), 3)\n"
        "    def test_f(self):\n        self.addCleanup(lambda: 1 / 0)\n"
    )
    names = [f"test_shop.T.test_{letter}" for letter in "abcdefg"]
    task = make_task({"test_shop.py": test}, {"shop.py": DOUBLE}, fail_to_pass=names, grading="together")
    found = grounds.grade(task)
    assert list(found.tests.values()) == ["passed", "skipped", "xfailed", "xpassed", "failed", "error", "error"]
    assert not found.passed


def test_only_allowed_files_arrive_and_deletions_count(grounds: Any, make_task: Any) -> None:
    test = TEST.replace(
        "double(2), 4", "double(2), 4)\n        self.assertFalse(__import__('os').path.exists('old.py')"
    )
    task = make_task(
        {"test_shop.py": test, "test_hidden.py": HIDDEN},
        {"shop.py": DOUBLE},
        {"shop.py": "", "old.py": "", "data.txt": ""},
        grading="together",
        **{**IDS, "allowed_paths": ["*.py"]},
    )
    files: dict[str, bytes | None] = {"shop.py": DOUBLE.encode(), "old.py": None}
    assert grounds.grade(task, files).passed
    more = {**files, "data.txt": b"x", "conftest.py": b"", "a/b.py": b"", "shop.pyc": b""}
    found = grounds.grade(task, more)
    assert found.passed
    assert sorted(path for path, _ in found.refused) == ["a/b.py", "conftest.py", "data.txt", "shop.pyc"]
    assert not grounds.grade(task, {"shop.py": DOUBLE.encode()}).passed


def test_helpers_folders_and_setup_of_tests_work(grounds: Any, make_task: Any) -> None:
    tests = {
        "deep/test_a.py": "import unittest\nfrom deep.helper import two\nfrom tests.deep import helper\nimport shop\n"
        "class T(unittest.TestCase):\n    @classmethod\n    def setUpClass(cls):\n        cls.base = 10\n"
        "    def setUp(self):\n        self.x = two()\n"
        "    def test_a(self):\n        self.assertEqual(shop.double(self.x) + self.base, 14)\n"
        "        self.assertEqual(helper.data(), 'two')\n",
        "deep/__init__.py": "",
        "deep/helper.py": "from pathlib import Path\ndef two():\n    return 2\n"
        "def data():\n    return (Path(__file__).parent / 'data.txt').read_text()\n",
        "deep/data.txt": "two",
        "test.sh": "",
    }
    for grading in ("apart", "together"):
        task = make_task(tests, {"shop.py": DOUBLE}, fail_to_pass=["deep.test_a.T.test_a"], grading=grading)
        assert grounds.grade(task).passed
        assert not grounds.grade(task, {"shop.py": b"def double(x): return 3"}).passed


def test_workspace_never_shadows_the_standard_library(grounds: Any, task: Task) -> None:
    shadows = dict.fromkeys(("json.py", "unittest.py", "os.py", "test_shop.py", "tests.py"), b"raise SystemExit\n")
    assert grounds.grade(task, {"shop.py": b"import json\n" + DOUBLE.encode(), **shadows}).passed


PYTEST = """
import pytest
from shop import double

@pytest.fixture
def three():
    return 3

@pytest.mark.parametrize("x, y", [(1, 2), (2, 4)])
def test_pairs(x, y):
    assert double(x) == y

class TestShop:
    def test_fixtures(self, three, tmp_path, five):
        assert double(three) + five == 11

def test_raises():
    with pytest.raises(TypeError):
        double()

@pytest.mark.skip
def test_later():
    pass

@pytest.mark.xfail
def test_never():
    assert double(1) == 3
"""
PYTEST_IDS = ["pairs[1-2]", "pairs[2-4]", "raises"]


@pytest.mark.parametrize("grading", ["apart", "together"])
def test_pytest_suites_with_their_own_conftest(grounds: Any, make_task: Any, grading: str) -> None:
    names = [*(f"test_shop.py::test_{name}" for name in PYTEST_IDS), "test_shop.py::TestShop::test_fixtures"]
    conftest = "import pytest\n\n@pytest.fixture\ndef five():\n    return 5\n"
    facts: dict[str, Any] = {"suite": "pytest", "grading": grading}
    tests = {"test_shop.py": PYTEST, "conftest.py": conftest}
    task = make_task(tests, {"shop.py": DOUBLE}, fail_to_pass=names, **facts)
    found = grounds.grade(task)
    assert found.passed, found
    wrong = grounds.grade(task, {"shop.py": b"def double(x): return 4"})
    assert wrong.tests["test_shop.py::test_pairs[1-2]"] == "failed"
    assert wrong.tests["test_shop.py::test_pairs[2-4]"] == "passed"
    everything = [*names, "test_shop.py::test_later", "test_shop.py::test_never", "test_shop.py::test_gone"]
    with_others = make_task(tests, {"shop.py": DOUBLE}, fail_to_pass=everything, **facts)
    assert list(grounds.grade(with_others).tests.values())[-3:] == ["skipped", "xfailed", "missing"]


def test_a_wrong_suite_is_an_error_of_the_task(grounds: Any, make_task: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    good = make_task(TESTS, {"shop.py": DOUBLE}, **IDS)
    for changes, words in (
        ({"suite": None}, "names no suite"),
        ({"fail_to_pass": [], "held_out": []}, "no fail_to_pass"),
        ({"fail_to_pass": ["test_gone.T.test_a"]}, "has no test_gone.py"),
        ({"fail_to_pass": ["test_shop"]}, "is no test's id"),
    ):
        bad = dataclasses.replace(good, facts=good.facts.model_copy(update=changes))
        with pytest.raises(EtudeError, match=words):
            grounds.grade(bad)
    with pytest.raises(EtudeError, match="is not Python"):
        grounds.grade(make_task({**TESTS, "test_shop.py": "def ("}, {"shop.py": DOUBLE}, **IDS))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    ids = {"fail_to_pass": ["test_shop.py::T::test_a"], "suite": "pytest"}
    with pytest.raises(EtudeError, match="pip install pytest"):
        grounds.grade(make_task(TESTS, {"shop.py": DOUBLE}, **ids))


def test_katas_run_apart_and_are_graded_alike_by_a_new_interpreter(grounds: Any) -> None:
    for task in katas("held_out", 3, seed=2):
        assert grounds.grade(task).apart
        assert grounds.grade(task, hash_seed=7).passed
        assert not grounds.grade(task, {}, hash_seed=7).passed


def test_each_run_is_drawn_anew(make_task: Any) -> None:
    task = with_grading(next(katas("train", 1)), "together")
    plans = [draw(task) for _ in range(3)]
    assert len({plan.nonce for plan in plans}) == 3
    assert len({part.mark for plan in plans for part in plan.parts}) == sum(len(plan.parts) for plan in plans)
    for plan in plans:
        real = [name for part in plan.parts for name in part.real]
        assert sorted(real) == sorted(plan.required)  # each exactly once
        for part in plan.parts:
            assert part.must_pass
            assert len(part.must_fail) >= 3
            assert set(part.run) >= part.mutated | part.must_fail | part.must_pass
        assert all(len(part.mutated) == sum(len(p.real) for p in plan.parts if p is not part) for part in plan.parts)


def test_guessing_is_hopeless_where_there_are_tests_that_nobody_saw() -> None:
    for hidden in range(3, 40):
        assert processes_needed(hidden) ** -hidden <= 1e-3
    assert processes_needed(0) == 2
    assert processes_needed(1) == 12


# Nobody's score


class Ending:
    """A sandbox whose runs end as they are told."""

    def __init__(self, sandbox: Any, result: Any) -> None:
        self._sandbox, self._result = sandbox, result

    async def run_apart(self, program: Any, **given: Any) -> CommandResult:
        return await self._result(self._sandbox, program, given)

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._sandbox.close()


class EndingHost:
    def __init__(self, host: Any, result: Any) -> None:
        self.store, self.preload, self.capabilities = host.store, host.preload, host.capabilities
        self._host, self._result = host, result

    async def start(self, base: Any, *, limits: SandboxLimits) -> Any:
        return Ending(await self._host.start(base, limits=limits), self._result)


async def _changed(sandbox: Any, program: Any, given: Any, change: Any) -> CommandResult:
    return change(await sandbox.run_apart(program, **given))


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda found: dataclasses.replace(found, stdout=found.stdout[:-5]), "report"),
        (lambda found: dataclasses.replace(found, stdout=b"0" * 32 + found.stdout[32:]), "report"),
        (lambda found: CommandResult(-9, b"", b""), "killed"),
        (lambda found: CommandResult(1, b"", b"Traceback\nValueError: no"), "report"),
        (lambda found: CommandResult(-9, b"", b"", timed_out=True), "deadline"),
    ],
)
def test_a_grader_without_a_report_is_a_failure(grounds: Any, task: Task, change: Any, cause: str) -> None:
    host = EndingHost(grounds.host, lambda *given: _changed(*given, change))
    with pytest.raises(GraderFailure) as failure:
        grounds.run(grade(task, host, ()))  # type: ignore[arg-type]
    assert failure.value.cause == cause


def test_memory_that_the_tested_code_used_up_is_not_the_graders_failure(grounds: Any, task: Task) -> None:
    host = EndingHost(
        grounds.host, lambda *given: _changed(*given, lambda found: CommandResult(-9, b"", b"", oom=True))
    )
    found = grounds.run(grade(task, host, ()))  # type: ignore[arg-type]
    assert (found.passed, found.kind) == (False, "memory")


def test_tests_that_cannot_be_run_at_all_are_a_failure(grounds: Any, task: Task) -> None:
    def broken(found: CommandResult) -> CommandResult:
        return dataclasses.replace(found, stdout=found.stdout.replace(b"ready", b"steady"))

    host = EndingHost(grounds.host, lambda *given: _changed(*given, broken))
    with pytest.raises(GraderFailure, match="could not be run"):
        grounds.run(grade(task, host, ()))  # type: ignore[arg-type]
