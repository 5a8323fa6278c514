"""Which rollout begins next: slots of waiting groups, then new groups where admission allows; and what comes back.

A finished rollout is in the journal before it counts as ready. One that the machinery spoiled is tried again, then
void; a group with too few valid members is void as a whole. An evaluation may share the places. Where a killed run goes
on, the first steps repeat those that are behind its checkpoint, and no rollout goes on before the weights are as new as
those that its group began with. Knows neither the learner nor the engine: the environment runs a rollout.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from etude.core.errors import EtudeError
from etude.core.rl_settings import RLSettings
from etude.core.terms import Terms
from etude.forge.curriculum.sources import Mixes, TaskSource
from etude.rl.admission import Admission, Waiting
from etude.rl.groups import Finished, RolloutGroup, Slot, State, packed, slot_name
from etude.rl.rollout_files import RolloutFile, RolloutFiles
from etude.rl.workers.ready_rollouts import ReadyRollouts
from etude.rollout.rollout import Outcome, Scored, Void
from etude.rollout.scheduler import Scheduler, Work, retry_void
from etude.tasks.format.task import Task

T = TypeVar("T")
EVALUATION = -1  # owner of places, beside the numbers of groups


class Environment(Protocol):
    def run_rollout(
        self, task: Task, seed: int, terms: Terms, on_grading: Callable[[], None], name: str
    ) -> Awaitable[Outcome | Finished]:
        """`name` is that of the slot, the same in every try and after every resume."""
        ...

    async def check_void(self, void: Void) -> None:
        """Raises when a void is the end of more than one rollout."""
        ...

    async def check_broken(self, number: int, scored: Scored | Finished) -> None:
        """Hears of the source's task `number` that its audit calls it broken."""
        ...


class SlotRecords(Protocol):
    """What a dispatcher writes down: the journal, or nothing where a loop is simulated."""

    lineage: int

    @property
    def files(self) -> RolloutFiles: ...

    def admit(self, number: int, slots: int, step: int, terms: Terms | None = None) -> None: ...

    def change(self, number: int, slot: int, state: State) -> None: ...

    def ready(self, number: int, slot: int, data: bytes | RolloutFile) -> None: ...

    def void_group(self, number: int) -> None: ...


class Dispatcher:
    """Call `fill` whenever there may be room; `changed` is set when a group has become ready or void."""

    def __init__(
        self,
        settings: RLSettings,
        admission: Admission,
        journal: SlotRecords,
        source: TaskSource,
        environment: Environment,
        tasks: asyncio.TaskGroup,
        *,
        seed: int,
        step: int,
        groups: Sequence[RolloutGroup] = (),
        next_group: int = 0,
        replays: Sequence[Sequence[int]] = (),
        terms: Callable[[int], Terms] = lambda number: Terms(),
        refill: int = 0,
        on_settled: Callable[[str], None] = lambda name: None,
        ready: ReadyRollouts | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._on_settled = on_settled  # hears the name of a slot that is ready or void
        self.ready_rollouts = ready  # bounds what waits in memory; None keeps all of it there
        self.settings, self.admission, self.journal = settings, admission, journal
        self.environment, self.seed = environment, seed
        self.steps_begun = self.published = step
        self._replays = deque(replays)  # numbers of groups that the first steps are made of
        self.replayed = step + len(replays)  # the last of those steps
        self.groups = {group.number: group for group in groups}
        self.exhausted = False
        self.voids: Counter[str] = Counter()  # rollouts by whose failure it was, and "group"
        self.finished_at = self._clock()
        self.changed = asyncio.Event()
        self.newest: deque[tuple[str, Scored]] = deque(maxlen=settings.keep_trajectories)
        self.scheduler = Scheduler(settings.concurrency, self._next, tasks.create_task)
        self._source, self._next_group, self._terms = source, next_group, terms
        # Groups without signal that others take the place of, at most so many in a step: they are trained with it.
        self._silent: list[RolloutGroup] = []
        self._most_silent = refill * settings.groups
        self._stream: Iterator[Task] | None = None
        self._evaluation: deque[Callable[[], Coroutine[Any, Any, None]]] = deque()
        self._queue = deque(
            (group, index)
            for group in sorted(groups, key=lambda group: (group.began, group.number))
            for index, slot in enumerate(group.slots)
            if slot.state not in ("ready", "void")
        )
        # Looking at all groups takes milliseconds where there are ten thousand, and some become ready every one.
        self._ready = sum(group.ready for group in groups)
        self._look = True  # whether a step may begin that could not at the last look
        self._blocked: tuple[int, int] | None = None  # age of the groups that the next step waits to be older than
        self._idle_since: float | None = None
        self._idle_seconds = 0.0
        self._voids_in_a_row = 0

    # What the loop asks

    @property
    def in_flight(self) -> int:
        return self.scheduler.in_flight

    def fill(self) -> None:
        """Gives every free place something to do, as far as there is anything."""
        self.scheduler.fill()

    def take(self) -> list[RolloutGroup] | None:
        """The groups of the next step, which are the learner's from now on; None while it has to wait."""
        if self._replays:
            return self._leave(self._replays.popleft())
        self._set_silent_aside()
        if not self.exhausted and (self._ready < self.settings.groups or not self._look):
            return None
        waiting = [Waiting(group.number, group.began, group.ready) for group in self.groups.values()]
        chosen = self.admission.choose(waiting, self.steps_begun, last=self.exhausted)
        self._look = chosen is not None
        self._blocked = self.admission.youngest(waiting) if chosen is None else None
        if chosen is None and self.exhausted and not self.groups and self._silent:
            chosen = []  # nothing else will come
        if chosen is None:
            return None
        return self._leave(chosen)

    def _leave(self, numbers: Sequence[int]) -> list[RolloutGroup]:
        # A begun step makes room in admission, so new groups may begin at once.
        self.steps_begun += 1
        self._ready -= len(numbers)
        groups = [self.groups.pop(number) for number in numbers] + self._silent
        self._silent = []
        self.fill()
        return groups

    def _set_silent_aside(self) -> None:
        """Groups that teach nothing make room for others, up to a bound: a policy that fails at all of them goes on."""
        if not self._most_silent:
            return
        silent = [group for group in self.groups.values() if group.ready and not group.signal]
        for group in silent[: max(0, self._most_silent - len(self._silent))]:
            self._silent.append(self.groups.pop(group.number))
            self._ready, self._look = self._ready - 1, True
        if silent:
            self.fill()

    @property
    def over(self) -> bool:
        """Nothing is left, and nothing will come."""
        return self.exhausted and not self.groups and not self._silent

    def publish(self, step: int) -> None:
        """New rollouts begin with the weights of `step`."""
        self.published = step
        self.fill()

    def idle_seconds(self) -> float:
        """How long places were free with no group allowed to begin, since this was last asked."""
        seconds, self._idle_seconds = self._idle_seconds, 0.0
        return seconds

    async def run_evaluation(self, runs: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
        """Runs these in places of rollouts, before any more of those begin."""
        futures: list[asyncio.Future[T]] = [asyncio.get_running_loop().create_future() for _ in runs]

        async def settle(run: Callable[[], Awaitable[T]], future: asyncio.Future[T]) -> None:
            outcome = await run()
            if not future.done():
                future.set_result(outcome)

        self._evaluation.extend(partial(settle, *each) for each in zip(runs, futures, strict=True))
        self.fill()
        return list(await asyncio.gather(*futures))

    async def stop(self) -> None:
        """Ends the rollouts in flight; they are queued again when the run is resumed. An evaluation goes on."""
        self._queue.clear()
        self.exhausted = True
        if running := self.scheduler.cancel(keep=EVALUATION):
            await asyncio.wait(running)
        self.fill()

    def close(self) -> None:
        """Ends everything in flight, and nothing new begins."""
        self.scheduler.closed = True
        self.scheduler.cancel()

    # Inside

    def _next(self) -> Work | None:
        """What a free place does now, and how long it had nothing to do."""
        now = self._clock()
        if self._idle_since is not None:
            self._idle_seconds += now - self._idle_since
        work = self._find()
        missing = len(self.groups) < self.settings.groups * (self.settings.steps - self.steps_begun)
        self._idle_since = now if work is None and missing and not self.exhausted else None
        return work

    def _find(self) -> Work | None:
        if self._evaluation:
            return Work(EVALUATION, self._evaluation.popleft())
        while True:
            # Later ones of a resumed run wait for the weights that they began with: those of now would be too old when
            # their group is trained.
            while self._queue and self._queue[0][0].began <= self.published:
                group, index = self._queue.popleft()
                if not group.void:
                    return Work(group.number, partial(self._roll, group, index))
            if self._queue or self.exhausted:
                return None
            if not self.admission.may_begin(len(self.groups), self.steps_begun, self.published):
                return None
            self._begin()

    def _begin(self) -> None:
        group = RolloutGroup(self._next_group, self.published, [Slot() for _ in range(self.settings.group)])
        # Opened when the first new group begins: a resumed run goes on behind the groups that it has.
        if self._stream is None:
            self._stream = self._source.tasks(self.settings.first_task + group.number)
        group.task = next(self._stream, None)
        if group.task is None:
            self.exhausted = True
            self.changed.set()
            return
        self._next_group += 1
        group.terms = self._terms(group.number)
        self.journal.admit(group.number, len(group.slots), group.began, group.terms)
        self.groups[group.number] = group
        self._queue.extend((group, index) for index in range(len(group.slots)))

    async def _roll(self, group: RolloutGroup, index: int) -> None:
        slot, number = group.slots[index], group.number
        if group.task is None:  # a group of an earlier lineage
            group.task = next(self._source.tasks(self.settings.first_task + number))
        outcome = await retry_void(partial(self._run, group, index, group.task), self.settings.retries)
        if isinstance(outcome, Void):
            self._void(group, index, outcome)
        else:
            if isinstance(outcome, Finished):
                rollout, data = outcome.rollout, outcome.data
            else:
                place = (number, index, self.journal.lineage)
                rollout, data = await packed(outcome, self.source_of(number), group.terms, self.journal.files, place)
                self.newest.append((f"{slot_name(number, index)}-{self.journal.lineage}", outcome))
            # In the journal before it counts as ready: a kill between the two lines loses nothing.
            self.journal.ready(number, index, data)
            slot.rollout, slot.state = rollout, "ready"
            if self.ready_rollouts is not None:
                self.ready_rollouts.hold(number, index, slot)
            self._voids_in_a_row = 0
            if group.ready:
                self._count_ready(group)
            if rollout.verdict == "broken task":
                await self.environment.check_broken(self.settings.first_task + number, outcome)
        self._on_settled(slot_name(number, index))

    def source_of(self, number: int) -> str:
        """Which of several mixed sources a group's task came from."""
        source = self._source
        return source.source_of(self.settings.first_task + number) if isinstance(source, Mixes) else ""

    async def _run(self, group: RolloutGroup, index: int, task: Task) -> Outcome | Finished:
        """One try of a slot."""
        self._change(group, index, "running")
        # From numbers alone, so that a slot that is sampled again after a resume has the same seed.
        seed = random.Random(f"{self.seed}/rl/{group.number}/{index}").getrandbits(31)
        on_grading = partial(self._change, group, index, "grading")
        outcome = await self.environment.run_rollout(
            task, seed, group.terms, on_grading, slot_name(group.number, index)
        )
        # Without ids or log-probabilities nothing can be learnt from it, and a second try would have none either.
        if isinstance(outcome, Scored) and not (trainable := outcome.trajectory.trainable):
            outcome = Void(outcome.task, "harness", False, f"it cannot be trained on: {trainable.why_not}")
        self.finished_at = self._clock()
        if isinstance(outcome, Void):
            # A dead engine or host ends the run here, before it voids group after group.
            await self.environment.check_void(outcome)
        return outcome

    def _change(self, group: RolloutGroup, index: int, state: State) -> None:
        group.slots[index].state = state
        self.journal.change(group.number, index, state)

    def _void(self, group: RolloutGroup, index: int, void: Void) -> None:
        self.voids[void.cause] += 1
        self._voids_in_a_row += 1
        # More than all in flight, and two whole groups: then it is not a task that spoils its own rollouts.
        if self._voids_in_a_row >= 2 * self.settings.group + self.settings.concurrency:
            raise EtudeError(
                f"{self._voids_in_a_row} rollouts in a row were spoiled by the machinery; the last: {void.message}"
            )
        self._change(group, index, "void")
        if group.void:
            self.voids["group"] += 1
            self.journal.void_group(group.number)
            self.groups.pop(group.number, None)
            if self.ready_rollouts is not None:
                self.ready_rollouts.drop(group)
            self.scheduler.drop(group.number)
            for other in range(len(group.slots)):  # those that are cancelled say nothing more
                self._on_settled(slot_name(group.number, other))
            self._look = True
            self.changed.set()
        elif group.ready:
            self._count_ready(group)

    def _count_ready(self, group: RolloutGroup) -> None:
        self._ready += 1
        self._look = self._look or self._blocked is None or (group.began, group.number) < self._blocked
        self.changed.set()
