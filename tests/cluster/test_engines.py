"""Engine replicas under supervisors: with which weights and under which version one starts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from etude.cluster import engines as module
from etude.cluster.engines import EnginePlan, Engines
from etude.cluster.local import Addresses, Restarts
from etude.core.policy import Version
from etude.core.settings import EngineSettings
from etude.serve.messages import frames_path


class Client:
    """Stands for a server that was just started."""

    def __init__(self) -> None:
        self.server: Any = object()
        self.asked: list[Any] = []

    async def update(self, version: Version) -> None:
        self.asked.append(("update", version))

    async def pin(self, version: Version) -> None:
        self.asked.append(("pin", version))

    async def close(self, seconds: float = 10.0) -> None:
        self.asked.append("close")


@pytest.mark.parametrize(
    ("commit", "present", "started", "asked"),
    [
        (5, 0, 0, []),  # five steps without a gradient: the commit has the weights of version 0, which no board has
        (5, 5, 5, []),
        (5, 7, 5, [("update", Version(0, 7))]),
    ],
)
def test_one_that_is_started_from_a_commit_gets_the_present_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, commit: int, present: int, started: int, asked: list[Any]
) -> None:
    made: list[tuple[Version, Client]] = []

    async def launch(model: Path, settings: EngineSettings, *, version: Version, socket: Path, **_: Any) -> Client:
        for path in (socket, Path(frames_path(str(socket)))):
            path.touch()
        made.append((version, Client()))
        return made[-1][1]

    monkeypatch.setattr(module, "launch", launch)
    plan = EnginePlan(
        EngineSettings(), 1, "cpu", 1, tmp_path, lambda _: tmp_path, 9, 9, lambda _: (tmp_path, Version(0, commit))
    )
    addresses = Addresses()
    try:
        engines = Engines(plan, Version(0, present), addresses, Restarts(1, print))
        asyncio.run(engines.supervisors[0].open())
        assert [(version, client.asked) for version, client in made] == [(Version(0, started), [*asked, "close"])]
        assert addresses.socket("engine-0").exists()
    finally:
        addresses.close()
