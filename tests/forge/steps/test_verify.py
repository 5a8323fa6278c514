"""The gates run what the repository's tests showed that can be run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from etude.forge.gates.gates import Verdict
from etude.forge.languages.python.repository import PythonRepository
from etude.forge.steps import verify
from etude.forge.steps.baseline import Baseline
from etude.forge.steps.context import HANGS, MakeContext
from etude.forge.steps.proof import Gates
from etude.tasks.format.file_tree import Files

Build = Callable[..., PythonRepository]
TESTS = tuple(f"tests/test_a.py::test_{name}" for name in ("one", "two", "waits"))


def test_gates_leave_out_a_test_that_would_never_end(build_repository: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    async def gates(*_: Any, **given: Any) -> Verdict:
        asked.append(given)
        return Verdict(True)

    monkeypatch.setattr(verify, "pass_gates", gates)
    monkeypatch.setattr(verify, "Task", SimpleNamespace(load=lambda folder: None))
    text = "".join(f"def {test.rpartition('::')[2]}():\n    pass\n" for test in TESTS)
    repository = build_repository({"tests/test_a.py": text}, {test: set() for test in TESTS})
    context = MakeContext(repository, Baseline(TESTS, (), {}, {}, 1.0), *cast(Any, (None, None, None)))

    def ask() -> Any:
        asyncio.run(verify.verify_by_gates(context, Path("/nowhere"), Gates(list(TESTS), Files({}), 3), [], {}))
        return asked[-1]["suite"]

    assert ask() is None
    context.hangs[TESTS[2]] = HANGS
    context.unsteady.update(context.endless)
    assert ask() == list(TESTS[:2])
