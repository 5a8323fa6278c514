"""Several engines as one policy: who is asked, what all of them get, and one that is gone meanwhile."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import Any

import pytest

from etude.core.errors import EtudeError
from etude.core.frame_calls import ConnectionLost
from etude.core.policy import Context, Sample, Sampling, Version
from etude.policies.replicas import EngineReplicas

FIRST, SECOND = Version(0, 1), Version(0, 2)


class Engine:
    """Remembers what it was asked; `refuses` are the answers to its next calls."""

    def __init__(self, name: str) -> None:
        self.name = self.address = name
        self.asked: list[Any] = []
        self.refuses: list[Exception] = []

    async def _heard(self, *what: Any) -> None:
        self.asked.append(what)
        if self.refuses:
            raise self.refuses.pop(0)

    async def update(self, version: Version) -> dict[str, str]:
        await self._heard("update", version)
        return {"version": str(version)}

    async def pin(self, version: Version) -> None:
        await self._heard("pin", version)

    async def health(self) -> None:
        await self._heard("health")

    async def sample(
        self, context: Context, sampling: Sampling, version: Version | None = None, **options: Any
    ) -> Sample:
        await self._heard("sample", version)
        return Sample(self.name, "stop")


class Stuck(Engine):
    async def update(self, version: Version) -> dict[str, str]:
        await asyncio.Event().wait()
        return {}


def replicas(*engines: Any, **options: Any) -> EngineReplicas:
    return EngineReplicas(engines, FIRST, **options)


def test_a_group_stays_with_one_engine_and_groups_share_them_all() -> None:
    together = replicas(*(Engine(str(n)) for n in range(4)))
    with ExitStack() as stack:
        chosen = [stack.enter_context(together.rollout(str(number % 50))).address for number in range(200)]
        assert all(chosen[number] == chosen[number % 50] for number in range(200))
        assert min(chosen.count(str(n)) for n in range(4)) > 20


def test_samples_without_a_rollout_go_round_and_pinned_ones_stay_with_their_prompt() -> None:
    async def scene() -> None:
        together = replicas(Engine("a"), Engine("b"))
        texts = [(await together.sample(Context(ids=(1,)), Sampling())).text for _ in range(4)]
        assert sorted(texts) == ["a", "a", "b", "b"]
        pinned = await together.pin(FIRST)
        prompt = tuple(range(100))
        begun = [(await pinned.sample(Context(ids=(*prompt, *range(n))), Sampling())).text for n in range(3)]
        assert len(set(begun)) == 1
        assert all(("pin", FIRST) in engine.asked for engine in together.engines)  # type: ignore[attr-defined]

    asyncio.run(scene())


def test_an_update_reaches_all_and_one_that_is_gone_is_waited_for() -> None:
    async def scene() -> None:
        gone, here, waited = Engine("gone"), Engine("here"), list[int]()
        gone.refuses = [ConnectionLost("gone")]

        async def wait_up(number: int) -> None:
            waited.append(number)

        together = replicas(gone, here, wait_up=wait_up)
        await together.update(SECOND)
        assert waited == [0] and together.version == SECOND and here.asked == [("update", SECOND)]
        # Asked again: one that began to start before the pin was wanted came back without it.
        gone.refuses = [ConnectionLost("gone"), ConnectionLost("gone")]
        await together.pin(SECOND)
        assert waited == [0, 0, 0] and gone.asked[-1] == ("pin", SECOND) and not gone.refuses
        gone.refuses = [ConnectionLost("gone")] * 10
        with pytest.raises(EtudeError, match="the connection to engine 0 at gone was lost 10 times in a row"):
            await together.health()
        gone.refuses = [ConnectionLost("gone")]
        together.wait_up = None
        with pytest.raises(ConnectionLost):
            await together.health()

    asyncio.run(scene())


def test_an_engine_that_does_not_answer_is_named_after_the_deadline() -> None:
    with pytest.raises(EtudeError, match=r"engine 1 at stuck did not answer within 0\.05 s"):
        asyncio.run(replicas(Engine("a"), Stuck("stuck"), deadline=0.05).update(SECOND))


def test_one_that_was_started_again_pins_and_swaps_as_the_others_did() -> None:
    async def scene() -> None:
        together = replicas(Engine("a"), deadline=10.0)
        fresh = Engine("fresh")
        await together.restore(fresh, FIRST)  # type: ignore[arg-type]
        assert not fresh.asked  # it has the version already
        together.pinned, together.version = FIRST, SECOND
        fresh.refuses = [EtudeError("the pin is taken")]
        with pytest.raises(EtudeError, match="the pin is taken"):
            await together.restore(fresh, FIRST)  # type: ignore[arg-type]
        fresh.asked.clear()
        await together.restore(fresh, FIRST)  # type: ignore[arg-type]
        assert fresh.asked == [("pin", FIRST), ("update", SECOND)]

    asyncio.run(scene())


def test_an_engine_that_joins_gets_the_version_and_the_next_groups() -> None:
    async def scene() -> None:
        together, fresh = replicas(Engine("a"), deadline=10.0), Engine("fresh")
        await together.update(SECOND)
        await together.pin(SECOND)
        with together.rollout("1") as first:
            assert await together.add(fresh, FIRST) == 1  # type: ignore[arg-type]
            assert fresh.asked == [("update", SECOND)]
            with together.rollout("2") as other, together.rollout("1") as second:
                assert (first.address, other.address, second.address) == ("a", "fresh", "a")
            assert (await first.sample(Context(), Sampling())).text == "a"
        # What it never pinned it is not asked for.
        assert {together.of_pinned(str(number)).address for number in range(20)} == {"a"}

    asyncio.run(scene())


def test_rollouts_leave_an_engine_that_is_removed_at_their_next_turn() -> None:
    async def scene() -> None:
        leaving, staying = Engine("leaving"), Engine("staying")
        together = replicas(leaving, staying, deadline=10.0)
        with together.rollout("1") as rollout:
            assert (await rollout.sample(Context(), Sampling())).text == "leaving"
            assert await together.remove(0, deadline=0.0) == 1
            assert (await rollout.sample(Context(), Sampling())).text == "staying"
            assert together.placement.leaving(0) == 0
        assert together.placement.in_flight == {1: 0}
        await together.update(SECOND)
        assert leaving.asked == [("sample", None), ("health",)] and staying.asked[-1] == ("update", SECOND)
        with pytest.raises(EtudeError, match="the only one"):
            await together.remove(1, deadline=0.0)

    asyncio.run(scene())


def test_work_is_counted_once_whoever_does_not_answer_or_was_started_again() -> None:
    class Counts(Engine):
        said: Any = 0

        async def stats(self) -> dict[str, int]:
            if self.said is None:
                raise ConnectionLost("gone")
            return {"steps": self.said, "other": 7}

    async def scene() -> None:
        one, two = Counts("one"), Counts("two")
        together, found = replicas(one, two), []
        # Both; the second silent, and back; the second started again.
        for one.said, two.said in ((10, 100), (20, None), (30, 130), (40, 5)):
            found.append((await together.work())["engine_steps"])
        assert found == [110, 120, 160, 175]

    asyncio.run(scene())


def test_an_engine_whose_version_never_comes_is_given_up_at_the_deadline() -> None:
    class Waits(Engine):
        async def update(self, version: Version) -> dict[str, str]:
            await self._heard("update", version)
            await asyncio.sleep(0.3)  # as one that looks for it in a chain
            raise EtudeError("not there")

    async def scene() -> None:
        together, fresh = replicas(Engine("a"), deadline=1.0), Waits("fresh")
        await together.update(SECOND)
        with pytest.raises(EtudeError, match=f"cannot be brought to version {SECOND}: not there"):
            await together.restore(fresh, FIRST)  # type: ignore[arg-type]
        assert len(fresh.asked) < 5  # 0.5 s each; five are as many as there are looks in a second

    asyncio.run(scene())


def test_a_spare_has_every_version_and_takes_the_place_of_one_that_died() -> None:
    async def scene() -> None:
        dies, spare, told = Engine("dies"), Engine("spare"), list[list[int]]()
        together = replicas(dies, spare, deadline=10.0)

        async def on_change() -> None:
            told.append(together.present)

        together.on_change = on_change
        together.placement.remove(1)
        together.back(1, has_pin=False)
        await together.update(SECOND)
        assert spare.asked == [("update", SECOND)] and together.present == [0] and together.spares == {1}
        with together.rollout("1") as rollout:
            assert rollout.address == "dies"
            assert await together.replace(0) and told == [[1]]
            assert (await rollout.sample(Context(), Sampling())).text == "spare"
        # Nobody waits for it; when it is back it is the spare, and a spare that dies is only missed.
        dies.refuses = [ConnectionLost("gone")]
        await together.update(FIRST)
        assert not together.spares and not await together.replace(1)
        together.back(0, has_pin=False)
        assert together.spares == {0} and together.present == [1]
        assert not await together.replace(0) and not together.spares

    asyncio.run(scene())
