"""One training step after another: take groups, train, probe, publish, log, evaluate, save.

A step trains the weights of version k and publishes k + 1 while rollouts go on. No version is published before the
numerics of the last one are known. Opens nothing: `orchestrator` does.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

from etude.cluster.elastic import ElasticEngines
from etude.cluster.engines import Engines
from etude.cluster.local import ProcessDied, Restarts, Supervisor
from etude.cluster.placement import Running
from etude.core.errors import EtudeError
from etude.core.policy import Version
from etude.core.progress import LastStep, TimeLimit
from etude.core.recipe import Recipe
from etude.core.run import Run
from etude.core.run_files import read_metrics
from etude.forge.curriculum.sources import HearsEffort, Listens, MakesTasks, TaskSource
from etude.rl.algorithms.base import Algorithm, BatchShape
from etude.rl.batches import Prepared, prepare
from etude.rl.checkpoint import Checkpoint, keep_readable
from etude.rl.dispatcher import Dispatcher
from etude.rl.display.dashboard import Display, open_display
from etude.rl.display.snapshot import snapshot
from etude.rl.editions import Editions
from etude.rl.evaluate import Evaluations
from etude.rl.groups import RolloutGroup
from etude.rl.journal import Journal
from etude.rl.learner.client import LearnerClient
from etude.rl.metrics import Clock, Deltas, NoPasses, bug_alarm, by_source, describe, staleness
from etude.rl.probe import Agreement, Probe
from etude.rl.rollout_environment import RolloutEnvironment
from etude.rl.workers.pool import WorkerPool
from etude.rollout.trained_tasks import TrainedTasks
from etude.rollout.turn_records import TurnRecords
from etude.serve.messages import LENT

AGAIN = "run the same command again to go on from the last checkpoint"
LOOK = 0.2  # seconds between two looks at the clock and at Ctrl-C while waiting for rollouts
STAGE = "rl"
RUNAWAY_STEPS = 3  # one batch may be odd
REMEMBERED = 1000  # newest steps without an update: more than any token may be old
FROM_LEARNER = (
    *("loss", "entropy", "drift_mean", "drift_p50", "drift_p99", "drift_max", "k1", "k2", "k3"),
    *("grad_norm", "update_rms", "lr", "skipped", "shared_tokens"),
    *("twins", "twins_filtered", "twin_change", "twin_kl", "twin_loss"),
    *("replay_moved", "replay_refused", "load_max"),
)
FROM_CHAIN = ("publish_bytes", "publish_density")


@dataclass(eq=False)
class Training:
    """A run that learns, from its newest checkpoint on. The orchestrator has opened everything it uses."""

    run: Run
    recipe: Recipe
    algorithm: Algorithm
    source: TaskSource
    journal: Journal
    learner: LearnerClient
    environment: RolloutEnvironment | WorkerPool
    probe: Probe
    dispatcher: Dispatcher
    evaluations: Evaluations
    editions: Editions
    checkpoint: Checkpoint  # where it goes on
    tasks: asyncio.TaskGroup  # of everything beside the loop
    started: float  # time.monotonic() of the command
    engines: Engines
    supervisors: Sequence[Supervisor]  # of the processes that are started again while the loop goes on
    restarts: Restarts  # of those
    learner_restarts: Restarts

    def __post_init__(self) -> None:
        self.rl = self.recipe.rl
        self.step = self.saved_step = self.checkpoint.step
        self.totals = self.checkpoint.totals
        self.seconds_before, self.voids_before = self.totals.seconds, dict(self.totals.void)
        self.shape = BatchShape(
            self.rl.groups, self.rl.group, self.rl.normaliser, self.recipe.harness.limits.sampled_tokens
        )
        self.algorithm.load_state(self.checkpoint.algorithm)
        self.unmoved = list(self.checkpoint.unmoved)
        limit = self.rl.seconds if self.rl.rate_by_clock else 0.0
        self.last_step = LastStep(limit, self.rl.steps, self.seconds_before / max(1, self.step))
        self.version = Version(self.run.lineage, self.step)  # what the engine has
        self.not_finite = 0  # steps in a row
        self.runaway = 0  # likewise, with a policy far from the one that sampled
        self.branches = self.journal.branches()
        self.trained_tasks, self.no_passes = TrainedTasks(self.run.path), NoPasses(self.run.path)
        self.clock, self.engine_work, self.sandbox_work = Clock(self._pids()), Deltas(), Deltas()
        self.watches = [self.tasks.create_task(self._watch(self.learner.child))]
        for supervisor in self.supervisors:
            self._watch_over(supervisor)
        self.elastic = ElasticEngines(
            self.engines,
            self._wanted_engines,
            self.run.path / "rl" / LENT,
            watch=self._watch_over,
            changed=self._engines_changed,
            say=lambda text: self.run.say(f"rl: {text}"),
            drain_seconds=self.rl.engine_seconds,
        )
        self.watches.append(self.tasks.create_task(self.elastic.run()))
        self.agreement: Agreement | None = None
        self.probing = self._start_probe()
        self.writing: asyncio.Task[None] | None = None
        self.saving: tuple[int, ExitStack] | None = None  # the step of a checkpoint, and what commits it
        self.making: asyncio.Task[None] | None = None

    @property
    def seconds(self) -> float:
        """Of this run, in all lineages that survive."""
        return self.seconds_before + time.monotonic() - self.started

    @property
    def out_of_time(self) -> bool:
        return bool(self.rl.seconds) and self.seconds >= self.rl.seconds

    async def work(self) -> dict[str, Any]:
        """Trains to the last step, or until Ctrl-C or the time limit; the facts of the stage."""
        try:
            limit = TimeLimit(self.rl.seconds, self.seconds) if self.rl.seconds else None
            with open_display(
                "reinforcement learning",
                self.rl.steps,
                self.step,
                limit,
                lambda: snapshot(self.dispatcher, self.rl.concurrency, self.evaluations.rows, self.run.stopping),
                history=lambda: [row for row in read_metrics(self.run.path) if row["stage"] == STAGE],
                dashboard=self.recipe.run.dashboard,
            ) as display:
                # The figure before any training, which the others are compared with; or one that a kill cut off.
                await self.evaluations.begin_due(self.step, self.version)
                self.dispatcher.fill()
                while self.step < self.rl.steps and (groups := await self._next_groups()) is not None:
                    await self._train(groups, display)
                if self.step < self.rl.steps and self.dispatcher.over:
                    display.say(said := f"rl.tasks has no task left: ended at step {self.step} of {self.rl.steps}")
                    self.run.say(f"rl: {said}")
            return await self._finish()
        finally:
            self.close()

    def close(self) -> None:
        """Ends everything beside the loop."""
        self.dispatcher.close()
        self.evaluations.cancel()
        for supervisor in (*self.supervisors, *self.engines.supervisors.values()):
            supervisor.end_watch()
        for task in (*self.watches, self.probing, *([self.making] if self.making else [])):
            task.cancel()
        if self.saving is not None:
            # Nobody commits it. Left to the garbage collector, its folder would be removed at any time: when the next
            # learner is writing the same step into a folder of the same name.
            (_, folder), self.saving = self.saving, None
            with suppress(asyncio.CancelledError), folder:
                raise asyncio.CancelledError

    async def _next_groups(self) -> list[RolloutGroup] | None:
        """The groups of the next step; None when there will be no other."""
        began, limits = time.monotonic(), self.recipe.harness.limits
        records, turn, since = TurnRecords(self.run.path / "rl" / "turns"), 0.0, began
        # More than the longest turn, all tools and a grade may take: silence for so long means that something hangs.
        patience = limits.seconds + limits.sample_seconds + self.recipe.grader.seconds + self.rl.slack_seconds
        try:
            while not self.run.stopping and not self.out_of_time and not self.dispatcher.over:
                if (groups := self.dispatcher.take()) is not None:
                    if self.dispatcher.ready_rollouts is not None:
                        await self.dispatcher.ready_rollouts.take(groups)
                    return groups
                # Nothing is awaited between the look and this line, so no change is lost.
                self.dispatcher.changed.clear()
                try:
                    await asyncio.wait_for(self.dispatcher.changed.wait(), timeout=LOOK)
                except TimeoutError:
                    since = max(since, self.dispatcher.finished_at)
                    if time.monotonic() - since <= patience:
                        continue
                    # All of a long rollout's turns may take hours, and none may have ended yet.
                    before, turn, since = turn, records.newest, time.monotonic()
                    if turn <= before:
                        raise EtudeError(
                            f"no rollout finished and no turn came within {patience:.0f} s, with "
                            f"{self.dispatcher.in_flight} in flight; see {self.run.path / 'rl' / 'logs'}"
                        ) from None
            return None
        finally:
            self.clock.wait("data", time.monotonic() - began)

    async def _train(self, groups: list[RolloutGroup], display: Display) -> None:
        """One step: gradients, the probe of the weights they are of, the update, and the new weights to the engine."""
        self._reweigh(groups)
        prepared = await prepare(groups, self.algorithm, self.shape, self.rl, self.learner, self.step)
        learnt = await self.learner.forward_backward(prepared.batch) if prepared.batch.items else {}
        # The probe ran beside the gradients. The weights move only when the numerics of the old ones are known.
        waiting = time.monotonic()
        rollouts = [rollout for group in groups for rollout in group.rollouts]
        real = await self.probe.check_real(rollouts, self.learner, self.version)
        agreement = await self._probed()
        self.clock.wait("probe", time.monotonic() - waiting)
        # Without a gradient, too: the schedule of the learning rate counts the steps of the run.
        learnt |= await self.learner.step(self.editions.current.lr, self.last_step.after(self.step, self.seconds))
        moved = bool(prepared.batch.items) and self._finite(learnt)
        self._near(learnt.get("k3", 0.0))
        # Before the next version exists. After a kill these rows lie behind the checkpoint's, and are taken back.
        self._tell_trained(groups, moved)
        row = self._row(groups, prepared, learnt, agreement) | real.row()
        self.step += 1
        if moved:
            self.version = Version(self.run.lineage, self.step)
            # In this order: a rollout may begin at a version only when the engine has it.
            publishing = time.monotonic()
            await self.learner.publish(self.version)
            row["publish_seconds"] = time.monotonic() - publishing
            swapped = await self._swap()
            row["swap_seconds"] = time.monotonic() - publishing - row["publish_seconds"]
            row |= {name: swapped[name] for name in FROM_CHAIN if name in swapped}
            self.probing = self._start_probe()
        else:
            # Equal weights under another name would empty the engine's prefix cache for nothing.
            self.unmoved = [*self.unmoved, self.step][-REMEMBERED:]
        self.restarts.progress()
        self.dispatcher.publish(self.step)
        self.clock.wait("learner", self.dispatcher.idle_seconds())
        row |= self.clock.row(self.learner.busy_seconds)
        row |= self.engine_work.row(await self.environment.engine.work())
        row |= self.sandbox_work.row(getattr(self.environment.host, "spent", {}))
        self.run.log(STAGE, self.step, **row)
        display.step(row)
        heard = self.no_passes.heard(sum(each.passed for each in group.rollouts) for group in groups)
        for said in filter(None, (heard, bug_alarm(row))):
            display.say(said)
            self.run.say(f"rl: {said}")
        await self.evaluations.begin_due(self.step, self.version)
        if self.saving is not None and await self.learner.saved():
            await self._commit()
        if self.step % self.rl.save_every == 0:
            await self._save(self.recipe.run.save_in_background)

    async def _swap(self) -> dict[str, Any]:
        """The engines take the published version. Where they cannot get it, the learner knows why."""
        try:
            return await self.environment.engine.update(self.version)
        except EtudeError as failed:
            if not (why := await self.learner.why_unpublished()):
                raise
            raise EtudeError(f"{failed}; the learner says: {why}") from None

    def _reweigh(self, groups: list[RolloutGroup]) -> None:
        """New weights of the reward's parts count at once."""
        self.editions.held = self.step < self.dispatcher.replayed
        self.editions.poll()
        for slot in (slot for group in groups for slot in group.slots if slot.rollout is not None):
            assert slot.rollout is not None
            slot.rollout = self.editions.rewarded(slot.rollout)

    def _finite(self, learnt: Mapping[str, float]) -> bool:
        """Whether the step's gradient was; too many in a row that were not stop the run."""
        if math.isfinite(learnt["grad_norm"]):
            self.not_finite = 0
            return True
        self.not_finite += 1
        self.run.say(f"rl: the gradient of step {self.step + 1} is not finite, so the step changed nothing")
        if self.not_finite >= self.rl.not_finite:
            raise EtudeError(
                f"{self.not_finite} steps in a row had a gradient that is not finite (rl.not_finite = "
                f"{self.rl.not_finite}); the last checkpoint is of step {self.saved_step}: lower rl.optim.lr, or look "
                "at the rewards and at the weights it started from"
            )
        return False

    def _near(self, k3: float) -> None:
        """Stops a run whose policy leaves the one that sampled its rollouts: from there it only gets worse."""
        self.runaway = self.runaway + 1 if 0 < self.rl.drift_k3 < k3 else 0
        if self.runaway >= RUNAWAY_STEPS:
            raise EtudeError(
                f"for {self.runaway} steps the policy has been too far from the one that sampled (k3 {k3:.2g}, "
                f"rl.drift_k3 = {self.rl.drift_k3:g}); the last checkpoint is of step {self.saved_step}, and `best` is "
                "the best by evaluation: lower rl.optim.lr or rl.staleness, and start again with --fresh"
            )

    def _tell_trained(self, groups: list[RolloutGroup], moved: bool) -> None:
        """The journal and a source that listens hear what the next step was made of."""
        self.journal.trained([(group.number, group.members) for group in groups], self.step + 1, moved)
        for group in groups:
            number = self.rl.first_task + group.number
            # A group of an earlier lineage that was ready then never had its task made.
            task, rollouts = group.task or next(self.source.tasks(number)), group.rollouts
            self.trained_tasks.add(task, STAGE)
            passed = sum(each.passed for each in rollouts)
            self.run.log(f"{STAGE}.task", self.step + 1, task=task.name, passed=passed, rollouts=len(rollouts))
            if isinstance(self.source, Listens):
                self.source.heard(number, passed, len(rollouts), self.step + 1)
            if isinstance(self.source, HearsEffort) and rollouts:
                turns, thinking = (sum(getattr(r, n) for r in rollouts) for n in ("turns", "thinking_tokens"))
                self.source.effort(number, turns / len(rollouts), thinking / len(rollouts))
        if isinstance(self.source, MakesTasks) and (self.making is None or self.making.done()):
            self.making = self.tasks.create_task(self._make_harder(self.source))

    async def _make_harder(self, source: MakesTasks) -> None:
        """One task at a time, beside the rollouts. What fails here costs a task, not the run."""
        try:
            said = await source.make_harder(self.environment.host)
        except (EtudeError, OSError) as error:
            said = f"no harder task was made: {error}"
        if said:
            self.run.say(f"{STAGE}: {said}")

    def _row(
        self, groups: list[RolloutGroup], prepared: Prepared, learnt: Mapping[str, float], agreement: Agreement
    ) -> dict[str, float]:
        """The step's row of metrics; adds it to the totals."""
        rollouts = [rollout for group in groups for rollout in group.rollouts]
        row = {"loss": 0.0, "grad_norm": 0.0} | trained_row(groups, prepared, learnt)
        row |= staleness(rollouts, self.step, self.branches, self.unmoved)
        row |= {
            "void": _rollouts(self.dispatcher.voids),
            "void_groups": self.dispatcher.voids["group"],
            "probe_mean": agreement.mean,
            "probe_max": agreement.max,
            "probe_p99": agreement.p99,
            "probe_k3": agreement.k3,
            "edition": self.editions.current.number,
            "grades_reused": self.environment.grades_reused,
            "resumed_tokens": self.environment.counts["resumed_tokens"],
            "restarts": self.restarts.total + self.learner_restarts.total,
            "engines": len(self.engines.replicas.present),
        }
        row |= {f"loss_{name.removesuffix('_loss')}": v for name, v in learnt.items() if name.endswith("_loss")}
        if self.rl.kl:
            row |= {"reference_kl": prepared.reference_kl} | prepared.diagnostics
        self.totals.add(row)
        return row

    # Numerics

    def _start_probe(self) -> asyncio.Task[Agreement]:
        return self.tasks.create_task(self.probe.run(self.environment.engine, self.learner, self.version))

    async def _probed(self) -> Agreement:
        """The numerics of the version that is published; the next is not published before they are known."""
        agreement = await self.probing
        if agreement is not self.agreement:
            self.agreement = agreement
            self.totals.probes += 1
            self.totals.probe_sum += agreement.mean
            self.totals.probe_max = max(self.totals.probe_max, agreement.max)
        return agreement

    # Checkpoints

    async def _save(self, background: bool = False) -> None:
        """A checkpoint, from which a resume goes on; and the newest rollouts, for people to read.

        In the background it is written while the next steps run, and committed after one of them.
        """
        self.totals.seconds = self.seconds
        voids = self.dispatcher.voids
        self.totals.void = {c: voids[c] + self.voids_before.get(c, 0) for c in {*voids, *self.voids_before}}
        # The row is taken before the sync, so that every row the checkpoint knows is on the disk.
        checkpoint = Checkpoint(
            self.step,
            self.journal.row,
            self.totals,
            self.unmoved,
            self.algorithm.state(),
            self.editions.current.number,
        )
        self.journal.sync()
        await self._commit()
        with ExitStack() as folder:
            directory = folder.enter_context(self.run.checkpoint(STAGE, self.step))
            await (self.learner.begin_save if background else self.learner.save)(directory)
            checkpoint.write(directory)
            self.saving = (self.step, folder.pop_all()) if background else None
        if not background:
            self._committed(self.step)
        if self.writing is not None:
            await self.writing
        newest = list(self.dispatcher.newest)
        self.dispatcher.newest.clear()
        root = self.run.path / "rl" / "trajectories"
        await self.environment.write_readable(root)
        # beside training: a few milliseconds each, and nothing depends on them
        writing = asyncio.to_thread(keep_readable, newest, root, self.rl.keep_trajectories)
        self.writing = self.tasks.create_task(writing)

    async def _commit(self) -> None:
        """The checkpoint that is being written, when the learner has written it."""
        if self.saving is None:
            return
        step, folder = self.saving
        self.saving = None
        with folder:
            await self.learner.finish_save()
        self._committed(step)

    def _committed(self, step: int) -> None:
        self.saved_step = step
        self.learner_restarts.progress()
        # Up to the oldest checkpoint that is kept: a resume may still go back to it.
        self.journal.forget(Checkpoint.read(self.run.checkpoints(STAGE)[0]).row)

    async def _finish(self) -> dict[str, Any]:
        # Rollouts end first; an evaluation that is under way keeps its places.
        await self.dispatcher.stop()
        stopped = self.run.stopping
        await self._probed()
        if not stopped:
            await self.evaluations.finish(self.step, self.version)
        await self._commit()
        if self.step > self.saved_step or self.run.latest(STAGE) is None:
            await self._save()
        totals, best = self.totals, self.evaluations.best.facts
        facts = totals.facts() | {
            "steps": self.step,
            "void": _rollouts(totals.void),
            "void_groups": totals.void.get("group", 0),
            "seconds": self.seconds,
            "best_step": best.get("step", -1),
            "best_pass_rate": best.get("pass_rate", 0.0),
            "backend": self.environment.host.capabilities.backend,
        }
        if not stopped:
            self.run.finish(STAGE, **facts)
        return facts | {"stopped": stopped}

    def _pids(self) -> dict[str, int | Callable[[], Sequence[int]]]:
        """Of the processes whose time is counted; a sandbox's is that of its launcher's ended children."""
        environment = self.environment
        pids: dict[str, int | Callable[[], Sequence[int]]] = {
            "engine": lambda: self.engines.pids,
            "learner": self.learner.child.pid,
            "loop": os.getpid(),
        }
        if isinstance(environment, WorkerPool):
            return pids | {"workers": lambda: environment.pids, "sandboxes": lambda: environment.launchers}
        launcher = getattr(environment.host, "launcher_pid", None)
        return pids | ({"sandboxes": launcher} if launcher else {})

    async def _watch(self, child: Running) -> None:
        """The end of the learner is the end of this loop; another one goes on from the last checkpoint."""
        await child.wait()
        # Nothing new begins: every rollout would be for nobody.
        self.dispatcher.scheduler.closed = True
        raise ProcessDied(f"{await child.last_words()}\n{AGAIN}")

    def _watch_over(self, supervisor: Supervisor) -> None:
        self.watches.append(self.tasks.create_task(self._supervise(supervisor)))

    def _wanted_engines(self) -> int:
        self.editions.poll()
        return self.editions.engines

    def _engines_changed(self, count: int) -> None:
        """As many rollouts at once for each engine as the recipe says; how many groups may wait stays the same."""
        self.dispatcher.scheduler.places = max(1, self.rl.concurrency * count // self.recipe.cluster.engines)
        self.dispatcher.fill()

    async def _supervise(self, supervisor: Supervisor) -> None:
        try:
            await supervisor.watch()
        except EtudeError as died:
            self.dispatcher.scheduler.closed = True
            raise ProcessDied(f"{died}\n{AGAIN}") from None


def trained_row(groups: Sequence[RolloutGroup], prepared: Prepared, learnt: Mapping[str, float]) -> dict[str, float]:
    """What a step's row says of its rollouts and of what was learnt from them."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    row = describe(rollouts) | by_source(rollouts)
    row |= {
        "groups": len(groups),
        "rollouts": len(rollouts),
        "zero_variance": prepared.zero_variance,
        "masked": prepared.masked,
        "trained_tokens": prepared.trained_tokens,
        "forward_tokens": learnt.get("forward_tokens", 0),
    }
    row |= {name: learnt[name] for name in FROM_LEARNER if name in learnt}
    return row | prepared.feedback


def _rollouts(voids: Mapping[str, int]) -> int:
    """Void rollouts, whole groups not counted."""
    return sum(count for cause, count in voids.items() if cause != "group")
