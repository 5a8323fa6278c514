"""The loop over simulated services: real admission, dispatch and staleness; and the figures that come out.

Follows `rl/loop.py`: take groups, gradients, the probe of the published version, step, publish, swap, let others begin.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np

from etude.core.errors import EtudeError
from etude.core.rl_settings import RLSettings
from etude.core.terms import Terms
from etude.plan.simulator.clock import run_simulated
from etude.plan.simulator.engine import SimulatedEngine, Spans
from etude.plan.simulator.environment import HOUR, Faults, SimulatedEnvironment
from etude.plan.simulator.processors import OwnDevices, Processors, Queue, SharedCores
from etude.plan.simulator.service_times import RolloutShape, ServiceTimes, check
from etude.rl.admission import Admission
from etude.rl.dispatcher import Dispatcher
from etude.rl.groups import RolloutGroup, State
from etude.rl.metrics import ages
from etude.rl.probe import LENGTH, PROMPT
from etude.rl.rollout_files import RolloutFile
from etude.tasks.format.task import Task

VERBS = 2  # threads whose turn it has to be, as in environment.py: the learner, the loop
SWAPS = 3  # the engine's server and its thread, the loop


@dataclass(frozen=True)
class Scenario:
    """What is simulated: the recipe's own settings of the loop, and how much of everything there is."""

    rl: RLSettings
    engines: int = 1
    rollout_workers: int = 0
    faults: Faults = field(default_factory=Faults)
    seed: int = 0
    steps: int = 0  # that are simulated; 0 is all of the recipe's
    warm: int = 2  # steps that are left out of the figures
    most_turns: int = 1_000  # of a rollout; more are merged, which makes a simulation of very many rollouts fast


@dataclass(frozen=True)
class Forecast:
    """Figures of the steps behind the first ones. Shares are of the time, or of the tokens sampled."""

    steps: int
    seconds: float
    rollouts_per_second: float
    tokens_per_second: float
    step_seconds: float
    staleness_mean: float
    staleness_p95: float
    staleness_max: float
    waste: float  # tokens sampled that no step trained: void groups, and what died with an engine
    failed: int  # rollouts that were begun again
    void_groups: int
    learner_busy: float
    engine_busy: float
    wait_data: float
    in_flight: float

    def data(self) -> dict[str, Any]:
        return asdict(self)


def simulate(times: ServiceTimes, scenario: Scenario) -> Forecast:
    """Runs it. The same arguments give the same figures."""
    steps = scenario.steps or scenario.rl.steps
    if steps <= scenario.warm:
        raise EtudeError(f"{steps} steps are simulated and the first {scenario.warm} left out; ask for more")
    return run_simulated(_simulate(check(times), scenario))


async def _simulate(times: ServiceTimes, scenario: Scenario) -> Forecast:
    async with asyncio.TaskGroup() as tasks:
        return await _Loop(times, scenario, tasks).work()


class NoJournal:
    """Takes what the dispatcher writes and keeps nothing: a simulation is not resumed."""

    lineage = 0

    def admit(self, number: int, slots: int, step: int, terms: Terms | None = None) -> None: ...

    def change(self, number: int, slot: int, state: State) -> None: ...

    def ready(self, number: int, slot: int, data: bytes | RolloutFile) -> None: ...

    def void_group(self, number: int) -> None: ...

    @property
    def files(self) -> Any:
        raise AssertionError("simulated rollouts have no files")


class NumberedTasks:
    """A task source without an end."""

    def tasks(self, start: int = 0) -> Iterator[Task]:
        task = Task("simulated", "")
        while True:
            yield task


@dataclass
class _Mark:
    """What had been done when the first steps were over."""

    at: float = 0.0
    learner: float = 0.0
    engine: float = 0.0
    waited: float = 0.0
    sampled: float = 0.0
    lost: float = 0.0
    failed: int = 0
    void: int = 0


class _Loop:
    def __init__(self, times: ServiceTimes, scenario: Scenario, tasks: asyncio.TaskGroup) -> None:
        self.times, self.scenario, self.tasks = times, scenario, tasks
        self.rl = rl = scenario.rl
        self.clock = asyncio.get_running_loop()
        cores = SharedCores(times.cores, times.others, times.by_session) if times.cores else None
        self.processors: Processors = cores or OwnDevices()
        self.sampling: Processors = self.processors
        learning: Processors = self.processors
        if cores and times.devices:
            self.sampling = cores.device(times.engine.host)
            learning = cores.device(times.learner.host, slowed=False)
        chance = random.Random(f"{scenario.seed}/engines")
        slow = [chance.random() < scenario.faults.slow_engines for _ in range(scenario.engines)]
        self.engines = [
            SimulatedEngine(self.sampling, times.engine, 0, scenario.faults.slower if each else 1.0) for each in slow
        ]
        self.learner = Queue(learning)
        self.environment = SimulatedEnvironment(
            times,
            scenario.faults,
            self.engines,
            self.processors,
            scenario.rollout_workers,
            scenario.seed,
            scenario.most_turns,
        )
        self.dispatcher = Dispatcher(
            rl,
            Admission(rl.staleness if rl.concurrent else 0, rl.groups, rl.steps),
            NoJournal(),
            NumberedTasks(),
            self.environment,
            tasks,
            seed=scenario.seed,
            step=0,
            clock=self.clock.time,
        )
        self.step = 0
        self.version = 0
        self.unmoved: list[int] = []
        self.waited = 0.0
        self.trained = 0  # rollouts behind the mark
        self.discarded = 0.0  # tokens of void groups
        self.age_tokens: dict[int, float] = {}
        self.in_flight: list[int] = []
        self.mark = _Mark()

    async def work(self) -> Forecast:
        watches = self._watches()
        try:
            self.dispatcher.fill()
            probing = self.tasks.create_task(self._probe())
            while self.step < (self.scenario.steps or self.rl.steps):
                groups = await self._next_groups()
                await self._learn(groups)
                await probing
                await self._ask(self.times.learner.step)
                moved = self._book(groups)
                self.step += 1
                if moved:
                    await self._publish()
                    probing = self.tasks.create_task(self._probe())
                else:
                    self.unmoved.append(self.step)
                self.dispatcher.publish(self.step)
                self.in_flight.append(self.dispatcher.in_flight)
                if self.step == self.scenario.warm:
                    self.mark = self._now()
                if self.rl.eval_every and self.step % self.rl.eval_every == 0:
                    self._evaluate()
            return self._forecast()
        finally:
            self.dispatcher.close()
            for task in watches:
                task.cancel()

    async def _next_groups(self) -> list[RolloutGroup]:
        began = self.clock.time()
        while (groups := self.dispatcher.take()) is None:
            self.dispatcher.changed.clear()
            await self.dispatcher.changed.wait()
        self.waited += self.clock.time() - began
        return groups

    async def _learn(self, groups: Sequence[RolloutGroup]) -> None:
        times = self.times.learner
        # A group of equal rewards costs no forward (rl/batches.py).
        learnt = [self._shape(group, index) for group in groups if group.signal for index in range(len(group.slots))]
        tokens = sum(shape.own if times.shares else shape.tokens for shape in learnt)
        await self._ask(times.token * tokens)
        if compared := self._compared(groups):
            await self._ask(times.score * compared)

    async def _ask(self, seconds: float) -> None:
        """One verb of the learner."""
        await asyncio.sleep(VERBS * self.processors.turn())
        await self.learner.work(seconds)

    def _shape(self, group: RolloutGroup, index: int) -> RolloutShape:
        return self.environment.shape(group.number, index)

    def _compared(self, groups: Sequence[RolloutGroup]) -> int:
        """Tokens of the rollouts that begin with the learner's own weights, as rl/probe.py scores them again."""
        found = [
            self._shape(group, index).tokens
            for group in groups
            for index in range(len(group.slots))
            if (spans := self.environment.spans.get((group.number, index))) and spans[0][0] == self.version
        ]
        room, scored = self.rl.probe_real_tokens, 0
        for tokens in sorted(found, reverse=True) if room else ():
            if tokens <= room or not scored:
                scored, room = scored + tokens, room - tokens
        return scored

    def _book(self, groups: Sequence[RolloutGroup]) -> bool:
        """Counts what the step trained; whether it moved the weights."""
        counts = self.step >= self.scenario.warm
        for group in groups:
            self.trained += len(group.rollouts) if counts else 0
            spans: Spans = [
                span
                for index in range(len(group.slots))
                for span in self.environment.spans.pop((group.number, index), ())
            ]
            self.environment.forget(group.number)
            if counts and spans:
                version_N2 = np.array([(0, version) for version, _ in spans], np.int32)
                for age, (_, tokens) in zip(ages(version_N2, self.step, {}, self.unmoved).tolist(), spans, strict=True):
                    self.age_tokens[age] = self.age_tokens.get(age, 0.0) + tokens
        return any(group.signal for group in groups)

    async def _publish(self) -> None:
        await self._ask(self.times.learner.publish)
        self.version = self.step
        await asyncio.sleep(SWAPS * self.processors.turn())
        for engine in self.engines:
            engine.swap(self.version, self.times.swap)
        if self.times.swap and (self.times.devices or not self.times.cores):
            await asyncio.sleep(self.times.swap)

    async def _probe(self) -> None:
        """The answers of the probe on engines, one after another, then the learner's scores of them."""
        answers = -(-self.times.probe_tokens // LENGTH)
        up = [engine for engine in self.engines if engine.up] or self.engines
        waits = [self.clock.create_future() for _ in range(answers)]
        for place, wait in enumerate(waits):
            up[place % len(up)].sample(PROMPT, LENGTH, wait.set_result)
        await asyncio.gather(*waits)
        await self._ask(self.times.learner.score * self.times.probe_tokens * (1 + PROMPT / LENGTH))

    def _evaluate(self) -> None:
        count = self.rl.eval_tasks * self.rl.eval_samples
        runs = [partial(self.environment.evaluate, self.step * count + place) for place in range(count)]
        self.tasks.create_task(self.dispatcher.run_evaluation(runs))

    # Failures

    def _watches(self) -> list[asyncio.Task[None]]:
        faults, found = self.scenario.faults, []
        if faults.engines:
            found += [self.tasks.create_task(self._engine_fails(number)) for number in range(len(self.engines))]
        if faults.learner:
            found.append(self.tasks.create_task(self._learner_fails()))
        return found

    async def _engine_fails(self, number: int) -> None:
        chance = random.Random(f"{self.scenario.seed}/engine/{number}")
        while True:
            await asyncio.sleep(chance.expovariate(self.scenario.faults.engines / HOUR))
            self.engines[number].fail(self.times.save_tokens)
            await asyncio.sleep(self.times.start)
            self.engines[number].start()

    async def _learner_fails(self) -> None:
        """Another learner starts, and does again what was done since the last checkpoint."""
        chance = random.Random(f"{self.scenario.seed}/learner")
        while True:
            await asyncio.sleep(chance.expovariate(self.scenario.faults.learner / HOUR))
            again = self.step % self.rl.save_every
            each = self.learner.seconds / max(1, self.step)
            await self.learner.work(self.times.start + again * each)

    # Figures

    def _now(self) -> _Mark:
        busy = sum(engine.busy_until(self.sampling.now()) for engine in self.engines)
        return _Mark(
            self.clock.time(),
            self.learner.seconds,
            busy,
            self.waited,
            sum(engine.sampled for engine in self.engines),
            sum(engine.lost for engine in self.engines),
            self.environment.counts["failed"],
            self.dispatcher.voids["group"],
        )

    def _forecast(self) -> Forecast:
        end, mark = self._now(), self.mark
        seconds, steps = end.at - mark.at, self.step - self.scenario.warm
        # On shared cores these are shares of a core, as in a run's own rows.
        known = sorted(self.age_tokens.items())
        tokens = sum(count for _, count in known)
        sampled = end.sampled - mark.sampled
        probes = self.times.probe_tokens * steps
        below, p95 = 0.0, 0.0
        for age, count in known:
            if below < 0.95 * tokens:
                p95 = float(age)
            below += count
        lost = end.lost - mark.lost
        void = self._void_tokens(end.void - mark.void)
        return Forecast(
            steps=steps,
            seconds=seconds,
            rollouts_per_second=self.trained / seconds,
            tokens_per_second=max(0.0, sampled - probes) / seconds,
            step_seconds=seconds / steps,
            staleness_mean=sum(age * count for age, count in known) / max(tokens, 1e-9),
            staleness_p95=p95,
            staleness_max=float(known[-1][0]) if known else 0.0,
            waste=(lost + void) / max(sampled, 1e-9),
            failed=end.failed - mark.failed,
            void_groups=end.void - mark.void,
            learner_busy=min(1.0, (end.learner - mark.learner) / seconds),
            engine_busy=min(1.0, (end.engine - mark.engine) / seconds / len(self.engines)),
            wait_data=(end.waited - mark.waited) / seconds,
            in_flight=sum(self.in_flight[self.scenario.warm :]) / max(1, steps),
        )

    def _void_tokens(self, groups: int) -> float:
        """Of finished members of groups that became void: at most all but two of each."""
        return groups * max(0, self.rl.group - 2) * self.times.rollout_tokens
