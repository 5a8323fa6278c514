"""What a suite does while nothing is broken is found without waiting for what could wait at the same time."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from etude.forge.environments.suite_run import SuiteRun
from etude.forge.steps import baseline as measuring
from etude.forge.steps.baseline import baseline
from etude.sandbox.store.layers import Store

TESTS = [f"tests/test_a.py::test_{number}" for number in range(12)]


@pytest.mark.parametrize(("spent", "at_once"), [(10.0, [1, 1, 2, 2]), (1.0, [1, 3, 3, 3])])
def test_only_a_suite_that_waits_is_traced_while_others_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spent: float, at_once: list[int]
) -> None:
    running: list[object] = []
    seen: list[int] = []

    async def run(*given: Any, **options: Any) -> SuiteRun:
        running.append(given)
        for _ in range(4):  # all that run at once have begun
            await asyncio.sleep(0)
        seen.append(len(running))
        for _ in range(4):
            await asyncio.sleep(0)
        running.pop()
        return SuiteRun(dict.fromkeys(TESTS, "passed"), 10.0, True, "", took={"": spent})

    monkeypatch.setattr(measuring, "run_suite", run)
    monkeypatch.setattr(measuring, "CROWD", 2)
    store = Store(tmp_path)
    (store.root / "environments").mkdir()
    environment = SimpleNamespace(digest="a" * 64, repo="tiny", outcomes=TESTS, seconds=10.0)
    layer = SimpleNamespace(digest="b" * 64)
    given = cast(Any, (SimpleNamespace(store=store), environment, layer))
    found = asyncio.run(baseline(*given))
    assert seen == at_once and found.busy == spent / 10
    assert asyncio.run(baseline(*given)) == found and seen == at_once  # it is kept
