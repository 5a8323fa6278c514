"""Simulated rollouts for the real dispatcher: turns on an engine, tools, a grade; stragglers, and what fails.

A rollout is one that the measured run made, drawn with its whole group. Everything random is drawn from the seed and a
rollout's own numbers, so another order of events changes no draw.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

from etude.core.errors import EtudeError
from etude.core.terms import Terms
from etude.plan.simulator.engine import SimulatedEngine, Spans
from etude.plan.simulator.processors import Processors, Queue, compute
from etude.plan.simulator.service_times import RolloutShape, ServiceTimes, merged
from etude.policies.placement import Placement
from etude.rl.groups import Finished, Rollout, slot_of
from etude.rollout.rollout import Scored, Void
from etude.tasks.format.task import Task

HOUR = 3600.0
# Threads that have to get their turn, one after another, before something is done. Each of them computes so little that
# it mostly waits: for what the loop's own thread does beside its work, see `SimulatedRollout._thread`.
SAMPLES = 3  # the engine's server, again for the answer, the loop
STARTS = 3  # the launcher, the sandbox's init, the loop
CALLS = 2  # the init, the loop
COLLECTS = 4  # two calls: the list of changes, and the file
CLOSES = 4  # the launcher, the init that ends, the launcher that reaps it, the loop
TESTS = 9  # init, loop, program, its test process, program, init, loop; the thread that reads the report, the loop


@dataclass(frozen=True)
class Faults:
    """How often things fail and how slow some are. Rates are for an hour of one of them."""

    engines: float = 0.0
    sandboxes: float = 0.0
    learner: float = 0.0
    slow_sandboxes: float = 0.0  # share of the rollouts
    slow_engines: float = 0.0  # share of the replicas
    slower: float = 4.0  # times as long


def read_faults(words: Sequence[str]) -> Faults:
    """`engines=0.1`, `slow_sandboxes=0.02`, ..."""
    known, given = [each.name for each in fields(Faults)], {}
    for word in words:
        name, equals, number = word.partition("=")
        try:
            given[name] = float(number)
        except ValueError:
            equals = ""
        if not equals or name not in known or not 0 <= given[name] < math.inf:
            raise EtudeError(f"cannot read --fault {word!r}; write one of {', '.join(known)} as engines=0.1")
    return Faults(**given)


class SimulatedEnvironment:
    """The dispatcher's `Environment`."""

    def __init__(
        self,
        times: ServiceTimes,
        faults: Faults,
        engines: Sequence[SimulatedEngine],
        processors: Processors,
        workers: int,
        seed: int,
        most_turns: int,
    ) -> None:
        self.times, self.faults, self.engines, self.seed = times, faults, engines, seed
        self.placement: Placement[int] = Placement(range(len(engines)))
        self.spans: dict[tuple[int, int], Spans] = {}  # of finished rollouts, until they are trained
        self.counts: Counter[str] = Counter()
        self.processors, self.most_turns = processors, most_turns
        self.loop = Queue(processors)
        self.workers = [Queue(processors) for _ in range(workers)] or [self.loop]
        self._drawn: dict[int, Sequence[RolloutShape]] = {}  # of groups under way
        self.recorded: dict[tuple[int, int], Spans] = {}  # of rollouts that failed and are tried again
        self.tries: Counter[tuple[int, int]] = Counter()
        self.hosts = [SandboxHost(processors, times) for _ in self.workers]
        self.grades: dict[tuple[int, int], list[Callable[[], None]] | None] = {}  # who waits; None: it is there

    def shape(self, number: int, index: int) -> RolloutShape:
        group = self._drawn.get(number)
        if group is None:
            groups = self.times.groups
            group = self._drawn[number] = groups[random.Random(f"{self.seed}/{number}").randrange(len(groups))]
        return group[index % len(group)]

    def fate(self, number: int, index: int) -> tuple[float, float]:
        """How many times as long this try takes in its sandbox, and after how many seconds it fails."""
        faults, rate = self.faults, self.faults.sandboxes / HOUR
        if not rate and not faults.slow_sandboxes:
            return 1.0, math.inf
        self.tries[number, index] += 1
        chance = random.Random(f"{self.seed}/{number}/{index}/{self.tries[number, index]}")
        slow = faults.slower if chance.random() < faults.slow_sandboxes else 1.0
        return slow, chance.expovariate(rate) if rate else math.inf

    def forget(self, number: int) -> None:
        """A group is trained."""
        for shape in self._drawn.pop(number, ()):
            self.grades.pop((number, shape.grade), None)

    async def run_rollout(
        self, task: Task, seed: int, terms: Terms, on_grading: Callable[[], None], name: str
    ) -> Finished | Void:
        number, index = place = slot_of(name)
        simulated = SimulatedRollout(self, number, index, on_grading, self.recorded.get(place, ()))
        if await simulated.run():
            self.recorded.pop(place, None)
            self.tries.pop(place, None)
            self.spans[place] = simulated.spans
            return Finished(task, _rollout(simulated.shape), b"")
        self.recorded[place] = simulated.spans
        self.counts["failed"] += 1
        return Void(task, "sandbox", True, "the sandbox is gone")

    async def evaluate(self, number: int) -> None:
        """A rollout of an evaluation."""
        await SimulatedRollout(self, -1 - number, 0, lambda: None, ()).run()
        self.forget(-1 - number)

    async def check_void(self, void: Void) -> None:
        """A simulated failure is never the end of all."""

    async def check_broken(self, number: int, scored: Scored | Finished) -> None:
        """No simulated task is broken."""


class SandboxHost:
    """A launcher and the sandboxes that it makes, which share a session with it; programs have their own."""

    def __init__(self, processors: Processors, times: ServiceTimes) -> None:
        self._processors, self._session = processors, processors.session()
        self._launcher, self._clock = Queue(self._session), asyncio.get_running_loop()
        self._launching, self._work = times.launcher, times.sandbox_work

    def start(self, slow: float, then: Callable[[], None]) -> None:
        def make() -> None:
            compute(self._session, self._work.start * slow, then)

        self.turns(STARTS, lambda: self._launcher.do(self._launching, make))

    def tools(self, share: float, then: Callable[[], None]) -> None:
        """So much of what a rollout's tools do."""
        self.turns(CALLS, lambda: compute(self._session, self._work.tools * share, then))

    def end(self, then: Callable[[], None]) -> None:
        """Of the agent's sandbox, when it has done its last turn."""
        self.turns(COLLECTS, lambda: self._close(then))

    def _close(self, then: Callable[[], None]) -> None:
        self.turns(CLOSES, lambda: compute(self._session, self._work.end, then))

    def grade(self, slow: float, then: Callable[[], None]) -> None:
        def test() -> None:
            self.turns(TESTS, lambda: compute(self._processors, self._work.tests * slow, lambda: self._close(then)))

        self.start(slow, test)

    def turns(self, threads: int, then: Callable[[], None]) -> None:
        """So many threads have their turn, one after another."""
        if wait := threads * self._processors.turn():
            self._clock.call_later(wait, then)
        else:
            then()


class SimulatedRollout:
    """One try of a rollout, as a chain of calls: a coroutine that woke for each wait made a simulation half as fast."""

    def __init__(
        self,
        environment: SimulatedEnvironment,
        number: int,
        index: int,
        on_grading: Callable[[], None],
        recorded: Spans | tuple[()],
    ) -> None:
        self.environment, self.times = environment, environment.times
        self.shape, self.group = environment.shape(number, index), str(number)
        self.spans: Spans = list(recorded)  # what an earlier try sampled
        self._kept = sum(tokens for _, tokens in self.spans)
        self._turns = merged(self.shape.turns, environment.most_turns)
        self._turn = 0
        self._on_grading = on_grading
        worker = number % len(environment.workers)
        self._thread, self._host = environment.workers[worker], environment.hosts[worker]
        self._grade_key = number, self.shape.grade
        # The thread that runs it is needed between any two waits: before each turn and for the grade.
        self._each = self.times.worker / (len(self._turns) + 1)
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[bool] = self._loop.create_future()
        self._slow, self._fails_at = environment.fate(number, index)
        self._fails_at += self._loop.time()

    async def run(self) -> bool:
        """Whether it came to its end."""
        placement = self.environment.placement
        self._engine = placement.begin(self.group)
        try:
            if self.times.cores:
                self._host.start(self._slow, self._next_turn)
            else:
                self._wait(self.shape.starting, self._next_turn)
            return await self._done
        finally:
            placement.end(self._engine)

    def _next_turn(self) -> None:
        if self._done.done():  # cancelled, with its group
            return
        if self._loop.time() >= self._fails_at:
            self._done.set_result(False)
        elif self._turn == len(self._turns):
            self._grade()
        else:
            self._thread.do(self._each, self._sample)

    def _sample(self) -> None:
        new, tokens = self._turns[self._turn]
        self._turn += 1
        if self._kept >= tokens:  # recorded: read again, and not sampled
            self._kept -= tokens
            self._tools()
            return
        self._engine = self.environment.placement.moved(self._engine, self.group)
        kept, self._kept = self._kept, 0.0
        engine, prompt = self.environment.engines[self._engine], new * self.times.prefill + kept
        self._host.turns(SAMPLES, lambda: engine.sample(prompt, tokens - kept, self._sampled))

    def _sampled(self, spans: Spans) -> None:
        self.spans += spans
        self._tools()

    def _tools(self) -> None:
        each = 1 / len(self._turns)
        if self.times.cores:
            self._host.tools(each * self._slow, self._next_turn)
        else:
            self._wait(self.shape.tools * each, self._next_turn)

    def _wait(self, seconds: float, then: Callable[[], None]) -> None:
        """For a sandbox that has cores of its own, as long as was measured."""
        if seconds:
            self._loop.call_later(seconds * self._slow, then)
        else:
            then()

    def _grade(self) -> None:
        self._on_grading()
        if self.times.cores:
            self._host.end(self._submit)
        else:
            self._wait(self.shape.rest, self._graded)

    def _submit(self) -> None:
        grades, key = self.environment.grades, self._grade_key
        if self.shape.grade < 0:
            self._host.grade(self._slow, self._graded)
        elif key not in grades:
            grades[key] = [self._graded]
            self._host.grade(self._slow, self._share_grade)
        elif (waiting := grades[key]) is None:
            self._graded()
        else:
            waiting.append(self._graded)

    def _share_grade(self) -> None:
        """All that handed in the same and came meanwhile have their grade now."""
        grades, key = self.environment.grades, self._grade_key
        waiting = grades.get(key)
        if key in grades:  # its group may be gone
            grades[key] = None
        for then in waiting or ():
            then()

    def _graded(self) -> None:
        self._thread.do(self._each, self._end)

    def _end(self) -> None:
        if self.times.loop and self._thread is not self.environment.loop:
            self.environment.loop.do(self.times.loop, self._finish)
        else:
            self._finish()

    def _finish(self) -> None:
        if not self._done.done():
            self._done.set_result(self._loop.time() < self._fails_at)


def _rollout(shape: RolloutShape) -> Rollout:
    """As much of a rollout as the dispatcher and the learner's batch look at."""
    return Rollout(shape.reward, {}, False, "", len(shape.turns), 0, 0, shape.tokens, 1.0, 0.0, ())
