"""docs/extend/add-an-origin.md works as it stands: its folder alone makes tasks in the real pipeline."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

import pytest

from etude.core.errors import EtudeError
from etude.forge import origins
from etude.forge.environments.environment import Environment
from etude.forge.install.checkout import Repo
from etude.forge.origins.table import all_origins, find_origins, turns
from etude.forge.pipeline.make import make_tasks
from etude.forge.steps.context import MakeRequest
from etude.sandbox.hosts import StoringHost
from etude.tasks.format.task import Task

PAGE = (Path(__file__).parents[3] / "docs/extend/add-an-origin.md").read_text()
pytestmark = pytest.mark.usefixtures("workspace_alone_is_audited")


def test_the_folder_of_the_page_makes_a_task_that_passes_the_gates(
    sandboxes: tuple[asyncio.AbstractEventLoop, StoringHost],
    tiny_environment: Environment,
    shop_repo: Repo,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    folder = tmp_path / "origins/lost_default"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "origin.py").write_text(code)
    monkeypatch.setattr(origins, "__path__", [*origins.__path__, str(folder.parent)])
    try:
        assert list(all_origins())[-1] == "lost_default"
        loop, host = sandboxes
        request = MakeRequest(1, tmp_path / "out", origins=("lost_default",))
        journal = loop.run_until_complete(make_tasks(shop_repo, tiny_environment, host, request))
    finally:
        for name in [name for name in sys.modules if ".origins.lost_default" in name]:
            del sys.modules[name]
    (name,) = journal.tasks
    task = Task.load(tmp_path / "out" / name)
    assert name.startswith("shop-lost_default-") and task.facts.family == "shop: lost_default, default"
    (deleted,) = task.facts.deleted
    path, _, function = deleted.partition(":")
    assert task.workspace.text(path) != task.solution.text(path) and function in task.worded("plain").instruction
    assert task.facts.held_out and task.facts.fail_to_pass


def test_origins_are_found_by_the_names_of_their_folders_and_by_those_that_older_journals_have() -> None:
    known = all_origins()
    folders = {path.name for path in Path(origins.__path__[0]).iterdir() if (path / "origin.py").exists()}
    assert set(known) == folders and all(known[name].name == name for name in folders)
    labels = {
        "testing": "test_writing",
        "documentation": "docstrings",
        "refactor": "refactoring",
        "devops": "packaging",
    }
    for label, name in labels.items():
        assert find_origins([label]) == find_origins([name]) == [known[name]] and known[name].label == label
    with pytest.raises(EtudeError, match="there is no source of tasks called 'magic'; known: deletion, bug, commit"):
        find_origins(["magic"])


def test_deletions_have_two_turns_in_a_round() -> None:
    found = [origin.name for origin in turns(all_origins().values())]
    assert found[:4] == ["deletion", "bug", "deletion", "commit"] and len(found) == len(all_origins()) + 1
