"""Changed tests: whatever is changed in a test that passes, it fails; and what was not chosen stays as it was."""

from __future__ import annotations

import ast
import random
import sys
import types
from typing import Any

import pytest

from etude.forge.katas.task_source import katas
from etude.tasks.format.task import Task
from etude.tasks.grading.test_mutations import find_tests, mutate, other_value, spell
from etude.tasks.grading.test_source import known_calls, simple_tests
from etude.tasks.sandbox_side import unittest_grading as unittests
from etude.tasks.sandbox_side.tests_in_memory import MemoryFinder, module_of


@pytest.fixture
def solved(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs tests of a kata over its solution, in this process."""
    monkeypatch.setattr(sys, "modules", dict(sys.modules))

    def run(task: Task, sources: dict[str, str], ids: list[str]) -> dict[str, str]:
        for name in [name for name in sys.modules if name.startswith(("test_", task.facts.allowed_paths[0][:-5]))]:
            del sys.modules[name]
        whole = {path: data.decode() for path, data in {**task.workspace, **task.solution}.items()}
        finders = [MemoryFinder(sources), MemoryFinder({p: t for p, t in whole.items() if p.endswith(".py")})]
        monkeypatch.setattr(sys, "meta_path", [*finders, *sys.meta_path])
        told: dict[str, str] = {}
        unittests.run(ids, lambda name, status, text: told.update({name: status}))
        monkeypatch.undo()
        monkeypatch.setattr(sys, "modules", dict(sys.modules))
        return told

    return run


@pytest.mark.parametrize("task", list(katas("train", 12, seed=5)), ids=lambda task: task.name)
def test_every_change_makes_a_passing_test_fail(task: Task, solved: Any) -> None:
    sources = {path: task.tests.text(path) for path in task.tests if path.endswith(".py")}
    for path, source in sources.items():
        module = module_of(path)
        tests = find_tests(source)
        ids = [f"{module}.{test.name}" for test in tests]
        assert set(solved(task, sources, ids).values()) == {"passed"}
        for number in range(max(len(test.mutations) for test in tests)):
            for seed in range(2):
                chosen = [test.mutations[number % len(test.mutations)] for test in tests]
                changed = mutate(source, list(chosen), random.Random(seed))
                assert "passed" not in solved(task, {**sources, path: changed}, ids).values()
        one = mutate(source, [tests[0].mutations[0]], random.Random(1))
        assert solved(task, {**sources, path: one}, ids) == {ids[0]: "failed", **dict.fromkeys(ids[1:], "passed")}


STYLES = '''
import unittest
from collections import Counter

def double(x): return 2 * x
def check(x):
    if x < 0: raise ValueError("below zero")
    return True

class StyleTest(unittest.TestCase):
    """Every way of asserting that can be changed."""

    def test_equal(self): self.assertEqual(double(2), 4)  # on one line
    def test_left(self):
        self.assertEqual(4, double(2))
    def test_words(self):
        words = {"a": [1, 2], "b": (3,)}
        self.assertEqual({**words}, {"a": [1, 2], "b": (3,)}, "with a message")
    def test_nothing_literal(self):
        expected = double(3)
        self.assertEqual(double(3), expected)
    def test_true(self): self.assertTrue(check(1))
    def test_in(self):
        self.assertIn("a", "abc")  # a comment; with a semicolon
    def test_none(self):
        self.assertIsNone(None)
    def test_raises(self):
        with self.assertRaises(ValueError):
            check(-1)
    def test_raises_call(self):
        self.assertRaises(ValueError, check, -1)
    def test_almost(self):
        self.assertAlmostEqual(double(0.1), 0.2)
    def test_count(self):
        self.assertCountEqual(Counter("aab"), ["b", "a"])
    def test_text(self):
        self.assertEqual("\\n".join("ab"), """a
b""")
    def test_bytes_and_sets(self):
        self.assertEqual(bytes(2), b"\\x00\\x00")
        self.assertEqual({1} | {2}, {1, 2})
    def test_loop(self):
        """A docstring."""
        for x in range(3):
            self.assertEqual(double(x), x + x)
    def test_returns(self):
        if double(1) == 2:
            return
        self.fail()
    def test_nested(self):
        def inner(): return double(2)
        self.assertGreater(inner(), 3)
    def test_plain(self):
        assert double(2) == 4
    def test_plain_other(self):
        assert double(2) > 3 and not double(0)
    def test_unicode(self):
        self.assertEqual("ä" * 2, "ää"); self.assertFalse(double(0))
'''


def outcomes(source: str) -> dict[str, str]:
    module = types.ModuleType("styles")
    exec(compile(source, "styles", "exec"), module.__dict__)
    sys.modules["styles"] = module
    told: dict[str, str] = {}
    names = [f"styles.{test.name}" for test in find_tests(source) if "." in test.name]
    unittests.run(names, lambda name, status, text: told.update({name.removeprefix("styles."): status}))
    del sys.modules["styles"]
    return told


def test_every_style_of_assertion_can_be_changed() -> None:
    assert set(outcomes(STYLES).values()) == {"passed"}
    tests = [test for test in find_tests(STYLES) if test.name.startswith("StyleTest.")]
    assert len(tests) == STYLES.count("def test_")
    for test in tests:
        assert test.mutations
        for change in test.mutations:
            for seed in range(5):
                told = outcomes(mutate(STYLES, [change], random.Random(seed)))
                assert told.pop(test.name) in ("failed", "error"), change
                assert set(told.values()) == {"passed"}, change


def test_parameters_of_pytest_are_changed_where_they_are_compared() -> None:
    source = (
        "import pytest\n\n@pytest.mark.parametrize('x, y', [(1, 2), (3, 6)])\ndef test_double(x, y):\n"
        "    assert double(x) == y\n"
    )
    (test,) = find_tests(source)
    changed = ast.parse(mutate(source, [test.mutations[0]], random.Random(0)))
    rows = ast.literal_eval(changed.body[1].decorator_list[0].args[1])  # type: ignore[attr-defined]
    assert [row[0] for row in rows] == [1, 3]
    assert rows[0][1] != 2
    assert rows[1][1] != 6


def test_other_values_are_different_and_of_the_same_kind() -> None:
    rng = random.Random(0)
    values = [
        0,
        -5,
        True,
        False,
        1.5,
        1.5e20,
        -1e308,
        1e20 + 1j,
        "a",
        "",
        "Word",
        b"x",
        b"",
        [1, 2],
        [],
        (1,),
        (),
        {1, 2},
        {"a": 1},
        {},
        [[1], []],
    ]
    for value in values:
        for _ in range(20):
            new = other_value(value, rng)
            assert new != value
            assert type(new) is type(value)
            assert ast.literal_eval(spell(new, '"')) == new
    assert other_value(None, rng) == 0
    assert other_value(float("inf"), rng) == 0.0


def test_calls_that_any_test_could_make_are_found() -> None:
    source = "import unittest\nfrom shop.cart import total\nimport shop\n\n"
    source += "class T(unittest.TestCase):\n    def test_a(self):\n        x = 1\n"
    source += "        self.assertEqual(total([1, 2]), 3)\n        self.assertEqual(total(x), 3)\n"
    source += "        self.assertEqual(shop.tax(1), len([1]))\n"
    assert known_calls(source) == ("total([1, 2])", "shop.tax(1)")


def test_simple_tests_are_told_from_those_that_need_the_code_beside_them() -> None:
    head = "import unittest\nfrom shop import total\n\nclass T(unittest.TestCase):\n    def test_a(self):\n"
    simple = [
        "self.assertEqual(total(1), 2)",
        "self.assertTrue(total(x=-1))",
        "assert total([1, {'a': 2}]) == (3,)",
        "self.assertIn(total(1), [1, 2])",
    ]
    other = [
        "x = total(1)",
        "self.assertEqual(total(self), 2)",
        "self.assertEqual(total(1).name, 2)",
        "total(1)",
        "self.assertRaises(ValueError, total, 1)",
        "self.assertEqual(len(total(1)), 2)",
        "self.assertEqual(total(1), total(2))",
    ]
    for line in simple:
        assert simple_tests(f"{head}        {line}\n") == {"T.test_a"}, line
    for line in other:
        assert simple_tests(f"{head}        {line}\n") == frozenset(), line
    assert (
        simple_tests(f"{head}        self.assertEqual(total(1), 2)\n    def setUp(self):\n        pass\n")
        == frozenset()
    )
    for task in katas("train", 10):
        for path in task.tests:
            if path.endswith(".py"):
                assert simple_tests(task.tests.text(path)) == {test.name for test in find_tests(task.tests.text(path))}


TABBED = """
class TestPrices:
\tdef test_left_early(self):
\t\tif not PRICES:
\t\t\treturn
\t\tassert PRICES

\tdef test_whole(self):
\t\tassert PRICES == [1]


def test_plain():
\tfor price in PRICES:
\t\tassert price
"""


def test_changes_of_a_file_indented_by_tabs_compile_and_fail() -> None:
    tests = find_tests(TABBED)
    assert [test.name for test in tests] == ["TestPrices.test_left_early", "TestPrices.test_whole", "test_plain"]
    for test in tests:
        for mutation in test.mutations:
            space: dict[str, Any] = {"PRICES": [1]}
            exec(compile(mutate(TABBED, [mutation], random.Random(0)), "tabbed", "exec"), space)
            owner, _, name = test.name.rpartition(".")
            with pytest.raises(AssertionError):
                getattr(space[owner](), name)() if owner else space[name]()
