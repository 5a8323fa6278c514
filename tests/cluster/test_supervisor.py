"""Processes that die: started again while the budget lasts, and waited for by those who lost them."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import pytest

from etude.cluster.local import LocalPlacement, ProcessDied, Restarts, Supervisor
from etude.core.errors import EtudeError

SECONDS = 20.0


class Program:
    """Stands for a child process: it lives until it is told to die."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.process: Any = self
        self.closed = False

    async def wait(self) -> int:
        await self.ended.wait()
        return -9

    async def last_words(self) -> str:
        return "the program process ended with code -9; the end of its log:\n    boom"

    async def close(self, seconds: float) -> None:
        self.closed = True
        self.ended.set()


class Starts:
    """Starts programs; `failing` of the next starts fail."""

    def __init__(self) -> None:
        self.programs: list[Program] = []
        self.failing = 0

    async def __call__(self) -> Any:
        await asyncio.sleep(0)
        if self.failing:
            self.failing -= 1
            raise EtudeError("it did not start")
        self.programs.append(Program())
        return self.programs[-1]


def test_a_process_that_dies_is_started_again_until_the_budget_is_spent_and_progress_fills_it() -> None:
    async def scene() -> None:
        starts, said = Starts(), list[str]()
        restarts = Restarts(2, said.append)
        supervisor = Supervisor("engine 0", starts, restarts)
        await supervisor.open()
        watching = asyncio.ensure_future(supervisor.watch())
        for times in (1, 2, 3):
            before = supervisor.deaths
            starts.programs[-1].ended.set()
            await supervisor.wait_back(before, SECONDS)
            assert len(starts.programs) == times + 1 and starts.programs[-2].closed
            restarts.progress()
        assert restarts.total == 3 and "engine 0 is started again (1 of 2)" in said[-1] and "boom" not in said[-1]
        starts.failing = 2  # a start that fails costs one as well
        starts.programs[-1].ended.set()
        with pytest.raises(ProcessDied, match=r"it did not start \(2 were started again since the last step"):
            await asyncio.wait_for(watching, SECONDS)

    asyncio.run(scene())


def test_without_a_budget_the_first_death_is_the_last_and_shows_its_log() -> None:
    async def scene() -> None:
        starts = Starts()
        supervisor = Supervisor("worker 1", starts, Restarts(0, print))
        await supervisor.open()
        starts.programs[0].ended.set()
        with pytest.raises(ProcessDied, match=r"ended with code -9; the end of its log:\n    boom$"):
            await asyncio.wait_for(supervisor.watch(), SECONDS)

    asyncio.run(scene())


def test_one_that_is_closed_is_not_started_again_and_one_that_stays_away_is_named() -> None:
    async def scene() -> None:
        starts = Starts()
        supervisor = Supervisor("worker 1", starts, Restarts(3, print))
        await supervisor.open()
        watching = asyncio.ensure_future(supervisor.watch())
        await asyncio.sleep(0)
        await supervisor.close()
        await asyncio.wait_for(watching, SECONDS)
        assert len(starts.programs) == 1
        supervisor.up.clear()
        with pytest.raises(EtudeError, match=r"worker 1 did not come back within 0\.1 s"):
            await supervisor.wait_back(0, 0.1)

    asyncio.run(scene())


def test_addresses_stay_and_are_removed_with_their_folder() -> None:
    addresses = LocalPlacement()
    path = addresses.socket("engine-0")
    path.touch()
    assert addresses.socket("engine-0") == path and len(str(path)) < 100
    asyncio.run(addresses.close())
    assert not path.parent.exists()


@pytest.mark.parametrize("deep", [50, 58, 80])
def test_addresses_fit_into_a_socket_wherever_temporary_files_go(monkeypatch: pytest.MonkeyPatch, deep: int) -> None:
    """A socket's path has at most 107 bytes, 103 on macOS."""
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        place = Path(short) / ("x" * (deep - len(short) - 1))
        place.mkdir()
        monkeypatch.setattr(tempfile, "gettempdir", lambda: str(place))
        addresses = LocalPlacement()
        try:
            assert len(str(addresses.socket("engine-99.1000.frames"))) <= 103
        finally:
            asyncio.run(addresses.close())
