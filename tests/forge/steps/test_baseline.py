"""What a suite does while nothing is broken is found out although some of its tests end the process, and without
waiting for what could wait at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from etude.core.errors import EtudeError
from etude.forge.environments.environment import Environment
from etude.forge.environments.suite_run import SuiteRun
from etude.forge.install.checkout import Repo
from etude.forge.steps import baseline as measuring
from etude.forge.steps.baseline import baseline
from etude.forge.steps.context import MakeContext, Opening
from etude.sandbox.hosts import StoringHost
from etude.sandbox.store.layers import Store
from tests.forge.small_repositories import write_tree

TESTS = [f"tests/test_a.py::test_{number}" for number in range(12)]
Sandboxes = tuple[asyncio.AbstractEventLoop, StoringHost]
# One that aborts wherever it runs, one that does so in another order than its own, and a file that cannot be read.
ABORTING = {
    "tests/test_abort.py": "import os\n\n\ndef test_aborts():\n    os.abort()\n\n\ndef test_steady():\n    pass\n",
    "tests/test_zone.py": "import os\n\n\ndef test_zone():\n    if os.environ['TZ'] != 'UTC':\n        os.abort()\n",
    "tests/test_exit.py": "import os\n\nos._exit(0)\n\n\ndef test_exit():\n    pass\n",
}


def opened(sandboxes: Sandboxes, environment: Environment, tree: Path, files: Mapping[str, str]) -> MakeContext:
    loop, host = sandboxes
    repo = Repo("shop", "1.0", "path", write_tree(tree, files), None)
    request: Any = SimpleNamespace()
    return loop.run_until_complete(Opening(repo, environment, host, request).plain())


@pytest.fixture(autouse=True)
def _small_crowd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "CROWD", 2)


def test_tests_that_end_the_process_belong_to_no_task_and_the_others_do(
    sandboxes: Sandboxes, tiny_environment: Environment, small_shop_files: dict[str, str], tmp_path: Path
) -> None:
    context = opened(sandboxes, tiny_environment, tmp_path, small_shop_files | ABORTING)
    left_out = {"tests/test_abort.py::test_aborts", "tests/test_zone.py::test_zone", "tests/test_exit.py"}
    assert set(context.base.left_out) == left_out == context.endless
    green = context.base.green
    assert "tests/test_abort.py::test_steady" in green and len(green) > 20
    assert not any(test.startswith(("tests/test_zone.py", "tests/test_exit.py")) for test in green)
    assert context.workspace.shows == ()  # what is seen of the host is the environment's to say, as in tasks
    run = sandboxes[0].run_until_complete(context.run_tests({}))
    assert run.passed == set(green)
    again = opened(sandboxes, tiny_environment, tmp_path, {})  # from the file beside the environment
    assert again.base == context.base and again.endless == left_out


def test_a_suite_of_which_more_tests_end_the_process_is_refused(
    sandboxes: Sandboxes,
    tiny_environment: Environment,
    small_shop_files: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measuring, "MOST_LEFT_OUT", 0)
    files = small_shop_files | {"tests/test_abort.py": ABORTING["tests/test_abort.py"]}
    with pytest.raises(EtudeError, match=r"Aborted.*, while tests/test_abort\.py::test_aborts ran"):
        opened(sandboxes, tiny_environment, tmp_path, files)


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
    store = Store(tmp_path)
    (store.root / "environments").mkdir()
    environment = SimpleNamespace(digest="a" * 64, repo="tiny", outcomes=TESTS, seconds=10.0)
    layer = SimpleNamespace(digest="b" * 64)
    given = cast(Any, (SimpleNamespace(store=store), environment, layer))
    found = asyncio.run(baseline(*given))
    assert seen == at_once and found.busy == spent / 10
    assert asyncio.run(baseline(*given)) == found and seen == at_once  # it is kept
