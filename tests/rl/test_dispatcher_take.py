"""`Dispatcher.take` looks only where something may have changed; here beside one that always looks at all groups."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from typing import Any

from etude.core.rl_settings import RLSettings
from etude.core.terms import Terms
from etude.rl.admission import Admission, Waiting
from etude.rl.dispatcher import Dispatcher
from etude.rl.groups import Finished, Rollout, RolloutGroup, Slot
from etude.rollout.rollout import Void
from etude.tasks.format.task import Task


class LooksAlways(Dispatcher):
    def take(self) -> list[RolloutGroup] | None:
        silent = [group for group in self.groups.values() if group.ready and not group.signal]
        for group in silent[: max(0, self._most_silent - len(self._silent))]:
            self._silent.append(self.groups.pop(group.number))
        if silent:
            self.fill()
        waiting = [Waiting(group.number, group.began, group.ready) for group in self.groups.values()]
        chosen = self.admission.choose(waiting, self.steps_begun, last=self.exhausted)
        if chosen is None and self.exhausted and not self.groups and self._silent:
            chosen = []
        if chosen is None:
            return None
        self.steps_begun += 1
        groups = [self.groups.pop(number) for number in chosen] + self._silent
        self._silent = []
        self.fill()
        return groups


class Nothing:
    """Writes nothing down."""

    lineage = 0
    files: Any = None

    def admit(self, *_: Any) -> None: ...
    def change(self, *_: Any) -> None: ...
    def ready(self, *_: Any) -> None: ...
    def void_group(self, *_: Any) -> None: ...


class Numbers:
    def __init__(self, count: int) -> None:
        self.count = count

    def tasks(self, start: int = 0) -> Iterator[Task]:
        return (Task(str(number), "") for number in range(start, self.count))


class Held:
    """Rollouts that end when they are told to."""

    def __init__(self) -> None:
        self.waiting: dict[str, tuple[Task, asyncio.Future[Finished | Void]]] = {}

    async def run_rollout(
        self, task: Task, seed: int, terms: Terms, on_grading: Callable[[], None], name: str
    ) -> Finished | Void:
        future: asyncio.Future[Finished | Void] = asyncio.get_running_loop().create_future()
        self.waiting[name] = task, future
        try:
            return await future
        finally:
            del self.waiting[name]

    async def check_void(self, void: Void) -> None: ...

    async def check_broken(self, number: int, scored: Any) -> None: ...

    def end(self, name: str, reward: float | None) -> None:
        task, future = self.waiting[name]
        void = Void(task, "harness", False, "spoiled")
        future.set_result(void if reward is None else Finished(task, rollout(reward), b""))


def rollout(reward: float) -> Rollout:
    return Rollout(reward, {}, False, "final", 1, 0, 0, 1, 1.0, 1.0, ())


def left_over(chance: random.Random, settings: RLSettings, step: int, count: int) -> list[RolloutGroup]:
    """Groups of an earlier lineage."""
    found = []
    for number in range(count):
        slots = [
            Slot("ready", rollout(float(chance.random() < 0.5))) if chance.random() < 0.6 else Slot()
            for _ in range(settings.group)
        ]
        found.append(RolloutGroup(number, max(0, step - chance.randint(0, settings.staleness)), slots))
    return found


async def scene(seed: int) -> tuple[int, int]:
    """One run of both; how many steps began, and how often one had to wait although enough groups were ready."""
    chance = random.Random(seed)
    settings = RLSettings(
        groups=chance.randint(1, 3),
        group=chance.randint(1, 3),
        concurrency=chance.randint(1, 12),
        staleness=chance.randint(0, 3),
        steps=12,
    )
    step, refill, source = chance.choice([0, 3]), chance.choice([0, 0, 1]), Numbers(chance.choice([14, 1000]))
    earlier = chance.randint(0, settings.groups * (settings.staleness + 1)) if step else 0
    begun, waited, spoiled = 0, 0, False
    async with asyncio.TaskGroup() as tasks:
        pair = []
        for kind in (Dispatcher, LooksAlways):
            held = Held()
            admission = Admission(settings.staleness, settings.groups, settings.steps)
            groups = left_over(random.Random(seed), settings, step, earlier)
            facts = {"seed": 0, "step": step, "groups": groups, "next_group": earlier, "refill": refill}
            pair.append((kind(settings, admission, Nothing(), source, held, tasks, **facts), held))
        (quick, held), (plain, beside) = pair
        quick.fill(), plain.fill()
        for _ in range(250):
            for _ in range(8):
                await asyncio.sleep(0)
            assert held.waiting.keys() == beside.waiting.keys()
            event = chance.random()
            if event < 0.6 and held.waiting:
                name = chance.choice(sorted(held.waiting))
                spoiled = not spoiled and chance.random() < 0.15
                reward = None if spoiled else float(chance.random() < 0.4)
                held.end(name, reward), beside.end(name, reward)
            elif event < 0.7 and quick.published < quick.steps_begun:
                quick.publish(quick.published + 1), plain.publish(plain.published + 1)
            elif quick.steps_begun < settings.steps:
                taken = [group.number for group in found] if (found := plain.take()) is not None else None
                ours = [group.number for group in found] if (found := quick.take()) is not None else None
                assert ours == taken and quick.groups.keys() == plain.groups.keys()
                assert quick._ready == sum(group.ready for group in quick.groups.values())
                begun += taken is not None
                waited += taken is None and quick._ready >= settings.groups
        for dispatcher in (quick, plain):
            await dispatcher.stop()
            dispatcher.close()
    return begun, waited


def test_the_same_groups_are_taken_at_the_same_time_as_by_one_that_always_looks() -> None:
    found = [asyncio.run(scene(seed)) for seed in range(40)]
    assert sum(begun for begun, _ in found) > 150 and sum(waited for _, waited in found) > 10, found
