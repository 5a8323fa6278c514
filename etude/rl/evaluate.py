"""Evaluation while training goes on: a fixed set of held-out tasks with fixed seeds, and the best model kept.

The tasks come from the benchmark's source but are never the benchmark's own. Rollouts run beside those of training, in
the same engines, which keep the version that is evaluated resident while training swaps the other: all of an evaluation
is of one model. It holds a lease on these engines: none of them is taken out before it has ended or the lease has run
out. Each row names the harness that it was measured under; rates under different ones are not compared.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import shutil
import time
from collections.abc import Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pydantic

from etude.core import durable
from etude.core.component import load_class
from etude.core.errors import EtudeError
from etude.core.policy import Policy, Version
from etude.core.recipe import Recipe, to_dict
from etude.core.run import Run
from etude.core.run_files import read_metrics
from etude.forge.curriculum.sources import SOURCES, open_source
from etude.rl.dispatcher import Dispatcher
from etude.rl.groups import Finished, Rollout, compact
from etude.rl.learner.client import LearnerClient
from etude.rl.metrics import describe, pass_at
from etude.rl.rollout_environment import RolloutEnvironment
from etude.rl.workers.pool import WorkerPool
from etude.rollout.rollout import Scored, Void
from etude.rollout.scheduler import RolloutJob, sample_seed

Ints = npt.NDArray[np.int32]
APART = 1000  # added to the seed of the benchmark's source: other tasks of the same kind
FACTS = "best.json"
STAGE = "rl.eval"
CODE = ("harness", "tasks/grading")  # folders whose code decides what a rollout is and whether it passed
NOT_THE_MODEL = ("optimiser.safetensors", "learner.json")


def held_out_jobs(recipe: Recipe) -> list[RolloutJob]:
    """Every rollout of one evaluation: the same tasks and seeds each time."""
    spec, start = apart(recipe.bench.tasks, recipe.bench.count)
    tasks = list(islice(open_source(spec, "bench.tasks").tasks(start), recipe.rl.eval_tasks))
    if not tasks:
        raise EtudeError("bench.tasks has no task left for evaluations; add some, or set rl.eval_every = 0")
    return [
        RolloutJob(task, sample, sample_seed(recipe.bench.seed + APART, task.name, sample))
        for task in tasks
        for sample in range(recipe.rl.eval_samples)
    ]


def apart(spec: Mapping[str, Any], count: int) -> tuple[dict[str, Any], int]:
    """The benchmark's source turned to other tasks: by its seed, or, where it has none, to those behind its own."""
    found = load_class("task source", str(spec.get("use", "")), SOURCES)
    settings = getattr(found, "Settings", None)
    if isinstance(settings, type) and issubclass(settings, pydantic.BaseModel) and "seed" in settings.model_fields:
        return {**spec, "seed": int(spec.get("seed", 0)) + APART}, 0
    return dict(spec), count


def harness_digest(recipe: Recipe, backend: str) -> str:
    """Names everything beside the weights that decides an evaluation's rate: the harness and its settings, the grader,
    the tasks. Code is that which is on the disk now, of the harness and of grading."""
    package = Path(__file__).parents[1]
    found = hashlib.sha256()
    for file in sorted(file for part in CODE for file in (package / part).rglob("*.py")):
        found.update(f"{file.relative_to(package)}\0".encode() + file.read_bytes())
    told = {name: section for name, section in to_dict(recipe).items() if name in ("harness", "grader", "bench")}
    found.update(json.dumps(told, sort_keys=True).encode() + backend.encode())
    return found.hexdigest()[:16]


class Evaluations:
    """The evaluations of a run, at most one of them under way; `rows` has what each finished one found, by step."""

    def __init__(
        self,
        run: Run,
        recipe: Recipe,
        environment: RolloutEnvironment | WorkerPool,
        learner: LearnerClient,
        dispatcher: Dispatcher,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self.run, self.every = run, recipe.rl.eval_every
        self.environment, self.learner, self.dispatcher, self.tasks = environment, learner, dispatcher, tasks
        # Not from the checkpoint: an evaluation of its step ends after it, and is of its weights all the same.
        self.rows: dict[str, dict[str, Any]] = {
            str(row["step"]): row for row in read_metrics(run.path) if row["stage"] == STAGE
        }
        self.best = BestModel(run.path)
        self.jobs = held_out_jobs(recipe) if self.every else []
        self.harness = harness_digest(recipe, environment.host.capabilities.backend) if self.every else ""
        rl, limits = recipe.rl, recipe.harness.limits
        # As long as all of its rollouts may take if they used every limit, in the places that there are.
        rounds = -(-len(self.jobs) // rl.concurrency)
        longest = limits.turns * limits.sample_seconds + limits.seconds + recipe.grader.seconds
        self.lease_seconds = rounds * longest + rl.slack_seconds
        self._under_way: asyncio.Task[None] | None = None

    async def begin_due(self, step: int, version: Version) -> None:
        """Begins that of this step, if it has one that nobody made."""
        if self.every and step % self.every == 0 and str(step) not in self.rows:
            await self.begin(step, version)

    async def begin(self, step: int, version: Version) -> None:
        """Begins an evaluation of the present weights, published as `version`, which goes on beside training."""
        if self._under_way is not None and not self._under_way.done():
            self.run.say(f"eval: step {step} is left out, the one before it is still under way")
            return
        candidate = self.run.path / "rl" / "candidate"
        # An engine that is started again meanwhile must not take what is written there for the last evaluation's.
        self.environment.engine.pinned = None
        shutil.rmtree(candidate, ignore_errors=True)
        candidate.mkdir(parents=True)
        # A copy of the weights as they are now: training goes on while the evaluation runs.
        await self.learner.save(candidate)
        pinned = await self.environment.engine.pin(version, self.lease_seconds)
        self._under_way = self.tasks.create_task(self._evaluate(step, pinned, candidate))

    async def finish(self, step: int, version: Version) -> None:
        """Waits for the one under way, and for one of the last step if there was none."""
        if self._under_way is not None:
            await self._under_way
        if self.every and str(step) not in self.rows:
            await self.begin(step, version)
            assert self._under_way is not None
            await self._under_way

    def cancel(self) -> None:
        if self._under_way is not None:
            self._under_way.cancel()

    async def _evaluate(self, step: int, policy: Policy, candidate: Path) -> None:
        began = time.monotonic()
        runs = [partial(self.environment.evaluate, policy, job) for job in self.jobs]
        try:
            outcomes = await self.dispatcher.run_evaluation(runs)
        finally:
            self.environment.engine.end_lease()
        scored = [_rollout(outcome) for outcome in outcomes if not isinstance(outcome, Void)]
        if scored:
            row = describe(scored)
            if self.best.facts.get("harness", self.harness) != self.harness:
                self.run.say("eval: the harness is another than that of the best model so far; rates begin anew")
            offer = partial(
                self.best.offer, candidate, self.run.lineage, step, row["pass_rate"], len(scored), self.harness
            )
            # to its end even when the run is stopped meanwhile: the task group waits for it
            best = await asyncio.shield(self.tasks.create_task(asyncio.to_thread(offer)))
            row |= {
                "tasks": len({rollout.task for rollout in scored}),
                "rollouts": len(scored),
                "void": len(outcomes) - len(scored),
                "first_version": min(int(step) for rollout in scored for step in _steps(rollout)[:1]),
                "last_version": max(int(step) for rollout in scored for step in _steps(rollout)[-1:]),
                **pass_at([(rollout.task, rollout.passed) for rollout in scored]),
                "best": int(best),
                "seconds": time.monotonic() - began,
            }
            self.rows[str(step)] = row
            self.run.log(STAGE, step, harness=self.harness, **row)
        shutil.rmtree(candidate, ignore_errors=True)


def _rollout(outcome: Scored | Finished) -> Rollout:
    return outcome.rollout if isinstance(outcome, Finished) else compact(outcome)


def _steps(rollout: Rollout) -> Ints:
    """The steps of the weights that sampled its tokens."""
    return np.concatenate([trace.version_T2[trace.sampled_T][:, 1] for trace in rollout.traces])


class BestModel:
    """The newest model that no earlier one beats by more than chance, in RUN/best."""

    def __init__(self, run: Path) -> None:
        self.path = run / "best"
        aside = run / ".best.replaced"
        if aside.exists() and not self.path.exists():  # killed between the two renames
            aside.rename(self.path)
        for left in (aside, run / ".best.saving"):
            shutil.rmtree(left, ignore_errors=True)
        self.facts: dict[str, Any] = {}
        if self.path.exists():
            try:
                self.facts = json.loads((self.path / FACTS).read_text())
            except (OSError, ValueError):
                raise EtudeError(f"{self.path / FACTS} cannot be read; remove {self.path}") from None

    def offer(self, candidate: Path, lineage: int, step: int, rate: float, rollouts: int, harness: str = "") -> bool:
        """Keeps the model in `candidate` unless it did clearly worse than the best before it; says whether.

        The first under another harness is kept, whatever its rate: the two are not comparable. Clearly is a standard
        error of the pass rate: of two models that an evaluation cannot separate, the one that has learnt for longer is
        the better guess.
        """
        # The highest of noisy evaluations is not the best model: 48 rollouts have a standard error of 7 points, and
        # the highest of six chose step 25 of 101 (49.8% on the benchmark) over the last one (60.2%).
        same = self.facts.get("harness", harness) == harness
        highest = max(rate, self.facts.get("highest", 0.0) if same else 0.0)
        if rate < highest - math.sqrt(highest * (1 - highest) / rollouts):
            return False
        facts = {"lineage": lineage, "step": step, "pass_rate": rate, "highest": highest, "harness": harness}
        try:
            with durable.commit_folder(self.path, **facts) as folder:
                for file in candidate.iterdir():
                    if file.name not in NOT_THE_MODEL:
                        keep = shutil.copytree if file.is_dir() else shutil.copy2
                        keep(file, folder / file.name)
                (folder / FACTS).write_text(json.dumps(facts) + "\n")
        except durable.CannotSave as error:
            raise EtudeError(f"the best model cannot be kept in {self.path}: {error}; make room") from error
        self.facts = facts
        return True
