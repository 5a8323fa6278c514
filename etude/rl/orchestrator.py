"""Opens everything that a run needs (journal, sandboxes, learner, engine), lets it learn, and leaves nothing behind.

    producer --groups--> learner --weights--> engine --samples--> producer

This process never imports torch: it keeps rollouts in flight (producer) and runs the learner's side (training), while
engine and learner are processes of their own. Whatever dies, the journal and the newest checkpoint say where to go on.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from etude.core import process
from etude.core.errors import EtudeError
from etude.core.policy import Sampling, Version
from etude.core.recipe import Recipe
from etude.core.run import Run
from etude.forge.curriculum.sources import Listens, open_source
from etude.policies.engine_client import EngineClient, launch
from etude.rl.algorithms.table import build_algorithm
from etude.rl.checkpoint import Checkpoint
from etude.rl.journal import Journal
from etude.rl.learner_client import LearnerClient, launch_learner
from etude.rl.learner_messages import LearnerSpec
from etude.rl.loop import STAGE, Training
from etude.rl.probe import Probe
from etude.rl.rollout_environment import RolloutEnvironment
from etude.rollout.rollout import GradeCache, build_setup, check_lengths
from etude.sandbox.hosts import open_host
from etude.tasks.grading.grader import RUNNER
from etude.tokens.dialect import open_dialect


async def train(run: Run, recipe: Recipe, model: Path, *, backend: str = "local") -> dict[str, Any]:
    """Reinforcement learning from `model` on, or from where this run was; returns the facts of the stage.

    Stopped by Ctrl-C it leaves a checkpoint and `stopped` among the facts, and the stage is not finished.
    """
    check_lengths(recipe.harness.limits, recipe.engine)
    process.stay_small()
    run.begin(STAGE)  # opens our lineage before anything is sampled under its name
    began = time.monotonic()
    async with AsyncExitStack() as stack:
        try:
            async with asyncio.TaskGroup() as tasks:
                training = await _open(run, recipe, model, backend, stack, tasks)
                training.started = began
                try:
                    return await training.work()
                finally:
                    training.let_go()
        except BaseExceptionGroup as group:
            raise _first(group) from None


async def _open(
    run: Run, recipe: Recipe, model: Path, backend: str, stack: AsyncExitStack, tasks: asyncio.TaskGroup
) -> Training:
    """Everything that runs beside this process, and the state of the run."""
    rl, home = recipe.rl, run.path / "rl"
    store, logs = home / "store", home / "logs"
    for passing in (store, home / "candidate"):
        shutil.rmtree(passing, ignore_errors=True)  # what a killed process may have left
        stack.callback(shutil.rmtree, passing, ignore_errors=True)
    logs.mkdir(parents=True, exist_ok=True)
    algorithm, source = build_algorithm(rl.algorithm), open_source(rl.tasks, "rl.tasks")
    if isinstance(source, Listens):
        source.remember(home / "supply.db")
    dialect = open_dialect(model, recipe.harness.template)
    longest = recipe.harness.limits.sampled_tokens
    setup = build_setup(
        recipe.harness,
        recipe.reward,
        recipe.grader,
        dialect=dialect,
        sampling=Sampling(max_tokens=longest, temperature=rl.temperature),
    )
    host = await stack.enter_async_context(await open_host(backend, store, preload=(RUNNER,)))
    grades = GradeCache()
    stack.push_async_callback(grades.close)
    setup = replace(setup, grade_cache=grades)
    latest = run.latest(STAGE)
    commit = Checkpoint.read(latest) if latest is not None else Checkpoint()
    journal = Journal(home / "journal.db", run.lineage)
    stack.callback(journal.close)
    resumed = journal.resume(commit.row, commit.step)
    learner, engine = await _launch(recipe, model, latest, Version(run.lineage, commit.step), run.path, logs, stack)
    first = next(source.tasks(rl.first_task), None)
    if first is None:
        raise EtudeError("rl.tasks has no task behind rl.first_task; lower that or name another source")
    probe = Probe(dialect.encode(f"{setup.system}\n{first.instruction}"), rl, recipe.engine.block_tokens)
    training = Training(
        run, recipe, RolloutEnvironment(host, engine, setup, recipe), learner, journal, algorithm, probe, commit
    )
    training.start(tasks, source, resumed)
    return training


async def _launch(
    recipe: Recipe, model: Path, latest: Path | None, version: Version, run: Path, logs: Path, stack: AsyncExitStack
) -> tuple[LearnerClient, EngineClient]:
    rl, machine = recipe.rl, recipe.run
    cores = machine.threads or process.available_cores()
    threads = max(1, cores // 2) if rl.concurrent else cores
    board = board_path(run)
    started: tuple[Any, Any] = await asyncio.gather(
        launch_learner(
            LearnerSpec(
                model,
                rl.optim,
                total_steps=rl.steps,
                micro_tokens=rl.micro_tokens,
                board=board,
                lora=rl.lora,
                seed=machine.seed,
                device=machine.device,
                compute=machine.compute,
                threads=threads,
                restore=latest,
                frozen=model if rl.kl else None,
            ),
            log=logs / f"learner-{version.lineage}.log",
        ),
        launch(
            latest or model,
            recipe.engine,
            device=machine.device,
            threads=threads,
            board=board,
            version=version,
            log=logs / f"engine-{version.lineage}.log",
        ),
        return_exceptions=True,
    )
    for client in started:
        if not isinstance(client, BaseException):
            stack.push_async_callback(client.close)
    for failure in started:
        if isinstance(failure, BaseException):
            raise failure
    return started[0], started[1]


def board_path(run: Path) -> Path:
    """Where a run's weights are shared: one name for each run, so that what a killed process left is replaced."""
    shared = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir())  # noqa: S108
    return shared / f"etude-board-{os.getuid()}-{hashlib.sha256(str(run).encode()).hexdigest()[:16]}"


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one error to show: ours before any other."""
    leaves: list[BaseException] = []
    open_groups: list[BaseException] = [group]
    while open_groups:
        error = open_groups.pop(0)
        if isinstance(error, BaseExceptionGroup):
            open_groups.extend(error.exceptions)
        else:
            leaves.append(error)
    return next((error for error in leaves if isinstance(error, EtudeError)), leaves[0])
