"""Hidden tests with other inputs: only such as anybody who solves the task must pass."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from etude.forge.environments.environment import Environment
from etude.forge.install.checkout import Repo
from etude.forge.origins.deletion.propose import delete
from etude.forge.steps.add_inputs import MOST_SECONDS, add_inputs
from etude.forge.steps.choose_functions import FunctionSet
from etude.forge.steps.code_change import CodeChange, write_code_change
from etude.forge.steps.code_change_instructions import missing_code
from etude.forge.steps.context import MakeContext, MakeRequest, Opening
from etude.forge.steps.hide_tests import Split
from etude.forge.steps.make_fair import Fair, make_fair
from etude.forge.steps.proof import Gates
from etude.sandbox.hosts import StoringHost
from tests.forge.small_repositories import write_tree

Sandboxes = tuple[asyncio.AbstractEventLoop, StoringHost]
# Odd ones take another way through the code, which no test asks for.
CODE = """
def fee(cents, words):
    if cents % 2:
        return -cents
    return cents * 7 + len(words)


def at(cents):
    return cents * 7, id(object())
"""
TESTS = """
from fees import rules


def test_shown():
    assert rules.fee(490, ["tea"]) == 3431


def test_hidden():
    assert rules.fee(120, ["jam", "cake"]) == 842


def test_large():
    assert rules.fee(498, ["pie"]) == 3487


def test_place():
    assert rules.at(30)[0] == 210
"""
PLACE = "tests/test_rules.py::"


@pytest.fixture(scope="module")
def fair(
    sandboxes: Sandboxes, tiny_environment: Environment, tmp_path_factory: pytest.TempPathFactory
) -> tuple[MakeContext, Fair]:
    loop, host = sandboxes
    more = "".join(f"\n\ndef test_number_{number}():\n    assert {number} + 1\n" for number in range(12))
    files = {
        "src/fees/__init__.py": "",
        "src/fees/rules.py": CODE,
        "tests/test_rules.py": TESTS,
        "tests/test_numbers.py": more,
    }
    tree = write_tree(tmp_path_factory.mktemp("fees"), files)
    request = MakeRequest(1, tmp_path_factory.mktemp("out"))
    opening = Opening(Repo("fees", "1", "path", tree, None), tiny_environment, host, request)
    context = loop.run_until_complete(opening.plain())
    repository = context.repository
    names = ("src/fees/rules.py:fee", "src/fees/rules.py:at")
    functions = tuple(repository.symbols[name] for name in names)
    candidate = delete(repository, FunctionSet("group", functions, repository.reaching(names)), whole=False)
    assert candidate is not None
    hidden = tuple(PLACE + each for each in ("test_hidden", "test_large", "test_place"))
    split = Split((f"{PLACE}test_shown",), hidden, {}, frozenset())
    before = CodeChange(candidate, split=split, kept=(), gates=Gates(context.base.green))
    asked = missing_code(repository, candidate, split, {}, random.Random(0))
    return context, loop.run_until_complete(make_fair(context, before, asked))


@pytest.fixture(scope="module")
def proof(sandboxes: Sandboxes, fair: tuple[MakeContext, Fair]) -> tuple[CodeChange, str]:
    context, before = fair
    made = sandboxes[0].run_until_complete(add_inputs(context, before))
    return made, write_code_change(context, made, before.instructions, "plain").tests.text("tests/test_rules.py")


def test_they_are_held_out_and_stand_in_the_tests_of_the_task(proof: tuple[CodeChange, str]) -> None:
    made, text = proof
    assert made.added and set(made.added) <= set(made.split.held_out)
    assert made.gates is not None and set(made.added) <= set(made.gates.green)
    assert all(f"def {each.rpartition('::')[2]}(" in text for each in made.added)
    assert text.startswith(TESTS.rstrip()[:60])


def test_they_expect_what_the_reference_gives(proof: tuple[CodeChange, str]) -> None:
    namespace: dict[str, object] = {}
    exec(CODE, namespace)
    rules = type("rules", (), {name: staticmethod(namespace[name]) for name in ("fee", "at")})  # type: ignore[arg-type]
    tests: dict[str, object] = {"rules": rules}
    exec(proof[1].replace("from fees import rules", ""), tests)
    for each in proof[0].added:
        test = tests[each.rpartition("::")[2]]
        assert callable(test)
        test()


def test_no_other_way_through_the_code_is_asked_for(proof: tuple[CodeChange, str]) -> None:
    added = proof[1].split("_with_other_inputs_")[1:]
    assert added and not any("== -" in each for each in added)


def test_tests_that_take_long_get_no_other_inputs(sandboxes: Sandboxes, fair: tuple[MakeContext, Fair]) -> None:
    """Of each some eight are tried, six times over: of a test that waits for seconds that would be minutes."""
    context, before = fair
    took = dict.fromkeys(before.proof.split.held_out, MOST_SECONDS)
    slow = replace(context, repository=replace(context.python, took=took))
    assert not sandboxes[0].run_until_complete(add_inputs(slow, before)).added
