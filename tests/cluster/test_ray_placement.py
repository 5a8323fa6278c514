"""Programs on a real Ray cluster, which is started here. Skipped where Ray is not installed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("ray")

import ray.util

from etude.cluster.placement import Program, Role
from etude.cluster.ray_placement import RayPlacement
from etude.core.cluster_settings import ClusterSettings
from etude.core.errors import EtudeError
from etude.core.frame_calls import Caller
from etude.core.transport import Frame
from tests.cluster.test_ray_supervisor import PROGRAM

SECONDS = 120.0


def test_a_program_on_ray_is_found_ended_lost_with_its_supervisor_and_started_again(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    said: list[str] = []
    settings = ClusterSettings(kind="ray", lease_seconds=3.0, place_seconds=SECONDS)
    placement = RayPlacement(settings, tmp_path / "cluster", lambda: 2, said.append)
    paths = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    program = Program(
        "engine-0", "program", (str(tmp_path / "gate"),), "ready", tmp_path / "log", environment={"PYTHONPATH": paths}
    )

    async def scene() -> None:
        await placement.open([Role("engine", 1)])
        caller = Caller(placement.address("engine-0"), deadline=SECONDS)

        async def who() -> int:
            return int((await caller.call(Frame({"verb": "who"}))).header["message"])

        first = await placement.start(program, SECONDS)
        placement.publish("engine-0")
        assert await who() == first.pid and not first.ended
        assert f"engine-0 is process {first.pid} on node" in said[-1] and "log" in said[-1]
        os.kill(first.pid, signal.SIGKILL)
        await asyncio.wait_for(first.wait(), SECONDS)
        assert first.ended and "ended with code -9" in (await first.last_words() or "")
        second = await placement.start(program, SECONDS)
        placement.publish("engine-0")
        assert await who() == second.pid
        # Ray starts the supervisor again. It knows nothing of the child, whose end nobody saw.
        os.kill(placement._facts["engine-0"]["pid"], signal.SIGKILL)
        await asyncio.wait_for(second.wait(), SECONDS)
        assert "was lost" in (await second.last_words() or "")
        third = await placement.start(program, SECONDS)
        placement.publish("engine-0")
        assert await who() == third.pid and third.incarnation == "2.3"
        await third.close(5.0)
        assert third.ended
        caller.close()
        # One that was not planned has room of its own, which is free again when it is gone.
        further = await placement.start(replace(program, name="engine-1"), SECONDS)
        assert ray.util.get_placement_group("engine-1").bundle_count == 1
        await further.close(5.0)
        await placement.give_back("engine-1")
        with pytest.raises(ValueError, match="engine-1"):
            ray.util.get_placement_group("engine-1")

    async def whole() -> None:
        try:
            await scene()
        finally:
            await placement.close()

    asyncio.run(whole())
    assert not (tmp_path / "cluster").exists()


def test_too_little_room_is_said_within_the_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ClusterSettings(kind="ray", place_seconds=40.0)
    placement = RayPlacement(settings, tmp_path / "cluster", lambda: 0, print)

    async def scene() -> None:
        try:
            await placement.open([Role("engine", 2, gpus=64)])
        finally:
            await placement.close()

    with pytest.raises(
        EtudeError, match=r"no room for 2 engine programs of 1 CPU and 64 GPU each .* free are .* 0 GPU"
    ):
        asyncio.run(scene())
