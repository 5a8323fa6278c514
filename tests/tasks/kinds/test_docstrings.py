"""Docstrings that an agent wrote, judged by what their examples notice; and those that only look like documentation."""

from __future__ import annotations

from typing import Any

import pytest

from etude.core.settings import GraderSettings
from etude.forge.environments.environment import Environment
from etude.policies.scripted import scripted
from etude.rollout.rollout import Scored, build_setup, run_rollout
from etude.tasks.check import CheckReport
from etude.tasks.format.config import Config, Documentation, Facts, Installed
from etude.tasks.format.file_tree import Files
from etude.tasks.format.task import SOLUTION, TESTS, WORKSPACE, Task
from etude.tasks.grading.verdict import Grade
from etude.tasks.kinds.docstring_examples import differs_in_code, module_name, read_documented
from etude.tasks.kinds.docstrings import false_docstrings, read, with_docstrings
from etude.tasks.lint import lint

MODULE = "src/shop/price.py"
CODE = '''"""Prices."""


def parse(text, scale=100):
    units, mark, rest = text.partition(".")  # the mark is a point
    if mark and len(rest) != 2:
        raise ValueError(text)
    cents = int(units) * scale
    if rest:
        cents += int(rest)
    return cents


class Cart:
    """Prices of things."""

    def __init__(self):
        self.prices = []

    def add(self, price):
        if price > 0:
            self.prices.append(price)
        return len(self.prices)
'''
MISTAKES = [
    ("cents += int(rest)", "cents -= int(rest)"),
    ("mark and len(rest) != 2", "mark and len(rest) != 3"),
    ("if rest:", "if not rest:"),
    ("price > 0", "price >= 0"),
    ("* scale", "* (scale + 1)"),
]
PARSE = """Return the cents of a text, units of `scale` cents each.

>>> parse("12.50")
1250
>>> parse("3", scale=10)
30
>>> parse("1.5")
Traceback (most recent call last):
    ...
ValueError: 1.5
"""
ADD = """Put a `price` into the cart, unless it is nothing; say how many there are.

>>> cart = Cart()
>>> cart.add(0)
0
>>> cart.add(5)
1
"""
SETTINGS = GraderSettings(seconds=60)
Checked = tuple[CheckReport, dict[str, Grade]]


def written(parse: str = PARSE, add: str = ADD) -> bytes:
    return with_docstrings(CODE, {"parse": parse, "Cart.add": add}).encode()


@pytest.fixture(scope="session")
def task(tiny_environment: Environment) -> Task:
    files = {
        "environment/Dockerfile": b"FROM python:3.11.9\nCOPY workspace /app\n",
        f"{TESTS}/test.sh": b"#!/bin/sh\n",
        "solution/solve.sh": b"#!/bin/sh\n",
        f"{WORKSPACE}/src/shop/__init__.py": b"",
        f"{WORKSPACE}/{MODULE}": CODE.encode(),
        f"{SOLUTION}/{MODULE}": written(),
    }
    for number, (old, new) in enumerate(MISTAKES, start=1):
        assert CODE.count(old) == 1
        files[f"{TESTS}/mutants/{number:02}/{MODULE}"] = CODE.replace(old, new).encode()
    facts = Facts(
        suite="pytest",
        documentation=Documentation(functions=[f"{MODULE}:parse", f"{MODULE}:Cart.add"]),
        allowed_paths=[MODULE],
        environment=Installed(digest=tiny_environment.digest, paths=["src"]),
    )
    return Task("docs", "Write docstrings.", Config(), facts, Files(files))


@pytest.fixture(scope="session")
def checked(grounds: Any, task: Task) -> Checked:
    """The grades of the reference, of nothing and of what is false, taken once for all tests here."""
    found: Checked = grounds.check(task, SETTINGS)
    return found


def graded(grounds: Any, task: Task, data: bytes, **options: Any) -> Any:
    return grounds.grade(task, {MODULE: data}, settings=SETTINGS, **options)


def test_docstrings_are_read_from_source_alone() -> None:
    found = read_documented(written().decode(), "Cart.add")
    assert found is not None and found.parameters == ("price",) and not found.unnamed
    assert (found.shown, found.looks) == (2, [])
    lying = CODE + f"\nparse.__doc__ = {PARSE!r}\n"
    plain = read_documented(lying, "parse")
    assert plain is not None and plain.doc == "" and plain.unnamed == ["text", "scale"]
    assert read_documented(CODE, "Cart") is None and read_documented("def (", "f") is None
    assert module_name("src/shop/price.py", ["src", ""]) == "shop.price"
    assert module_name("shop/__init__.py", [""]) == "shop"


def test_only_docstrings_comments_and_layout_may_differ() -> None:
    assert not differs_in_code(CODE, written().decode())
    assert not differs_in_code(CODE, CODE.replace("  # the mark is a point", ""))
    assert differs_in_code(CODE, CODE.replace("> 0", "> 1"))
    assert differs_in_code(CODE, CODE + "\nparse.__doc__ = ''\n")
    assert differs_in_code(CODE, CODE + "(")


def test_good_docstrings_pass_and_notice_every_mistake(checked: Checked) -> None:
    found = checked[1]["reference"]
    assert found.passed, found.reason
    assert set(found.tests.values()) == {"passed"} and found.share == 1 and found.checked == 5
    assert list(found.tests)[:5] == [
        "documentation alone",
        *("examples of parse", "parameters of parse"),
        *("examples of Cart.add", "parameters of Cart.add"),
    ]


def test_nothing_and_all_false_docstrings_are_rejected(task: Task, checked: Checked) -> None:
    found = {name: checked[1][name] for name in ["null", *false_docstrings(task)]}
    assert [name for name, grade in found.items() if grade.passed] == []
    assert "shows 0 examples" in found["no example"].reason
    assert "shows 0 examples" in found["an example that is always right"].reason
    assert "shows 0 examples" in found["examples that are skipped"].reason
    for name in ("an example that names and never calls", "examples that accept all"):
        assert "mistakes are noticed" in found[name].reason, (name, found[name].reason)
    assert "looks at code" in found["an example of the text"].reason


def test_wrong_examples_unnamed_parameters_and_other_changes_are_rejected(grounds: Any, task: Task) -> None:
    wrong = graded(grounds, task, written(PARSE.replace("1250", "1251")), quick=True)
    assert not wrong.passed and "with the code as it is" in wrong.reason
    silent = graded(grounds, task, written(PARSE.replace("scale", "other")), quick=True)
    assert "does not name scale" in silent.reason
    changed = graded(grounds, task, written().replace(b"> 0", b"> -1"), quick=True)
    assert "more than docstrings was changed" in changed.reason and changed.tests["as it is"] == "missing"


LOOKING = {
    "source text": ">>> import inspect\n>>> parse and len(inspect.getsource(parse))\n1\n",
    "code objects": '>>> parse.__code__.co_consts[1:2]\n(".",)\n',
    "a formatted code object": '>>> parse and "{0.__code__.co_consts}".format(parse)\n"x"\n',
    "a pattern": ">>> match parse:\n...     case object(__code__=code):\n...         print(parse and 2)\n2\n",
    "a name made of texts": '>>> getattr(parse, "__co" + "de__").co_argcount\n2\n',
    "the tests": ">>> from tests.test_price import test_parse\n>>> parse and test_parse()\n",
    "another interpreter": ">>> import subprocess\n>>> parse and subprocess.call(['true'])\n0\n",
}


@pytest.mark.parametrize("name", LOOKING)
def test_examples_that_look_at_code_are_none(grounds: Any, task: Task, name: str) -> None:
    found = graded(grounds, task, written(PARSE + LOOKING[name]), quick=True)
    assert not found.passed and "looks at code" in found.reason


ARGUMENTS = '("{0._" + "_code_" + "_.c" + "o_argcount}").format'
UNNAMED = {
    "a format": f">>> parse and {ARGUMENTS}(parse)\n'2'\n",
    "a format that something else calls": f">>> [*map({ARGUMENTS}, [parse])]\n['2']\n",
    "a formatter": """>>> import string
>>> parse and string.Formatter().format("{0._" + "_code_" + "_.c" + "o_argcount}", parse)
'2'
""",
    "the project itself": f""">>> import functools
>>> class Price:
...     pass
>>> Price.__gt__ = functools.partial({ARGUMENTS}, parse)
>>> Cart().add(Price())
1
""",
    "a pattern": """>>> class Whatever(type):
...     def __instancecheck__(self, other):
...         return True
>>> class It(metaclass=Whatever):
...     __match_args__ = ("_" + "_code_" + "_",)
>>> match parse:
...     case It(code):
...         print(2)
2
""",
    "the finder": f""">>> import sys
>>> [held] = sys.meta_path[0]._sources.values()
>>> parse and {ARGUMENTS}(held)
'0'
""",
}


@pytest.mark.parametrize("name", UNNAMED)
def test_code_cannot_be_read_by_a_way_that_is_not_known(grounds: Any, task: Task, name: str) -> None:
    found = graded(grounds, task, written(PARSE + UNNAMED[name]), quick=True)
    assert not found.passed
    assert found.tests["as it is"] == "failed" and "looks at code" in found.reason, found.reason


def test_a_file_counts_as_python_reads_it(task: Task) -> None:
    honest = written()
    assert not read(task, honest)[0]["documentation alone"]
    assert not read(task, b"# coding: utf-8\n" + honest)[0]["documentation alone"]
    for cheat in (b"# coding: utf-7\n# +AAo-import os\n" + honest, honest + b"# \xff\n", b"# coding: no\n" + honest):
        assert read(task, cheat)[0]["documentation alone"]


def test_such_a_task_is_checked_and_what_is_wrong_with_it_is_said(task: Task, checked: Checked) -> None:
    report = checked[0]
    assert report.ok, report.problems
    assert [trial.answer for trial in report.trials] == ["reference", "null", *false_docstrings(task)]

    def rules(**changes: Any) -> set[str]:
        facts = task.facts.model_copy(update=changes)
        found = lint(Task("docs", "Write.", Config(), facts, task.files))
        return {each.rule for each in found if each.severity == "error"}

    assert rules() == set()
    assert rules(allowed_paths=["src/**"]) >= {"documentation-file"}
    assert rules(environment=None) >= {"documentation-environment"}
    assert rules(documentation=Documentation(functions=[f"{MODULE}:gone"])) == {"documentation-function"}


def test_who_writes_docstrings_as_asked_is_not_called_a_cheat(grounds: Any, task: Task) -> None:
    for policy, passed in (("reference", True), ("null", False)):
        outcome = grounds.run(run_rollout(task, scripted(policy, task), grounds.host, build_setup()))
        assert isinstance(outcome, Scored) and outcome.passed is passed, outcome
        assert outcome.ruling is not None and outcome.ruling.verdict == "clean" and outcome.reward == float(passed)


def test_examples_that_compare_the_function_with_a_copy_of_it_are_rejected(grounds: Any, task: Task) -> None:
    body = CODE.partition("def parse")[2].partition("\n\n\nclass")[0].splitlines()
    copy = "\n".join([f">>> def again{body[0]}", *(f"... {line}" for line in body[1:])])
    asked = '>>> all(parse(text) == again(text) for text in ("1", "2.50", "0.07"))\nTrue\n'
    twin = f"Return cents of a text by scale.\n\n{copy}\n{asked}{asked.replace('all', 'not not all')}"
    found = graded(grounds, task, written(parse=twin), quick=True)
    assert not found.passed and "has a copy of the code in it" in found.reason, found.reason
