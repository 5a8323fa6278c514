"""The gates run what the repository's tests showed that can be run."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from etude.forge.gates.gates import Verdict
from etude.forge.languages.python.repository import PythonRepository
from etude.forge.steps import verify
from etude.forge.steps.baseline import Baseline
from etude.forge.steps.candidate import Candidate, RemovedCode
from etude.forge.steps.code_change import prove_code_change
from etude.forge.steps.context import HANGS, MakeContext, Refused
from etude.forge.steps.proof import Gates
from etude.sandbox.store.layers import Store
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


PRICE = """def price(items, discount=0):
    total = 0
    for name, (cents, count) in sorted(items.items()):
        total += cents * count if name != "gift" else 0
    return total - total * discount // 100
"""


@pytest.mark.usefixtures("workspace_alone_is_audited")
@pytest.mark.parametrize(("copy", "why"), [("src/old.py", "leak"), ("tests/test_b.py", "no test notices")])
def test_a_copy_in_the_code_is_refused_before_anything_has_run(
    build_repository: Build, tmp_path: Path, copy: str, why: str
) -> None:
    """One in a test says nothing: such tests are hidden, and nobody knows them yet."""
    files = {"src/new.py": PRICE, copy: PRICE, "tests/test_a.py": "def test_one():\n    pass\n"}
    repository = build_repository(files, {TESTS[0]: {"src/new.py:price"}})
    host = SimpleNamespace(store=Store(tmp_path))
    context = MakeContext(repository, Baseline(TESTS[:1], (), {}, {}, 1.0), *cast(Any, (None, host, None)))
    changes = {"src/new.py": b"def price(items, discount=0):\n    raise NotImplementedError\n"}
    candidate = Candidate("deletion", "bodies", changes, (RemovedCode("src/new.py", "price", PRICE),))
    with pytest.raises(Refused) as refused:  # that no test notices is the first thing that a trial says
        asyncio.run(prove_code_change(context, candidate, random.Random(0)))
    assert refused.value.reason == why
