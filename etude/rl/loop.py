"""The learner's side of the loop: take groups, train, publish, probe, log, evaluate, commit.

A step trains the weights of version k and publishes k + 1 while rollouts go on. No version is published before the
numerics of the last one are known. Opens and closes nothing: `orchestrator` does.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from functools import partial
from pathlib import Path
from typing import Any

from etude.core.child_process import Child
from etude.core.errors import EtudeError
from etude.core.policy import Version
from etude.core.progress import Bar, track
from etude.core.recipe import Recipe
from etude.core.run import Run
from etude.forge.curriculum.sources import Listens, TaskSource
from etude.policies.engine_client import EngineClient
from etude.rl.admission import Admission
from etude.rl.algorithms.base import Algorithm, BatchShape
from etude.rl.batches import Prepared, prepare
from etude.rl.broken_tasks import BrokenTasks
from etude.rl.checkpoint import Checkpoint, Totals, keep_readable
from etude.rl.dispatcher import Dispatcher
from etude.rl.evaluate import Best, held_out_jobs
from etude.rl.groups import RolloutGroup, Slot, compact, unpack
from etude.rl.journal import Journal, Resumed, Saved
from etude.rl.learner_client import LearnerClient
from etude.rl.metrics import Clock, describe, staleness
from etude.rl.probe import Agreement, Probe
from etude.rl.rollout_environment import RolloutEnvironment
from etude.rollout.rollout import Outcome, Scored, Void
from etude.rollout.scheduler import RolloutJob

LOOK = 0.2  # seconds between two looks at the clock and at Ctrl-C while waiting for rollouts
STAGE = "rl"
WITH_EXPERTS = ("replay_moved", "replay_refused", "load_max")
FROM_LEARNER = ("loss", "drift_mean", "drift_p99", "drift_max", "k1", "k2", "k3", "grad_norm", "lr", "skipped")


class Training:
    """A run that learns, from its newest checkpoint on."""

    def __init__(
        self,
        run: Run,
        recipe: Recipe,
        world: RolloutEnvironment,
        learner: LearnerClient,
        journal: Journal,
        algorithm: Algorithm,
        probe: Probe,
        commit: Checkpoint,
    ) -> None:
        self.run, self.recipe, self.rl = run, recipe, recipe.rl
        self.world, self.learner, self.journal = world, learner, journal
        self.algorithm, self.probe = algorithm, probe
        self.plan = BatchShape(self.rl.groups, self.rl.group, recipe.harness.limits.sampled_tokens)
        self.step = self.committed = commit.step
        self.evaluations = dict(commit.evaluations)
        self.totals: Totals = commit.totals
        self.before = commit.totals.seconds
        self.voids_before = dict(commit.totals.void)
        self.branches = journal.branches()
        self.best = Best(run.path)
        self.jobs: list[RolloutJob] = []
        if self.rl.eval_every:
            self.jobs = held_out_jobs(recipe)
        self.started = time.monotonic()
        pids = {"engine": _child(world.engine).process.pid, "learner": learner.child.process.pid, "loop": os.getpid()}
        launcher = getattr(world.host, "launcher_pid", None)  # its ended children are the sandboxes
        self.clock = Clock(pids | ({"sandboxes": launcher} if launcher else {}))
        self.agreement: Agreement | None = None

    def start(self, tasks: asyncio.TaskGroup, source: TaskSource, resumed: Resumed) -> None:
        self.tasks, self.source = tasks, source
        groups = [
            RolloutGroup(number, began, [_slot(saved) for saved in slots])
            for number, (began, slots) in sorted(resumed.groups.items())
        ]
        rl = self.rl
        self.producer = Dispatcher(
            rl,
            # alternating is the same loop with nobody allowed to begin while the learner works
            Admission(rl.staleness if rl.concurrent else 0, rl.groups, rl.steps),
            self.journal,
            source,
            tasks,
            play=self.world.play,
            blame=self._blame,
            doubt=BrokenTasks(source, self.world.solvable, self.run.say),
            seed=self.recipe.run.seed,
            step=self.step,
            groups=groups,
            next_group=resumed.next,
        )
        self.watches = [
            tasks.create_task(self._watch(child)) for child in (_child(self.world.engine), self.learner.child)
        ]
        self.probing: asyncio.Task[Agreement] = self._start_probe()
        self.evaluating: asyncio.Task[None] | None = None
        self.writing: asyncio.Task[None] | None = None

    async def _blame(self, void: Void) -> None:
        self.run.say(f"rl: void ({void.cause}), {void.task.name}: {void.message}")
        await self.world.blame(void)

    def let_go(self) -> None:
        """Nothing new begins, and what only watches ends."""
        self.producer.closed = True
        for task in [*self.watches, self.probing, self.evaluating]:
            if task is not None:
                task.cancel()
        self.producer.cancel()

    @property
    def seconds(self) -> float:
        return self.before + time.monotonic() - self.started

    @property
    def out_of_time(self) -> bool:
        return bool(self.rl.seconds) and self.seconds >= self.rl.seconds

    async def work(self) -> dict[str, Any]:
        with track("reinforcement learning", total=self.rl.steps, unit="steps", done=self.step) as bar:
            if self.step == 0 and self.rl.eval_every and not self.evaluations:
                await self._evaluate()
            self.producer.fill()
            while self.step < self.rl.steps and (groups := await self._next_groups()) is not None:
                await self._train(groups, bar)
        await self.producer.stop()
        stopped = self.run.stopping
        await self._probed()
        if not stopped:
            if self.evaluating is not None:
                await self.evaluating
            if self.rl.eval_every and str(self.step) not in self.evaluations:
                await self._evaluate()
                assert self.evaluating is not None
                await self.evaluating
        if self.step > self.committed or self.run.latest(STAGE) is None:
            await self._commit()
        facts = self._facts()
        if not stopped:
            self.run.finish(STAGE, **facts)
        return facts | {"stopped": stopped}

    async def _next_groups(self) -> list[RolloutGroup] | None:
        """The groups of the next step; None when there will be no other."""
        began, limits = time.monotonic(), self.recipe.harness.limits
        patience = limits.seconds + limits.sample_seconds + self.recipe.grader.seconds + 120
        try:
            while not self.run.stopping and not self.out_of_time and not self.producer.over:
                if (groups := self.producer.take()) is not None:
                    return groups
                self.producer.changed.clear()
                try:
                    await asyncio.wait_for(self.producer.changed.wait(), timeout=LOOK)
                except TimeoutError:
                    quiet = time.monotonic() - max(self.producer.finished_at, began)
                    if quiet > patience:
                        raise EtudeError(
                            f"no rollout finished within {patience:.0f} s, with {self.producer.in_flight} in flight; "
                            f"see {self.run.path / 'rl' / 'logs'}"
                        ) from None
            return None
        finally:
            self.clock.wait("data", time.monotonic() - began)

    async def _train(self, groups: list[RolloutGroup], bar: Bar) -> None:
        """One step: gradients, the probe of the weights they are of, the update, and the new weights to the engine."""
        prepared = await prepare(groups, self.algorithm, self.plan, self.rl, self.learner)
        learnt: dict[str, float] = {}
        if prepared.batch.items:
            learnt = await self.learner.forward_backward(prepared.batch)
        waiting = time.monotonic()
        agreement = await self._probed()
        self.clock.wait("probe", time.monotonic() - waiting)
        if prepared.batch.items:
            learnt |= await self.learner.step()
        trained = [(g.number, [i for i, s in enumerate(g.slots) if s.rollout is not None]) for g in groups]
        self.journal.trained(trained, self.step + 1)
        if isinstance(self.source, Listens):
            for group in groups:
                rollouts = group.rollouts
                number = self.rl.first_task + group.number
                self.source.heard(number, sum(each.passed for each in rollouts), len(rollouts), self.step + 1)
        row = self._row(groups, prepared, learnt, agreement)
        self.step += 1
        version = Version(self.run.lineage, self.step)
        await self.learner.publish(version)
        await self.world.engine.update(version)
        self.probing = self._start_probe()
        self.producer.publish(self.step)
        self.clock.wait("learner", self.producer.waited)
        self.producer.waited = 0.0
        row |= self.clock.row(self.learner.busy_seconds)
        self.run.log(STAGE, self.step, **row)
        bar.advance(1)
        bar.note(reward=row["reward"], passed=row["pass_rate"], stale=row["staleness_mean"])
        if self.rl.eval_every and self.step % self.rl.eval_every == 0:
            await self._evaluate()
        if self.step % self.rl.save_every == 0:
            await self._commit()

    def _row(
        self, groups: list[RolloutGroup], prepared: Prepared, learnt: dict[str, float], agreement: Agreement
    ) -> dict[str, float]:
        rollouts = [rollout for group in groups for rollout in group.rollouts]
        aged = staleness(rollouts, self.step, self.run.lineage, self.branches)
        row = describe(rollouts) | aged
        row |= {
            "groups": len(groups),
            "rollouts": len(rollouts),
            "zero_variance": prepared.zero_variance,
            "masked": prepared.masked,
            "trained_tokens": prepared.trained_tokens,
            "forward_tokens": learnt.get("forward_tokens", 0),
            "void": sum(count for cause, count in self.producer.voids.items() if cause != "group"),
            "void_groups": self.producer.voids["group"],
            "probe_mean": agreement.mean,
            "probe_max": agreement.max,
            "grades_reused": self.world.grades_reused,
            "loss": 0.0,
            "grad_norm": 0.0,
        }
        row |= {name: learnt[name] for name in (*FROM_LEARNER, *WITH_EXPERTS) if name in learnt}
        if self.rl.kl:
            row["reference_kl"] = prepared.reference_kl
        totals = self.totals
        totals.groups += len(groups)
        totals.zero_variance += prepared.zero_variance
        totals.rollouts += len(rollouts)
        totals.sampled_tokens += int(row["sampled_tokens"])
        totals.trained_tokens += prepared.trained_tokens
        totals.staleness_max = max(totals.staleness_max, int(aged["staleness_max"]))
        return row

    # Numerics

    def _start_probe(self) -> asyncio.Task[Agreement]:
        version = Version(self.run.lineage, self.step)
        return self.tasks.create_task(self.probe.run(self.world.engine, self.learner, version))

    async def _probed(self) -> Agreement:
        """The numerics of the version that is published; the next is not published before they are known."""
        agreement = await self.probing
        if agreement is not self.agreement:
            self.agreement = agreement
            self.totals.probes += 1
            self.totals.probe_sum += agreement.mean
            self.totals.probe_max = max(self.totals.probe_max, agreement.max)
        return agreement

    # Evaluation

    async def _evaluate(self) -> None:
        """Begins an evaluation of the present weights, which goes on beside training."""
        if self.evaluating is not None and not self.evaluating.done():
            self.run.say(f"eval: step {self.step} is left out, the one before it is still under way")
            return
        candidate = self.run.path / "rl" / "candidate"
        shutil.rmtree(candidate, ignore_errors=True)
        candidate.mkdir(parents=True)
        await self.learner.save(candidate)
        self.evaluating = self.tasks.create_task(self._evaluation(self.step, candidate))

    async def _evaluation(self, step: int, candidate: Path) -> None:
        began = time.monotonic()
        outcomes: list[Outcome] = await self.producer.beside([partial(self.world.evaluate, job) for job in self.jobs])
        scored = [outcome for outcome in outcomes if isinstance(outcome, Scored)]
        if scored:
            figures = describe([compact(outcome) for outcome in scored])
            last = max((outcome.trajectory.versions[-1].step for outcome in scored), default=step)
            rate = figures["pass_rate"]
            offer = partial(self.best.offer, candidate, self.run.lineage, step, rate, len(scored))
            # to its end even when the run is stopped meanwhile: the task group waits for it
            best = await asyncio.shield(self.tasks.create_task(asyncio.to_thread(offer)))
            row = figures | {
                "tasks": len({outcome.task.name for outcome in scored}),
                "rollouts": len(scored),
                "void": len(outcomes) - len(scored),
                "last_version": last,
                "best": int(best),
                "seconds": time.monotonic() - began,
            }
            self.evaluations[str(step)] = row
            self.run.log("rl.eval", step, **row)
        shutil.rmtree(candidate, ignore_errors=True)

    # Commit points

    async def _commit(self) -> None:
        totals = self.totals
        totals.seconds = self.seconds
        voids = self.producer.voids
        totals.void = {c: voids[c] + self.voids_before.get(c, 0) for c in {*voids, *self.voids_before}}
        commit = Checkpoint(self.step, self.journal.row, self.evaluations, totals)
        self.journal.sync()
        with self.run.checkpoint(STAGE, self.step) as directory:
            await self.learner.save(directory)
            commit.write(directory)
        self.committed = self.step
        self.journal.forget(Checkpoint.read(self.run.checkpoints(STAGE)[0]).row)
        if self.writing is not None:
            await self.writing
        newest = list(self.producer.newest)
        self.producer.newest.clear()
        root = self.run.path / "rl" / "trajectories"
        # beside training: a few milliseconds each, and nothing depends on them
        writing = asyncio.to_thread(keep_readable, newest, root, self.rl.keep_trajectories)
        self.writing = self.tasks.create_task(writing)

    def _facts(self) -> dict[str, Any]:
        totals = self.totals
        return {
            "steps": self.step,
            "groups": totals.groups,
            "zero_variance": totals.zero_variance,
            "rollouts": totals.rollouts,
            "sampled_tokens": totals.sampled_tokens,
            "trained_tokens": totals.trained_tokens,
            "void": sum(count for cause, count in totals.void.items() if cause != "group"),
            "void_groups": totals.void.get("group", 0),
            "seconds": self.seconds,
            "probe_mean": totals.probe_sum / max(1, totals.probes),
            "probe_max": totals.probe_max,
            "staleness_max": totals.staleness_max,
            "best_step": self.best.facts.get("step", -1),
            "best_pass_rate": self.best.facts.get("pass_rate", 0.0),
            "backend": self.world.host.capabilities.backend,
        }

    async def _watch(self, child: Child) -> None:
        """The end of a child is the end of the loop."""
        await child.process.wait()
        self.producer.closed = True
        raise EtudeError(f"{await child.last_words()}\nrun the same command again to go on from the last checkpoint")


def _slot(saved: Saved) -> Slot:
    """A slot of an earlier lineage; a rollout that cannot be read is sampled again."""
    try:
        return Slot(saved.state, rollout=unpack(saved.data) if saved.data is not None else None)
    except EtudeError:
        return Slot()


def _child(engine: EngineClient) -> Child:
    assert engine.server is not None
    return engine.server
