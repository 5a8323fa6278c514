"""Tasks from real repositories: their own suites, in their own environment, graded as safely as any other."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from etude.core.errors import EtudeError
from etude.core.settings import GraderSettings
from etude.forge.environments.environment import Environment
from etude.tasks.environment.layers import task_layers, task_variables
from etude.tasks.format.config import Installed
from etude.tasks.format.task import Task
from etude.tasks.grade import grade
from etude.tasks.grading.test_plan import FEW_PROCESSES, MOST_KEPT, draw

CART = "src/shop/cart.py"
MakeTask = Callable[..., Task]


def solved(shop_files: dict[str, str], body: str, more: str = "") -> dict[str, bytes | None]:
    return {CART: (shop_files[CART].replace("return sum(cart.items)", body) + more).encode()}


def test_a_repositorys_own_suite_decides_in_its_environment(grounds: Any, repository_task: MakeTask) -> None:
    task = repository_task()
    for _ in range(3):  # each time with other changed tests
        found = grounds.grade(task)
        assert found.passed, (found.reason, found.details, found.canaries)
    assert set(found.tests.values()) == {"passed"} and len(found.tests) == 8
    assert not found.apart and found.checked > 10
    null = grounds.grade(task, {})
    assert not null.passed and null.kind == "tests"
    assert null.tests["tests/test_cart.py::CartTest::test_negative"] == "passed"
    assert null.tests["tests/test_cart.py::test_empty"] == "failed"


def test_the_hash_seed_and_the_environments_variables_reach_the_tests(
    grounds: Any, repository_task: MakeTask, tiny_environment: Environment
) -> None:
    text = "import os, sys\n\n\ndef test_it():\n    assert os.environ['SHOP'] == 'open'\n"
    text += "    assert sys.prefix == '/opt/env' and os.environ['PATH'].startswith('/opt/env/bin:')\n"
    installed = Installed(digest=tiny_environment.digest, paths=["src"], env={"SHOP": "open"})
    task = repository_task({"tests/test_env.py": text}, held_out=["tests/test_env.py::test_it"], environment=installed)
    assert grounds.grade(task).passed
    assert grounds.grade(task, hash_seed=5).passed
    assert task_variables(task)["SHOP"] == "open"


def test_what_the_agent_does_to_tests_hooks_and_settings_stays_behind(grounds: Any, repository_task: MakeTask) -> None:
    hook = b"import pytest\n\n\n@pytest.hookimpl(wrapper=True)\ndef pytest_runtest_makereport(item, call):\n"
    hook += b"    report = yield\n    report.outcome = 'passed'\n    return report\n"
    cheats: dict[str, bytes | None] = {
        "tests/conftest.py": hook,
        "conftest.py": hook,
        "src/conftest.py": hook,
        "src/sitecustomize.py": b"raise SystemExit(0)\n",
        "src/evil.dist-info/entry_points.txt": b"[pytest11]\nevil = evil\n",
        "pytest.toml": b"[pytest]\naddopts = ['-p', 'evil']\n",
        "src/pytest.toml": b"[pytest]\naddopts = ['-p', 'evil']\n",
        "tests/test_cart.py": b"",
    }
    found = grounds.grade(repository_task(), cheats)
    assert not found.passed and found.kind == "tests"
    assert {path for path, _ in found.refused} == set(cheats)


CHEATS = {
    "a number that equals everything": (
        "return Anything(7)",
        "\n\nclass Anything(int):\n    def __eq__(self, other):\n        return True\n    __hash__ = int.__hash__\n",
    ),
    "tests rewritten on the disk": (
        "raise NotImplementedError",
        "\nimport pathlib, re\nfor path in pathlib.Path('/workspace/tests').rglob('test_*.py'):\n"
        "    path.write_text(re.sub(r'assert .*', 'pass', path.read_text()))\n",
    ),
    "a framework that only passes": (
        "raise NotImplementedError",
        "\nimport _pytest.runner as r\nold = r.TestReport.from_item_and_call.__func__\n"
        "def new(cls, item, call):\n    call.excinfo = None\n    return old(cls, item, call)\n"
        "r.TestReport.from_item_and_call = classmethod(new)\n",
    ),
    "an exit while collecting": ("raise NotImplementedError", "\nimport os\nos._exit(0)\n"),
    "expected values from the caller": (
        "return answer()",
        "\n\ndef answer():\n    import sys\n    code = sys._getframe(2).f_code\n"
        "    return next((c for c in code.co_consts if isinstance(c, (int, float)) and c), 0)\n",
    ),
    "results written into every descriptor": (
        "raise NotImplementedError",
        '\nimport os\nfor fd in range(3, 1000):\n    try:\n        os.write(fd, b\'["", "x", "passed", ""]\\n\')\n'
        "    except OSError:\n        pass\n",
    ),
    "skipped tests": ("import pytest; pytest.skip('later')", ""),
    "never ends": ("raise NotImplementedError", "\nimport signal\nsignal.pause()\n"),
    "memory": ("raise NotImplementedError", "\nx = []\nwhile True:\n    x.append(bytearray(1 << 24))\n"),
}


@pytest.mark.parametrize("name", CHEATS)
def test_no_cheat_in_the_tested_code_is_accepted(
    name: str, grounds: Any, repository_task: MakeTask, shop_files: dict[str, str]
) -> None:
    limits = GraderSettings(seconds=4 if name == "never ends" else 60, memory_mb=256)
    found = grounds.grade(repository_task(), solved(shop_files, *CHEATS[name]), settings=limits)
    assert not found.passed, name


def test_nothing_of_one_process_is_left_for_the_next(grounds: Any, repository_task: MakeTask) -> None:
    text = "import pathlib\n\n\ndef test_it():\n    for place in ('/tmp/was', '/workspace/was', '/home/agent/was'):\n"
    text += "        assert not pathlib.Path(place).exists()\n        pathlib.Path(place).write_text('here')\n"
    more = "\n\ndef test_more():\n    assert 1 + 1 == 2\n"
    task = repository_task(
        {"tests/test_left.py": text + more},
        pass_to_pass=["tests/test_left.py::test_it", "tests/test_left.py::test_more"],
    )
    assert len(draw(task).parts) > 1
    for _ in range(3):
        found = grounds.grade(task)
        assert found.passed, (found.reason, found.details)


def test_few_processes_and_a_bounded_steady_choice_of_tests_that_passed_before(repository_task: MakeTask) -> None:
    many = "".join(f"def test_{number}():\n    assert {number} == {number}\n\n\n" for number in range(300))
    names = [f"tests/test_many.py::test_{number}" for number in range(300)]
    task = repository_task({"tests/test_many.py": many}, pass_to_pass=names)
    first, second = draw(task), draw(task)
    assert first.required == second.required
    assert sum(name in names for name in first.required) == MOST_KEPT
    assert set(task.facts.fail_to_pass) | set(task.facts.held_out) <= set(first.required)
    assert len(first.parts) <= FEW_PROCESSES
    assert all(len(part.run) < 40 for part in first.parts[1:])


def test_an_environment_that_is_not_there_says_what_to_run(grounds: Any, repository_task: MakeTask) -> None:
    task = repository_task(environment=Installed(digest="0" * 64), provenance="attrs 24.2.0")
    with pytest.raises(EtudeError, match=re.escape("shop (attrs 24.2.0) needs environment 000000000000")) as said:
        task_layers(task, grounds.host)
    assert "etude env install" in str(said.value)
    with pytest.raises(EtudeError, match="etude env install"):
        grounds.run(grade(task, grounds.host, ()))


def test_facts_about_the_environment_are_checked(tiny_environment: Environment) -> None:
    for wrong in (
        {"digest": "../x"},
        {"digest": "a" * 64, "python": "bin/python"},
        {"digest": "a" * 64, "paths": [".."]},
    ):
        with pytest.raises(ValueError, match=r"environment's digest|absolute path|is relative"):
            Installed(**wrong)  # type: ignore[arg-type]


BASE = """from shop import Cart, total


class Totals:
    def filled(self):
        return Cart()

    def test_sum(self):
        assert total(self.filled().add(2)) == 2 + self.more

    def test_again(self):
        assert total(self.filled().add(3)) == 3 + self.more
"""
HEIRS = """from tests.base import Totals as Common


class TestEmpty(Common):
    more = 0


class TestFilled(Common):
    more = 5

    def filled(self):
        return super().filled().add(5)

    def test_again(self):
        super().test_again()
        assert self.more == 5


class TestDeep(TestFilled):
    def test_sum(self):
        assert self.filled().items == [5]
"""
INHERITED = [f"tests/test_heirs.py::{name}" for name in ("TestEmpty::test_sum", "TestFilled::test_sum")]
INHERITED += [f"tests/test_heirs.py::{name}::test_again" for name in ("TestEmpty", "TestFilled", "TestDeep")]


@pytest.mark.parametrize("written", ["in one file", "in two files"])
def test_tests_that_several_classes_inherit_are_real_and_changed_together(
    grounds: Any, repository_task: MakeTask, shop_files: dict[str, str], written: str
) -> None:
    one = BASE.replace("class Totals", "class Common") + HEIRS.partition("\n")[2]
    tests = {"tests/test_heirs.py": one}
    if written == "in two files":
        tests = {"tests/base.py": BASE, "tests/test_heirs.py": HEIRS}
    own = "tests/test_heirs.py::TestDeep::test_sum"
    task = repository_task(tests, held_out=INHERITED, pass_to_pass=[own])
    for part in (part for _ in range(20) for part in draw(task).parts):
        for method in ("test_sum", "test_again"):
            ids = {name for name in INHERITED if name.endswith(method)}
            assert part.real & ids in (ids, set()) and part.mutated & ids in (ids, set())
    for _ in range(2):  # each time with others changed
        found = grounds.grade(task)
        assert found.passed, (found.reason, found.details, found.canaries)
    null = grounds.grade(task, {})
    assert {null.tests[name] for name in INHERITED} == {"failed"} and null.tests[own] == "passed"
    # right for one of the classes only
    found = grounds.grade(task, solved(shop_files, "return sum(cart.items) if len(cart.items) == 1 else 0"))
    assert not found.passed and found.kind == "tests"
    failed = [name for name, status in found.tests.items() if status == "failed"]
    assert "TestEmpty" not in str(failed) and set(INHERITED[1:2] + INHERITED[3:]) <= set(failed)
    # an answer that equals everything passes all of them, changed ones too, and is known by that
    everything = "return type('Any', (), {'__eq__': lambda self, other: True, '__radd__': lambda s, o: s})()"
    assert grounds.grade(task, solved(shop_files, everything)).kind in ("tampering", "tests")


def test_a_test_that_another_one_calls_is_never_changed(grounds: Any, repository_task: MakeTask) -> None:
    text = "from shop import Cart, total\n\n\ndef test_sum(more=0):\n"
    text += "    assert total(Cart().add(2).add(more)) == 2 + more\n"
    text += "\n\ndef test_sums():\n    test_sum(1)\n    test_sum(more=5)\n"
    names = ["tests/test_calls.py::test_sum", "tests/test_calls.py::test_sums"]
    task = repository_task({"tests/test_calls.py": text}, held_out=names)
    assert not any(names[0] in part.mutated for _ in range(20) for part in draw(task).parts)
    for _ in range(2):
        found = grounds.grade(task)
        assert found.passed, (found.reason, found.details, found.canaries)


def test_what_the_reference_lets_pass_too_is_no_evidence(grounds: Any, repository_task: MakeTask) -> None:
    text = "from shop import Cart, total\n\n\nclass Loose:\n    def __eq__(self, other):\n        return True\n\n\n"
    text += "".join(
        f"def test_{x}():\n    assert total(Cart().add({n})) == {n}\n    assert Loose() == total(Cart())\n\n\n"
        for n, x in enumerate("abcd", 1)
    )
    names = [f"tests/test_cart.py::test_{x}" for x in "abcd"]
    task = repository_task({"tests/test_cart.py": text}, fail_to_pass=names[:2], held_out=names[2:], pass_to_pass=[])
    grades = [grounds.grade(task) for _ in range(6)]  # each time with others changed
    assert all(found.passed for found in grades), [found.reason for found in grades]
    assert not grounds.grade(task, {}).passed
