"""A test with other inputs: of the same kind, in the range that tests use, and with what the code names left alone."""

from __future__ import annotations

import ast
import random
import re

import pytest

from etude.forge.languages.python.other_inputs import OpenTest, number_ranges, open_tests, with_tests
from etude.forge.languages.python.source import Module

SEEDS = range(12)


def made(text: str, named: tuple[str, ...] = (), name: str = "test_it") -> list[OpenTest]:
    module = Module("tests/test_a.py", text.encode())
    ranges = number_ranges((module, each) for each in module.definitions.values())
    definition = module.definitions[name]
    drawn = [open_tests(module, definition, named, ranges, random.Random(seed)) for seed in SEEDS]
    return [test for tests in drawn for test in tests if not test.is_base]


def bodies(tests: list[OpenTest]) -> list[str]:
    return ["; ".join(map(ast.unparse, test.node.body)) for test in tests]


def test_numbers_stay_between_those_that_tests_have_in_the_same_place() -> None:
    text = "def test_it():\n    assert days(2024, 4) == 30\n\ndef test_other():\n    assert days(1990, month=9) == 1\n"
    text += "\ndef test_third():\n    assert days(2000, 11) == 2\n"
    found = [tuple(map(int, re.findall(r"\d+", each)[1:])) for each in bodies(made(text))]
    assert found and all(1990 <= year <= 2024 and 2 <= month <= 9 for year, month in found)
    assert len(set(found)) > 5


def test_words_are_exchanged_alike_and_those_of_the_code_stay() -> None:
    text = "def test_it():\n    assert find('Green tea', 'gre', 'EUR', mode='first') == 5\n"
    found = made(text, named=("first",))
    for test in found:
        call = ast.parse(ast.unparse(test.node.body[0])).body[0]
        assert isinstance(call, ast.Expr) and isinstance(call.value, ast.Call)
        asked = call.value.args[1]
        assert isinstance(asked, ast.Call)
        title, start, code = (ast.literal_eval(each) for each in asked.args)
        assert title.lower().startswith(start) and title != "Green tea" and title[0].isupper()
        assert code == "EUR" and ast.literal_eval(asked.keywords[0].value) == "first"
    assert found


@pytest.mark.parametrize("argument", ["'%Y-%m'", "'{:d}'", "'http://a.b'", "'10kB'", "True", "0", "'a*b'"])
def test_what_selects_a_behaviour_stays(argument: str) -> None:
    assert not made(f"def test_it():\n    assert show({argument}) == 'x'\n")


@pytest.mark.parametrize(
    "body",
    [
        "with pytest.raises(ValueError):\n        parse('abc')",
        "for each in 'abc':\n        assert parse(each) == 5",
        "assert parse('abc')",
        "assert parse('abc') is None",
    ],
)
def test_what_has_no_value_to_expect_is_no_base(body: str) -> None:
    assert not made(f"def test_it():\n    {body}\n")


def test_a_row_of_a_table_becomes_a_test_of_its_own() -> None:
    text = (
        "@pytest.mark.parametrize('text, wanted', [('abc', 3), ('de', 2)])\n"
        "def test_it(text, wanted, tmp_path):\n    assert size(text, tmp_path) == wanted\n"
    )
    found = made(text)
    assert found and all(not test.node.decorator_list for test in found)
    assert {each.arg for test in found for each in test.node.args.args} == {"tmp_path"}


def test_it_stands_behind_the_test_that_it_was_made_of_and_expects_what_it_is_told() -> None:
    lines = [
        "class A:",
        "\tdef test_it(self):",
        "\t\tself.assertEqual(size('abc'), 4)",
        "",
        "\tdef test_b(self): pass",
    ]
    text = "".join(f"{line}\r\n" for line in lines)
    module = Module("tests/test_a.py", text.encode())
    test = made(text, name="A.test_it")[0]
    data = with_tests(module, {"A.test_it": [test.closed([5])]})
    assert test.id == f"tests/test_a.py::A::{test.name}"
    tree = Module("tests/test_a.py", data)
    assert list(tree.definitions) == ["A", "A.test_it", f"A.{test.name}", "A.test_b"]
    assert b"== 5\r\n" in data and data.startswith(text.encode()[:40])
