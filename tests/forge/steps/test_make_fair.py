"""A task whose hidden tests ask for what nothing says is made fair: it is said, or those tests do not judge."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from etude.forge.environments.environment import Environment
from etude.forge.environments.suite_run import SuiteRun
from etude.forge.install.checkout import Repo
from etude.forge.origins.deletion.propose import delete
from etude.forge.steps.choose_functions import FunctionSet
from etude.forge.steps.code_change import CodeChange
from etude.forge.steps.code_change_instructions import missing_code
from etude.forge.steps.context import MakeContext, MakeRequest, Opening, Refused
from etude.forge.steps.hide_tests import Split
from etude.forge.steps.make_fair import UNFAIR, Fair, make_fair
from etude.forge.steps.proof import Gates
from etude.sandbox.hosts import StoringHost
from tests.forge.small_repositories import write_tree

Sandboxes = tuple[asyncio.AbstractEventLoop, StoringHost]
CODE = """
def greet(name, loud=False):
    if not name:
        raise ValueError("a greeting needs somebody")
    text = _joined("hello", name)
    return text.upper() if loud else text


def _joined(*words):
    return " ".join(words)
"""
TESTS = """
import inspect

import pytest

from hello import greeting


def test_shown():
    assert greeting.greet("you") == "hello you"


def test_loud():
    assert greeting.greet("you", loud=True) == "HELLO YOU"


def test_message():
    with pytest.raises(ValueError, match="needs somebody"):
        greeting.greet("")


def test_source():
    assert "text.upper()" in inspect.getsource(greeting.greet)


def test_plain():
    assert greeting.greet("me") == "hello me"
"""
PLACE = "tests/test_greeting.py::"


@pytest.fixture(scope="module")
def context(
    sandboxes: Sandboxes, tiny_environment: Environment, tmp_path_factory: pytest.TempPathFactory
) -> MakeContext:
    loop, host = sandboxes
    more = "".join(f"\n\ndef test_number_{number}():\n    assert {number} + 1\n" for number in range(12))
    files = {
        "src/hello/__init__.py": "",
        "src/hello/greeting.py": CODE,
        "tests/test_greeting.py": TESTS,
        "tests/test_numbers.py": more,
    }
    tree = write_tree(tmp_path_factory.mktemp("hello"), files)
    request = MakeRequest(1, tmp_path_factory.mktemp("out"))
    opening = Opening(Repo("hello", "1", "path", tree, None), tiny_environment, host, request)
    return loop.run_until_complete(opening.plain())


Make = Callable[..., Fair]


@pytest.fixture
def fair(context: MakeContext, sandboxes: Sandboxes) -> Make:
    loop, _ = sandboxes
    repository = context.repository
    names = ("src/hello/greeting.py:greet", "src/hello/greeting.py:_joined")
    candidate = delete(
        repository,
        FunctionSet("group", tuple(repository.symbols[name] for name in names), repository.reaching(names)),
        whole=False,
    )
    assert candidate is not None

    def make(shown: str, *held_out: str) -> Fair:
        split = Split((PLACE + shown,), tuple(PLACE + each for each in held_out), {}, frozenset())
        text = TESTS
        for each in held_out:
            text = text.replace(f"def {each}():\n" + TESTS.partition(f"def {each}():\n")[2].partition("\n\n\n")[0], "")
        split = Split(split.shown, split.held_out, {"tests/test_greeting.py": text.encode()}, frozenset())
        proof = CodeChange(candidate, split=split, kept=(), gates=Gates(context.base.green))
        asked = missing_code(repository, candidate, split, {}, random.Random(0))
        return loop.run_until_complete(make_fair(context, proof, asked))

    return make


def test_a_message_that_hidden_tests_ask_for_is_said_in_every_style(fair: Make) -> None:
    found = fair("test_shown", "test_message", "test_loud")
    assert found.said == (
        "`greet` has the exact text `a greeting needs somebody`",
        "`greet` raises `ValueError`",
    )
    assert found.unfair == () and found.solutions == 2
    for text in found.instructions.by_style.values():
        assert "a greeting needs somebody" in text


def test_a_test_that_a_second_solution_fails_does_not_judge(fair: Make) -> None:
    found = fair("test_shown", "test_source", "test_loud", "test_plain")
    assert found.unfair == (f"{PLACE}test_source",) and found.proof.unfair == found.unfair
    assert found.proof.split.held_out == (f"{PLACE}test_loud", f"{PLACE}test_plain")
    assert found.proof.gates is not None and f"{PLACE}test_source" not in found.proof.gates.green


def test_a_task_with_too_few_fair_tests_is_refused(fair: Make) -> None:
    with pytest.raises(Refused) as refused:
        fair("test_shown", "test_source")
    assert refused.value.reason == UNFAIR and "test_source" in refused.value.detail


def test_no_more_solutions_run_than_are_wanted_unless_one_is_not_right(
    fair: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    run = MakeContext.run_variants

    async def counted(
        self: MakeContext, variants: Sequence[Mapping[str, bytes | None]], *given: Any, **options: Any
    ) -> list[SuiteRun]:
        asked.append(len(variants))
        return await run(self, variants, *given, **options)

    monkeypatch.setattr(MakeContext, "run_variants", counted)
    assert fair("test_shown", "test_message", "test_loud").solutions == 2 and asked == [2]
    asked.clear()
    fair("test_source", "test_shown", "test_loud")  # what is shown rejects a rewrite
    assert asked == [2, 2]
