"""Engine replicas under supervisors: with which weights and under which version one starts."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, ClassVar

import pytest

from etude.cluster import engines as module
from etude.cluster.engines import EnginePlan, Engines
from etude.cluster.local import LocalPlacement, Restarts
from etude.cluster.placement import Program
from etude.core.policy import Version
from etude.core.settings import EngineSettings
from etude.core.transport import from_json
from etude.serve.messages import EngineSpec


class Client:
    """Stands for a client of a server that was just started."""

    made: ClassVar[list[Client]] = []

    def __init__(self, address: str, **_: Any) -> None:
        self.asked: list[Any] = []
        self.made.append(self)

    async def update(self, version: Version) -> None:
        self.asked.append(("update", version))

    async def pin(self, version: Version) -> None:
        self.asked.append(("pin", version))

    async def close(self, seconds: float = 10.0) -> None:
        self.asked.append("close")


class Server:
    said = "unix:somewhere"


class Starting(LocalPlacement):
    """Starts nothing; remembers what it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.programs: list[Program] = []
        self.published: list[str] = []

    async def start(self, program: Program, seconds: float) -> Any:
        self.programs.append(program)
        return Server()

    def publish(self, name: str) -> None:
        self.published.append(name)


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
    Client.made.clear()
    monkeypatch.setattr(module, "EngineClient", Client)
    plan = EnginePlan(
        EngineSettings(), 1, "cpu", 1, tmp_path, lambda _: tmp_path, 9, 9, lambda _: (tmp_path, Version(0, commit))
    )
    placement = Starting()
    try:
        engines = Engines(plan, Version(0, present), placement, Restarts(1, print))
        asyncio.run(engines.supervisors[0].open())
        spec = from_json(EngineSpec, json.loads(placement.programs[0].arguments[0]))
        assert spec.version == Version(0, started) and Client.made[-1].asked == [*asked, "close"]
        assert placement.published == ["engine-0"]
    finally:
        asyncio.run(placement.close())
