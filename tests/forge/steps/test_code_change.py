"""What no gate would let through is refused as soon as that is known."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from etude.forge.gates.withheld_answers import TOO_FEW
from etude.forge.languages.python.repository import PythonRepository
from etude.forge.steps import code_change
from etude.forge.steps.baseline import Baseline
from etude.forge.steps.candidate import Candidate, RemovedCode
from etude.forge.steps.code_change import CodeChange, prove_code_change
from etude.forge.steps.context import MakeContext, Refused
from etude.forge.steps.trial import Trial

Build = Callable[..., PythonRepository]


def _prove(
    build_repository: Build, monkeypatch: pytest.MonkeyPatch, body: str, *took: float, last: str = ""
) -> CodeChange:
    text = "".join(
        f"def test_{number}():\n    {(last if last and number > 5 else body).format(number)}\n\n\n"
        for number in range(8)
    )
    tests = [f"tests/test_a.py::test_{number}" for number in range(8)]
    repository = build_repository(
        {"src/t.py": "def f(a):\n    return a\n", "tests/test_a.py": text}, {test: {"src/t.py:f"} for test in tests}
    )

    repository = replace(repository, took=dict(zip(tests, took, strict=False)))

    async def attempt(*_: Any) -> Trial:
        return Trial(tuple(tests[:6]), tuple(tests[6:]), {}, True)

    async def no_copy(*_: Any) -> None:
        pass

    monkeypatch.setattr(code_change, "attempt", attempt)
    monkeypatch.setattr(code_change, "refuse_copied", no_copy)
    base = Baseline(repository.green, (), {}, {}, 1.0)
    context = MakeContext(repository, base, *cast(Any, (None, None, None)))
    candidate = Candidate(
        "deletion", "bodies", {"src/t.py": b""}, (RemovedCode("src/t.py", "f", ""),), frozenset(tests)
    )
    return asyncio.run(prove_code_change(context, candidate, random.Random(0)))


def test_tests_that_compare_no_value_are_refused_before_anything_else_is_done(
    build_repository: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Refused, match=TOO_FEW) as refused:
        _prove(build_repository, monkeypatch, "assert f({})")
    assert refused.value.detail.endswith("could notice")  # and that was known before any of them ran
    with pytest.raises(Refused, match=TOO_FEW) as refused:
        _prove(build_repository, monkeypatch, "assert f({0})", last="assert f({0}) == 'item {0}'")
    assert refused.value.detail.endswith("held out")  # those that compare a value still pass
    assert _prove(build_repository, monkeypatch, "assert f({0}) == 'item {0}'").split.held_out


def test_tests_that_a_grade_has_no_time_for_do_not_judge(
    build_repository: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "assert f({0}) == 'item {0}'"
    found = _prove(build_repository, monkeypatch, body, 1.0, 30.0, 1.0, 18.0, 1.0, 1.0)
    slow = ("tests/test_a.py::test_1", "tests/test_a.py::test_3")
    assert found.unfair == slow and len((*found.split.shown, *found.split.held_out)) == 4
    assert found.gates is not None and not set(slow) & set(found.gates.green)
    assert not _prove(build_repository, monkeypatch, body, *[3.0] * 6).unfair
    with pytest.raises(Refused, match="it cannot be graded"):
        _prove(build_repository, monkeypatch, body, *[15.0] * 6)
