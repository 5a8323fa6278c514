"""Opens everything that a run of reinforcement learning needs, lets it learn, and leaves nothing behind.

    dispatcher --groups--> learner --weights--> engine --samples--> dispatcher

From the command to a step:

    etude rl            cli/runs.py                        reads the recipe and the options
    execute             pipeline/execute.py                the stages that it needs, in order
    reinforce           pipeline/stages/reinforcement.py   from which model
    train               rl/orchestrator.py                 opens journal, sandboxes, learner, engine
    Training.work       rl/loop.py                         steps, evaluations, checkpoints
    Training._train     rl/loop.py                         one step

This process never imports torch: it keeps rollouts in flight and drives the learner, while engine and learner are
processes of their own. Whatever dies, the journal and the newest checkpoint say where to go on.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from etude.cluster.engines import EnginePlan, Engines
from etude.cluster.local import Restarts
from etude.cluster.placement import Placement
from etude.cluster.start import open_placement
from etude.cluster.vllm import interpreter
from etude.core import process
from etude.core.errors import EtudeError
from etude.core.policy import Version
from etude.core.recipe import Recipe
from etude.core.rl_settings import RLSettings
from etude.core.run import Run
from etude.core.terms import Terms, draw_terms
from etude.forge.curriculum.sources import Listens, Mixes, Rewinds, TaskSource, curriculum_file, open_source
from etude.harness.tools.service import Service
from etude.rl.admission import Admission
from etude.rl.algorithms.table import build_algorithm, check_algorithm
from etude.rl.broken_tasks import BrokenTasks
from etude.rl.checkpoint import Checkpoint
from etude.rl.dispatcher import Dispatcher
from etude.rl.editions import Editions
from etude.rl.evaluate import Evaluations
from etude.rl.feedback import check_feedback, needs_frozen
from etude.rl.groups import RolloutGroup, Slot, slot_name, slot_of, unpack
from etude.rl.journal import Journal, Resumed, SavedSlot
from etude.rl.learner.client import LearnerClient, launch_learner
from etude.rl.learner.messages import LearnerSpec
from etude.rl.loop import STAGE, Training
from etude.rl.metrics import ages
from etude.rl.probe import Probe
from etude.rl.rollout_environment import RolloutEnvironment
from etude.rl.workers.messages import WorkerSpec
from etude.rl.workers.pool import WorkerPool
from etude.rl.workers.ready_rollouts import ReadyRollouts
from etude.rl.workers.setup import open_sandboxes, training_setup
from etude.rollout.rollout import check_lengths
from etude.rollout.turn_records import TurnRecords
from etude.tasks.environment import shadow_backend
from etude.tokens.dialect import open_dialect


async def train(
    run: Run,
    recipe: Recipe,
    model: Path,
    *,
    backend: str = "local",
    work: Callable[[Training], Awaitable[dict[str, Any]]] = Training.work,
) -> dict[str, Any]:
    """Reinforcement learning from `model` on, or from where this run was; returns the facts of the stage.

    Stopped by Ctrl-C it leaves a checkpoint and `stopped` among the facts, and the stage is not finished.
    """
    started = time.monotonic()
    taught = build_algorithm(recipe.rl.algorithm).feedback(recipe.rl.feedback)
    check_feedback(taught, recipe.rl.optim.ema)
    # This process talks for hours and computes nothing: docs/rooms/rl.md, "Memory".
    process.stay_small()
    run.begin(STAGE)  # opens our lineage before anything is sampled under its name
    placement = await open_placement(
        recipe.cluster,
        recipe.run.device,
        run.path / "rl" / "cluster",
        lambda: run.lineage,
        lambda text: run.say(f"rl: {text}"),
    )
    try:
        return await _train(run, recipe, model, backend, placement, started, work)
    finally:
        await placement.close()


async def _train(
    run: Run,
    recipe: Recipe,
    model: Path,
    backend: str,
    placement: Placement,
    started: float,
    work: Callable[[Training], Awaitable[dict[str, Any]]],
) -> dict[str, Any]:
    learner_restarts = Restarts(recipe.cluster.restarts, lambda text: run.say(f"rl: {text}"))
    while True:
        died = False
        try:
            async with AsyncExitStack() as stack:
                training = await _open(run, recipe, model, backend, placement, stack, started, learner_restarts)
                try:
                    facts = await work(training)
                finally:
                    died = training.learner.child.ended
            if not facts["stopped"]:
                # Nobody will go on with what was under way. Here, as workers write until they are closed.
                TurnRecords(run.path / "rl" / "turns").keep_only(())
            return facts
        except (BaseExceptionGroup, EtudeError) as failed:
            error = _first_error(failed) if isinstance(failed, BaseExceptionGroup) else failed
            if not died or run.stopping or not isinstance(error, EtudeError):
                raise error from None
            # Its weights since the last commit are gone. All of it is opened anew there, as by another command;
            # rollouts under way go on from their recorded turns.
            learner_restarts.take("the learner", str(error))
            run.go_back(STAGE)
            started = time.monotonic()  # the checkpoint knows the time before it


async def _open(
    run: Run,
    recipe: Recipe,
    model: Path,
    backend: str,
    placement: Placement,
    stack: AsyncExitStack,
    started: float,
    learner_restarts: Restarts,
) -> Training:
    """The run as it was left, and everything that runs beside this process. What is opened is closed by `stack`."""
    rl, home = recipe.rl, run.path / "rl"
    logs = home / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    for passing in (home / "store", home / "candidate", home / "workers"):
        shutil.rmtree(passing, ignore_errors=True)  # what a killed process may have left
        stack.callback(shutil.rmtree, passing, ignore_errors=True)
    algorithm, source = build_algorithm(rl.algorithm), open_source(rl.tasks, "rl.tasks")
    check_algorithm(algorithm, rl)
    if isinstance(source, Listens):
        source.remember(curriculum_file(home))
    setup, dialect = training_setup(recipe, model), open_dialect(model, recipe.harness.template)
    check_lengths(setup, recipe.engine)
    host, setup = await open_sandboxes(home / "store", backend, setup, stack)
    latest = run.latest(STAGE)
    checkpoint = Checkpoint.read(latest) if latest is not None else Checkpoint()
    journal = Journal(home / "journal.db", run.lineage)
    stack.callback(journal.close)
    records = TurnRecords(home / "turns")
    editions = Editions(run.path, recipe, setup, journal, run.say)
    # With another rate or other rewards, the steps behind the checkpoint would not lead to the same weights again.
    exact = editions.current.number == checkpoint.edition and not rl.rate_by_clock
    resumed, groups, ready = _resume(journal, checkpoint, records, rl, exact)
    if resumed.replays:
        editions.held = True
        last = checkpoint.step + len(resumed.replays)
        run.say(f"rl: steps {checkpoint.step + 1} to {last} are behind the checkpoint and are repeated as they were")
    records.keep_only(_under_way(groups))
    _keep_young(records, groups, resumed, journal.branches(), checkpoint, rl)
    if isinstance(source, Rewinds):
        # What it heard after the checkpoint will be heard again, from weights that may do better or worse.
        source.rewind(checkpoint.step, rl.first_task + resumed.next)
    restarts = Restarts(recipe.cluster.restarts, lambda text: run.say(f"rl: {text}"))
    version = Version(run.lineage, checkpoint.step)
    learner, engines = await _launch(run, recipe, model, latest, version, logs, placement, restarts, stack)
    first = next(source.tasks(rl.first_task), None)
    if first is None:
        raise EtudeError(
            f"rl.tasks has no task behind rl.first_task = {rl.first_task}; lower that or name another source"
        )
    if shadow_backend.FILE in first.files and Service.name not in setup.for_task(first).tools:
        note = "tasks come with services (an issue tracker, logs, metrics), and the agent has no tool that asks them"
        run.say(f"rl: {note}; add {{ use = 'service' }} to harness.tools")
        print(f"warning: {note}; add {{ use = 'service' }} to harness.tools", file=sys.stderr)
    probe = Probe(dialect.encode(f"{setup.system}\n{first.instruction}"), rl, recipe.engine.block_tokens)
    broken = BrokenTasks(source, run.say)
    inside = RolloutEnvironment(host, engines.replicas, setup, recipe, broken, run.say, editions.setup, records)
    environment: RolloutEnvironment | WorkerPool = inside
    supervisors = [*engines.supervisors.values()]
    if recipe.cluster.rollout_workers:
        environment = _workers(run, recipe, model, backend, inside, editions, source, placement, restarts)
        stack.push_async_callback(environment.close)
        await environment.open()
        engines.replicas.on_change = environment.tell_engines
        supervisors += [worker.supervisor for worker in environment.workers]
    # entered last, so that its tasks end before what they use is closed
    tasks = await stack.enter_async_context(asyncio.TaskGroup())
    dispatcher = Dispatcher(
        rl,
        # alternating is the same loop with nobody allowed to begin while the learner works
        Admission(rl.staleness if rl.concurrent else 0, rl.groups, rl.steps),
        journal,
        source,
        environment,
        tasks,
        seed=recipe.run.seed,
        step=checkpoint.step,
        groups=groups,
        next_group=resumed.next,
        replays=resumed.replays,
        terms=partial(_terms, recipe, editions),
        refill=algorithm.refill,
        on_settled=records.remove,
        ready=ready,
    )
    evaluations = Evaluations(run, recipe, environment, learner, dispatcher, tasks)
    return Training(
        run,
        recipe,
        algorithm,
        source,
        journal,
        learner,
        environment,
        probe,
        dispatcher,
        evaluations,
        editions,
        checkpoint,
        tasks,
        started,
        engines,
        supervisors,
        restarts,
        learner_restarts,
    )


def _workers(
    run: Run,
    recipe: Recipe,
    model: Path,
    backend: str,
    inside: RolloutEnvironment,
    editions: Editions,
    source: TaskSource,
    placement: Placement,
    restarts: Restarts,
) -> WorkerPool:
    """The rollout workers, not yet started."""
    rl, home, every_limits = recipe.rl, run.path / "rl", inside.setup.every_limits.values()
    spec = WorkerSpec(run.path / "recipe.toml", model, home, home / "workers", home / "workers", backend, run.lineage)
    return WorkerPool(
        inside,
        spec,
        recipe.cluster.rollout_workers,
        lambda number: editions.editions[number],
        lambda number: source.source_of(rl.first_task + number) if isinstance(source, Mixes) else "",
        placement,
        restarts,
        rl.start_seconds,
        # More than all turns, tools and grades of a rollout may take on a busy machine: only against a hang.
        max(each.turns * (each.sample_seconds * 1.25 + 1) + 4 * each.seconds for each in every_limits)
        + 4 * recipe.grader.seconds
        + rl.slack_seconds
        + rl.start_seconds,
        lambda number: home / "logs" / f"worker-{number}-{run.lineage}.log",
    )


def _resume(
    journal: Journal, checkpoint: Checkpoint, records: TurnRecords, rl: RLSettings, exact: bool
) -> tuple[Resumed, list[RolloutGroup], ReadyRollouts]:
    """What the journal has behind the checkpoint; where `exact`, steps that were lost are repeated as they were."""
    begun, most = {slot_of(name)[0] for name in records.names()}, rl.steps if exact else 0
    while True:
        ready = ReadyRollouts(rl.ready_bytes, journal.files, journal.find)
        resumed = journal.resume(checkpoint.row, checkpoint.step, begun, most)
        groups = untrained_groups(resumed, journal, ready)
        readable = {group.number for group in groups if group.ready}
        most = sum(1 for _ in takewhile(readable.issuperset, resumed.replays))
        if most == len(resumed.replays):
            return resumed, groups, ready


def _under_way(groups: Sequence[RolloutGroup]) -> set[str]:
    """The names of rollouts that go on."""
    return {
        slot_name(group.number, index)
        for group in groups
        for index, slot in enumerate(group.slots)
        if slot.state == "queued"
    }


def _keep_young(
    records: TurnRecords,
    groups: Sequence[RolloutGroup],
    resumed: Resumed,
    branches: Mapping[int, int],
    checkpoint: Checkpoint,
    rl: RLSettings,
) -> None:
    """Removes recorded turns that would be older than `rl.staleness` allows when they are trained.

    The steps that are repeated first bring their weights back. Turns sampled behind those are of weights that are gone,
    as many steps away as `metrics.ages` counts.
    """
    most, there = rl.staleness if rl.concurrent else 0, records.names()
    now, unmoved = checkpoint.step + len(resumed.replays), [*checkpoint.unmoved, *resumed.unmoved]
    first = {number for batch in resumed.replays for number in batch}
    waiting = sorted((g for g in groups if g.number not in first), key=lambda group: (group.began, group.number))
    for place, group in enumerate(waiting):
        oldest = 0  # age of what is kept of this group, at `now`
        for name in (slot_name(group.number, index) for index in range(len(group.slots))):
            if name not in there:
                continue
            version_N2 = np.array(sorted(records.open(name).versions), np.int32).reshape(-1, 2)
            age = int(ages(version_N2, now, branches, unmoved).max(initial=0))
            if age > max(0, most - place // rl.groups):  # with `place` groups to be trained before it
                records.remove(name)
            else:
                oldest = max(oldest, age)
        ready = any(slot.state == "ready" for slot in group.slots)
        group.began = min(group.began, now - oldest) if ready else now - oldest


async def _launch(
    run: Run,
    recipe: Recipe,
    model: Path,
    latest: Path | None,
    version: Version,
    logs: Path,
    placement: Placement,
    restarts: Restarts,
    stack: AsyncExitStack,
) -> tuple[LearnerClient, Engines]:
    rl, machine = recipe.rl, recipe.run
    cores = machine.threads or process.available_cores()
    # Half of the cores each: two threads that wait for each other on a busy core are slower than one.
    threads = max(1, cores // 2) if rl.concurrent else cores
    board = board_path(run.path)
    chain, vllm = absolute_address(recipe.cluster.weights), recipe.cluster.engine == "vllm"

    def weights(pinned: Version | None) -> tuple[Path, Version]:
        """What an engine starts from: the newest commit, unless an evaluation needs other weights beside it."""
        candidate = run.path / "rl" / "candidate"
        if pinned is not None and (candidate / "model.safetensors").exists():
            return candidate, pinned
        newest = run.latest(STAGE)
        return (newest, Version(run.lineage, run.step_of(newest))) if newest is not None else (model, version)

    plan = EnginePlan(
        recipe.engine,
        recipe.cluster.engines,
        machine.device,
        max(1, threads // (recipe.cluster.engines + recipe.cluster.spare_engines)),
        board,
        lambda number: logs / f"engine{f'-{number}' if number else ''}-{version.lineage}.log",
        rl.start_seconds,
        rl.engine_seconds,
        weights,
        chain,
        interpreter(recipe.cluster.vllm_python) if vllm else "",
    )
    engines = Engines(plan, version, placement, restarts, spares=recipe.cluster.spare_engines)
    launched: Sequence[Any] = await asyncio.gather(
        launch_learner(
            learner_spec(run, recipe, model, latest, threads),
            log=logs / f"learner-{version.lineage}.log",
            deadline=rl.start_seconds,
            verb_deadline=rl.learner_seconds,
            placement=placement,
        ),
        *(supervisor.open() for supervisor in engines.supervisors.values()),
        return_exceptions=True,
    )
    # one may have started although the other did not, and has to be closed all the same
    if not isinstance(launched[0], BaseException):
        stack.push_async_callback(launched[0].close)
    stack.push_async_callback(engines.close)
    for failure in launched:
        if isinstance(failure, BaseException):
            raise failure
    return launched[0], engines


def learner_spec(run: Run, recipe: Recipe, model: Path, restore: Path | None, threads: int) -> LearnerSpec:
    """What the learner of a run is started with; it goes on from `restore`, if there is one."""
    rl, machine, cluster = recipe.rl, recipe.run, recipe.cluster
    # A second copy of the weights, so only where the KL term or a teacher reads it.
    frozen = rl.kl or needs_frozen(build_algorithm(rl.algorithm).feedback(rl.feedback))
    return LearnerSpec(
        model,
        rl.optim,
        total_steps=rl.steps,
        micro_tokens=rl.micro_tokens,
        board=board_path(run.path),
        lora=rl.lora,
        seed=machine.seed,
        device=machine.device,
        compute=machine.compute,
        threads=threads,
        restore=restore,
        frozen=model if frozen else None,
        ranks=cluster.learner,
        batches=run.path / "rl" / "batch",
        weights=absolute_address(cluster.weights),
        weights_base_every=cluster.weights_base_every,
        weights_dtype=cluster.weights_dtype,
    )


def board_path(run: Path) -> Path:
    """Where a run's weights are shared: one name for each run, so that what a killed process left is replaced."""
    # In memory where the system has such a folder; a file on disk does the same, but slower.
    shared = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir())  # noqa: S108
    return shared / f"etude-board-{os.getuid()}-{hashlib.sha256(str(run).encode()).hexdigest()[:16]}"


def absolute_address(weights: str) -> str:
    """`cluster.weights` as every process of the run can use it, whatever folder that runs in."""
    return weights if not weights or "://" in weights else str(Path(weights).expanduser().absolute())


def _terms(recipe: Recipe, editions: Editions, number: int) -> Terms:
    """What a new group is told."""
    editions.poll()
    return replace(draw_terms(recipe.harness, recipe.run.seed, number), edition=editions.current.number)


def untrained_groups(resumed: Resumed, journal: Journal, ready: ReadyRollouts) -> list[RolloutGroup]:
    """The groups that earlier lineages left untrained."""
    found = []
    for number, (began, saved) in sorted(resumed.groups.items()):
        slots = []
        for index, each in enumerate(saved):
            slots.append(_slot(each, journal))
            if slots[-1].rollout is not None:
                ready.hold(number, index, slots[-1])
        found.append(RolloutGroup(number, began, slots, terms=resumed.terms.get(number, Terms())))
    return found


def _slot(saved: SavedSlot, journal: Journal) -> Slot:
    """A slot of an earlier lineage; a rollout that cannot be read is sampled again."""
    try:
        data = journal.files.read(saved.file) if saved.file is not None else saved.data
        return Slot(saved.state, rollout=unpack(data) if data is not None else None)
    except EtudeError:
        return Slot()


def _first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one error to show: ours before any other."""
    ours = group.subgroup(EtudeError)
    error: BaseException = ours or group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
