"""Engines that come and go: how many of a run's own there are, and which that others lend."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from etude.cluster import elastic
from etude.cluster import engines as module
from etude.cluster.elastic import ElasticEngines
from etude.cluster.engines import EnginePlan, Engines
from etude.cluster.local import LocalPlacement, Restarts
from etude.cluster.placement import Program
from etude.core.errors import EtudeError
from etude.core.frame_calls import ConnectionLost
from etude.core.policy import Version
from etude.core.settings import EngineSettings

FIRST, SECOND = Version(0, 0), Version(0, 1)
GONE: set[str] = set()  # addresses at which nobody answers


class Client:
    """Stands for the client of an engine."""

    def __init__(self, address: str, **_: Any) -> None:
        self.address, self.asked = address, list[Any]()

    async def _heard(self, what: Any) -> None:
        if self.address in GONE:
            raise ConnectionLost("gone")
        self.asked.append(what)

    async def update(self, version: Version) -> dict[str, Any]:
        await self._heard(version)
        return {}

    async def pin(self, version: Version) -> None:
        await self._heard(("pin", version))

    async def health(self) -> dict[str, Any]:
        await self._heard("health")
        return {"pending": 0}

    async def close(self, seconds: float = 10.0) -> None:
        self.asked.append("close")


class Process:
    said, pid = "unix:somewhere", 0

    def __init__(self) -> None:
        self.over = asyncio.Event()

    async def wait(self) -> None:
        await self.over.wait()

    async def last_words(self) -> str:
        return "it was killed"

    async def close(self, seconds: float) -> None:
        self.over.set()


class Placement(LocalPlacement):
    """Starts nothing; the next start fails where `error` says so."""

    def __init__(self) -> None:
        super().__init__()
        self.started: dict[str, Process] = {}
        self.error: str = ""

    async def start(self, program: Program, seconds: float) -> Any:
        if self.error:
            raise EtudeError(self.error)
        self.started[program.name] = Process()
        return self.started[program.name]

    def publish(self, name: str) -> None: ...


class Scene:
    def __init__(self, folder: Path, spares: int = 0) -> None:
        self.wanted, self.said, self.counts = 1, list[str](), list[int]()
        self.watched: list[asyncio.Task[None]] = []
        weights = lambda _: (folder, FIRST)  # noqa: E731
        plan = EnginePlan(EngineSettings(), 1, "cpu", 1, folder, lambda _: folder, 9, 9, weights)
        self.placement = Placement()
        self.engines = Engines(plan, FIRST, self.placement, Restarts(3, self.said.append), spares=spares)
        self.lent = folder / "lent"
        self.elastic = ElasticEngines(
            self.engines,
            lambda: self.wanted,
            self.lent,
            watch=lambda each: self.watched.append(asyncio.ensure_future(each.watch())),
            changed=self.counts.append,
            say=self.said.append,
            drain_seconds=1.0,
        )

    async def open(self) -> None:
        for supervisor in self.engines.supervisors.values():
            await supervisor.open()
            self.elastic.watch(supervisor)

    async def close(self) -> None:
        await self.engines.close()
        await asyncio.gather(*self.watched)
        await self.placement.close()


@pytest.fixture(autouse=True)
def _no_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EngineClient", Client)
    GONE.clear()


def test_as_many_of_its_own_as_are_wanted_one_at_a_time(tmp_path: Path) -> None:
    async def scene() -> None:
        at = Scene(tmp_path)
        await at.open()
        at.engines.replicas.version = SECOND
        at.wanted = 3
        for _ in range(3):
            await at.elastic.look()
        assert at.engines.own == [0, 1, 2] and at.counts == [2, 3] and len(at.watched) == 3
        # Each has the present version before anybody samples from it.
        assert all(SECOND in engine.asked for engine in at.engines.replicas.engines[1:])  # type: ignore[attr-defined]
        at.wanted = 1
        # An evaluation under way keeps the engines that it began with.
        await at.engines.replicas.pin(SECOND, lease=1000.0)
        await at.elastic.look()
        assert at.engines.own == [0, 1, 2]
        at.engines.replicas.end_lease()
        for _ in range(3):
            await at.elastic.look()
        assert at.engines.own == [0] and at.counts == [2, 3, 2, 1]
        assert all(at.placement.started[name].over.is_set() for name in ("engine-1", "engine-2"))
        # What cannot be started is said once, and costs nothing else.
        at.wanted, at.placement.error = 2, "no room"
        await at.elastic.look()
        await at.elastic.look()
        assert [said for said in at.said if "no room" in said] == [
            "a further engine could not be started, and 1 go on: no room"
        ]
        await at.close()

    asyncio.run(scene())


def test_a_lent_engine_is_there_while_it_is_offered_and_answers(tmp_path: Path) -> None:
    async def scene() -> None:
        at = Scene(tmp_path)
        await at.open()
        at.lent.mkdir()
        (at.lent / "other").write_text("{}")
        await at.elastic.look()
        assert at.engines.lent == {}  # nothing was published yet that it could read
        at.engines.replicas.version = SECOND
        await at.elastic.look()
        (number,) = at.engines.lent
        assert at.engines.replicas.present == [0, number] and at.engines.own == [0]
        (at.lent / "other.back").touch()
        await at.elastic.look()
        assert at.engines.replicas.present == [0] and at.counts == [2, 1]
        (at.lent / "other.back").unlink()
        await at.elastic.look()
        GONE.add(f"file:{at.lent / 'other'}")
        await at.engines.replicas.update(SECOND)  # nobody waits for it
        assert at.engines.replicas.present == [0] and not at.engines.lent
        await at.elastic.look()
        await at.elastic.look()
        assert sum("cannot be used" in said for said in at.said) == 1
        await at.close()

    asyncio.run(scene())


def test_a_killed_lender_whose_file_stays_is_tried_again_and_named_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elastic, "AGAIN", 0.0)

    async def scene() -> None:
        at = Scene(tmp_path)
        await at.open()
        at.lent.mkdir()
        at.engines.replicas.version = SECOND
        (at.lent / "killed").write_text("{}")
        address = f"file:{at.lent / 'killed'}"
        GONE.add(address)
        for _ in range(5):
            await at.elastic.look()
        assert sum("cannot be used" in said for said in at.said) == 1
        GONE.discard(address)  # it is started again under the same name
        await at.elastic.look()
        assert list(at.engines.lent.values()) == [address]
        await at.close()

    asyncio.run(scene())


def test_a_spare_takes_the_place_of_an_engine_that_is_killed(tmp_path: Path) -> None:
    async def scene() -> None:
        at = Scene(tmp_path, spares=1)
        await at.open()
        together = at.engines.replicas
        assert together.present == [0] and together.spares == {1}
        at.placement.started["engine-0"].over.set()
        while together.present != [1]:
            await asyncio.sleep(0)
        while together.spares != {0}:  # started again meanwhile
            await asyncio.sleep(0)
        assert at.said[0] == "engine 0 died; a spare has taken its place"
        await at.close()

    asyncio.run(scene())


def test_a_lent_engine_that_hangs_or_refuses_costs_nothing_but_itself(tmp_path: Path) -> None:
    async def scene() -> None:
        at = Scene(tmp_path)
        await at.open()
        at.lent.mkdir()
        together = at.engines.replicas
        together.version = SECOND
        for failure in (TimeoutError(), EtudeError("it has another model")):
            (at.lent / f"{failure!r}").write_text("{}")
            await at.elastic.look()
            (number,) = at.engines.lent

            async def fails(version: Version, failure: Exception = failure) -> dict[str, Any]:
                raise failure

            together.engines[number].update = fails  # type: ignore[method-assign]
            await together.update(SECOND)
            assert together.present == [0] and not at.engines.lent
            (at.lent / f"{failure!r}").unlink()
        # One that an update is taking out when the next look finds that it does not answer.
        (at.lent / "gone").write_text("{}")
        await at.elastic.look()
        GONE.add(f"file:{at.lent / 'gone'}")

        async def told() -> None:
            together.on_change = None
            await at.elastic.look()

        together.on_change = told
        await together.update(SECOND)
        assert together.present == [0] and not at.engines.lent
        await at.close()

    asyncio.run(scene())


def test_an_engine_that_dies_while_it_is_taken_out_is_no_spare(tmp_path: Path) -> None:
    async def scene() -> None:
        at = Scene(tmp_path)
        await at.open()
        at.wanted = 2
        await at.elastic.look()

        async def dies() -> None:
            at.placement.started["engine-1"].over.set()
            for _ in range(100):
                await asyncio.sleep(0)

        at.engines.replicas.on_change = dies
        at.wanted = 1
        await at.elastic.look()
        assert at.engines.own == [0] and not at.engines.replicas.spares
        await at.close()

    asyncio.run(scene())
