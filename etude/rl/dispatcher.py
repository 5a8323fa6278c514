"""Rollouts in flight: fills free places with queued slots, begins groups where admission allows, books what comes back.

A finished rollout is in the journal before it counts as ready. One that the machinery spoiled is tried again, then
void; a group with too few valid members is void as a whole. Other attempts (an evaluation's) may share the places.
Knows neither the learner nor the engine: how a task is played is given.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Protocol, TypeVar

from etude.core.errors import EtudeError
from etude.core.settings import RLSettings
from etude.forge.curriculum.sources import TaskSource
from etude.rl.admission import Admission, Waiting
from etude.rl.groups import RolloutGroup, Slot, compact, pack
from etude.rl.journal import Journal
from etude.rollout.rollout import Outcome, Scored, Void
from etude.tasks.format.task import Task

T = TypeVar("T")
Work = Callable[[], Awaitable[None]]


class Play(Protocol):
    def __call__(self, task: Task, seed: int, on_grading: Callable[[], None]) -> Awaitable[Outcome]: ...


class Dispatcher:
    """Call `fill` whenever there may be room; `changed` is set when a group has become ready or void."""

    def __init__(
        self,
        settings: RLSettings,
        admission: Admission,
        journal: Journal,
        source: TaskSource,
        tasks: asyncio.TaskGroup,
        *,
        play: Play,
        blame: Callable[[Void], Awaitable[None]],  # raises when a void is the end of more than one rollout
        doubt: Callable[[int, Scored], Awaitable[None]],  # of a task that the monitor calls broken, by its number
        seed: int,
        step: int,
        groups: Sequence[RolloutGroup] = (),
        next_group: int = 0,
    ) -> None:
        self.settings, self.admission, self.journal = settings, admission, journal
        self.play, self.blame, self.doubt, self.seed = play, blame, doubt, seed
        self.taken = self.published = step
        self.groups = {group.number: group for group in groups}
        self.in_flight = 0
        self.closed = self.exhausted = False
        self.voids: Counter[str] = Counter()  # rollouts by whose failure it was, and "group"
        self.finished = 0  # rollouts
        self.finished_at = time.monotonic()
        self.changed = asyncio.Event()
        self.newest: deque[tuple[str, Scored]] = deque(maxlen=settings.keep_trajectories)
        self.waited = 0.0  # seconds with free places and nobody allowed to begin
        self._source, self._next_group = source, next_group
        self._stream: Iterator[Task] | None = None
        self._tasks = tasks
        self._beside: deque[Work] = deque()
        self._queue = deque(
            (group, index)
            for group in groups
            for index, slot in enumerate(group.slots)
            if slot.state not in ("ready", "void")
        )
        self._running: dict[int, set[asyncio.Task[None]]] = defaultdict(set)
        self._dropped: set[int] = set()  # numbers of void groups
        self._blocked: float | None = None
        self._spoiled = 0  # rollouts in a row that ended void

    # What the loop asks

    def fill(self) -> None:
        """Gives every free place something to do, as far as there is anything."""
        while not self.closed and self.in_flight < self.settings.concurrency:
            number, work = self._next()
            if work is None:
                break
            self.in_flight += 1
            task = self._tasks.create_task(self._place(number, work))
            self._running[number].add(task)
        wanted = not self.exhausted and len(self.groups) < self.settings.groups * (self.settings.steps - self.taken)
        blocked = wanted and not self.closed and self.in_flight < self.settings.concurrency
        now = time.monotonic()
        if self._blocked is not None:
            self.waited += now - self._blocked
        self._blocked = now if blocked else None

    def take(self) -> list[RolloutGroup] | None:
        """The groups of the next step, which are the learner's from now on; None while it has to wait."""
        waiting = [Waiting(group.number, group.began, group.ready) for group in self.groups.values()]
        chosen = self.admission.choose(waiting, self.taken, last=self.exhausted)
        if chosen is None:
            return None
        self.taken += 1
        taken = [self.groups.pop(number) for number in chosen]
        self.fill()
        return taken

    @property
    def over(self) -> bool:
        """Nothing is left, and nothing will come."""
        return self.exhausted and not self.groups

    def publish(self, step: int) -> None:
        """New rollouts begin with the weights of `step`."""
        self.published = step
        self.fill()

    async def beside(self, works: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
        """Runs these in places of rollouts, before any more of those begin."""
        futures: list[asyncio.Future[T]] = [asyncio.get_running_loop().create_future() for _ in works]

        async def settle(work: Callable[[], Awaitable[T]], future: asyncio.Future[T]) -> None:
            result = await work()
            if not future.done():
                future.set_result(result)

        self._beside.extend(partial(settle, *each) for each in zip(works, futures, strict=True))
        self.fill()
        return list(await asyncio.gather(*futures))

    async def stop(self) -> None:
        """Ends the rollouts in flight; they are queued again when the run is resumed. Others may still use places."""
        self._queue.clear()
        self.exhausted = True
        running = [task for number, tasks in self._running.items() if number != _BESIDE for task in tasks]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
        self.fill()

    def cancel(self) -> None:
        """Ends everything in flight."""
        for tasks in self._running.values():
            for task in tasks:
                task.cancel()

    # Inside

    def _next(self) -> tuple[int, Work | None]:
        if self._beside:
            return _BESIDE, self._beside.popleft()
        while self._queue:
            group, index = self._queue.popleft()
            if not group.void:
                return group.number, partial(self._roll, group, index)
        if not self.exhausted and self.admission.may_begin(len(self.groups), self.taken, self.published):
            begun = self._begin()
            if begun is not None:
                return begun.number, partial(self._roll, *self._queue.popleft())
        return _BESIDE, None

    def _begin(self) -> RolloutGroup | None:
        group = RolloutGroup(self._next_group, self.published, [Slot() for _ in range(self.settings.group)])
        if self._stream is None:
            self._stream = self._source.tasks(self.settings.first_task + group.number)
        group.task = next(self._stream, None)
        if group.task is None:
            self.exhausted = True
            self.changed.set()
            return None
        self._next_group += 1
        self.journal.admit(group.number, len(group.slots), group.began)
        self.groups[group.number] = group
        self._queue.extend((group, index) for index in range(len(group.slots)))
        return group

    async def _place(self, number: int, work: Work) -> None:
        try:
            await work()
        except asyncio.CancelledError:
            if number not in self._dropped:  # by us, because its group is void
                raise
        except BaseException:
            self.closed = True
            raise
        finally:
            self.in_flight -= 1
            task = asyncio.current_task()
            assert task is not None
            self._running[number].discard(task)
            if not self._running[number]:
                del self._running[number]
        self.fill()

    async def _roll(self, group: RolloutGroup, index: int) -> None:
        slot, number = group.slots[index], group.number
        if group.task is None:  # a group of an earlier lineage
            group.task = next(self._source.tasks(self.settings.first_task + number))
        slot.state = "running"
        self.journal.change(number, index, "running")
        seed = random.Random(f"{self.seed}/rl/{number}/{index}").getrandbits(31)
        outcome = await self.play(group.task, seed, partial(self._grading, group, index))
        if isinstance(outcome, Scored) and not (trainable := outcome.trajectory.trainable):
            outcome = Void(outcome.task, "harness", False, f"it cannot be trained on: {trainable.why_not}")
        if isinstance(outcome, Void):
            await self._spoil(group, index, outcome)
            return
        rollout = compact(outcome)
        self.journal.ready(number, index, pack(rollout))
        slot.rollout, slot.state = rollout, "ready"
        self.newest.append((f"{number:06d}-{index:02d}-{self.journal.lineage}", outcome))
        self.finished += 1
        self.finished_at = time.monotonic()
        self._spoiled = 0
        if group.ready:
            self.changed.set()
        if rollout.verdict == "broken task":
            await self.doubt(self.settings.first_task + number, outcome)

    def _grading(self, group: RolloutGroup, index: int) -> None:
        group.slots[index].state = "grading"
        self.journal.change(group.number, index, "grading")

    async def _spoil(self, group: RolloutGroup, index: int, void: Void) -> None:
        await self.blame(void)
        slot = group.slots[index]
        self.finished_at = time.monotonic()
        if void.retry and slot.tries < self.settings.retries:
            slot.tries += 1
            slot.state = "queued"
            self.journal.change(group.number, index, "queued")
            self._queue.appendleft((group, index))
            return
        self.voids[void.cause] += 1
        self._spoiled += 1
        if self._spoiled >= 2 * self.settings.group + self.settings.concurrency:
            raise EtudeError(
                f"{self._spoiled} rollouts in a row were spoiled by the machinery; the last: {void.message}"
            )
        slot.state = "void"
        self.journal.change(group.number, index, "void")
        if group.void:
            self._drop(group)
        if group.void or group.ready:
            self.changed.set()

    def _drop(self, group: RolloutGroup) -> None:
        self.voids["group"] += 1
        self.journal.void_group(group.number)
        self.groups.pop(group.number, None)
        self._dropped.add(group.number)
        for task in self._running.get(group.number, set()) - {asyncio.current_task()}:
            task.cancel()


_BESIDE = -1  # in the place of a group's number: attempts of others
