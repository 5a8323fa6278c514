"""Tasks that ask for a network get the hosts of their list through the egress proxy, and nothing else."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from etude.core.settings import HarnessSettings
from etude.forge.katas.task_source import katas
from etude.rollout.rollout import _place, build_setup
from etude.sandbox.base import Egress
from etude.sandbox.hosts import open_host
from etude.tasks.environment.network import granted_network, task_network
from etude.tasks.format.config import Agent
from etude.tasks.format.task import Task

LIST = {"network_mode": "allowlist", "allowed_hosts": ["pypi.example", "*.mirror.example", "10.0.0.0/8", "::1"]}
FETCH = """
import urllib.request
try:
    urllib.request.urlopen("http://other.example/x", timeout=20)
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
"""


def with_network(agent: dict[str, Any] | None = None, **environment: Any) -> Task:
    """A kata whose environment, and agent, may reach this."""
    task = next(katas("train", 1, seed=3))
    config = task.config.model_copy(update={"environment": task.config.environment.model_copy(update=environment)})
    config = config.model_copy(update={"agent": Agent(**agent or {})})
    return task.__class__(**{**vars(task), "config": config})


def test_only_an_allow_list_opens_anything_and_only_to_names() -> None:
    assert task_network(with_network()) is False
    assert task_network(with_network(network_mode="public")) is False
    assert task_network(with_network(**LIST)) == Egress(("pypi.example", "*.mirror.example"))
    assert task_network(with_network(network_mode="allowlist", allowed_hosts=["10.0.0.1"])) is False
    # What is said of the agent counts before what is said of the environment.
    assert task_network(with_network({"network_mode": "no-network"}, **LIST)) is False
    assert task_network(with_network(LIST)) == Egress(("pypi.example", "*.mirror.example"))


def test_a_task_gets_no_more_than_the_recipe_allows() -> None:
    asked = task_network(with_network(**LIST))
    assert granted_network(asked, []) is False  # the default: a task may be a stranger's
    assert granted_network(asked, ["pypi.example", "other.example"]) == Egress(("pypi.example",))
    assert granted_network(asked, ["*"]) == asked
    assert granted_network(False, ["*"]) is False


def test_an_agent_is_behind_the_proxy_where_its_task_has_a_list(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")

    setup = build_setup(HarnessSettings(allowed_hosts=["*"]))

    async def go() -> None:
        async with (
            await open_host("local", tmp_path) as host,
            _place(with_network(**LIST), host, setup) as (sandbox, _),
        ):
            assert sandbox is not None
            said = (await sandbox.run(["python3", "-c", FETCH], timeout=50)).stdout
            assert said.startswith(b"403") and b"other.example:80 is not allowed" in said, said

    asyncio.run(asyncio.wait_for(go(), 120))
    (line,) = map(json.loads, (tmp_path / "egress.jsonl").read_text().splitlines())
    assert "not allowed" in json.dumps(line)
