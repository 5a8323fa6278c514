"""A wrong token found by the digest that an installer wrote down: where it is covered, nothing is found."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from etude.sandbox.hosts import StoringHost
from etude.tasks.environment import layers
from redteam.leaks.digest_search import find_by_digest, run_digest_search, task_of_a_wrong_token

Sandboxes = tuple[asyncio.AbstractEventLoop, StoringHost]


def test_what_an_installer_wrote_down_tells_no_agent_which_edit_is_right(
    sandboxes: Sandboxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, host = sandboxes
    result = loop.run_until_complete(run_digest_search(host))
    assert result.ok and result.tried == 1

    def uncovered(*given: Any) -> list[Any]:
        return []

    monkeypatch.setattr(layers, "_covers", uncovered)
    task = task_of_a_wrong_token(host)
    found = loop.run_until_complete(find_by_digest(task, host))
    assert found == {"tally.py": task.solution["tally.py"]}
