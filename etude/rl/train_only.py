"""Half of the loop, for debugging: the learner trains on rollouts that a journal holds, without engine and sandboxes.

The same groups in the same order give the same weights each time, so a change of the algorithm, the optimiser or the
learner can be looked at alone. There is no probe, no evaluation and no new rollout. The other half is
`rollouts_only`.
"""

from __future__ import annotations

import shutil
import sqlite3
import time
from contextlib import AsyncExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from etude.core import process
from etude.core.errors import EtudeError
from etude.core.progress import track
from etude.core.recipe import Recipe
from etude.core.run import Run
from etude.rl.algorithms.base import BatchShape
from etude.rl.algorithms.table import build_algorithm, check_algorithm
from etude.rl.batches import prepare
from etude.rl.checkpoint import Checkpoint
from etude.rl.groups import RolloutGroup
from etude.rl.journal import Journal
from etude.rl.learner.client import LearnerClient, launch_learner
from etude.rl.loop import STAGE, trained_row
from etude.rl.orchestrator import learner_spec, untrained_groups
from etude.rl.workers.ready_rollouts import ReadyRollouts


def copy_journal(source: Path, run: Path) -> None:
    """The journal of the run `source` as that of `run`, which has none yet. `source` may be running."""
    home, target = source / "rl", run / "rl"
    if not (home / "journal.db").is_file():
        raise EtudeError(
            f"{source} has no journal of rollouts; `etude rl RECIPE --rollouts-only --run {source}` makes one"
        )
    if (target / "journal.db").exists():
        return  # an earlier command brought it
    target.mkdir(parents=True, exist_ok=True)
    # Files first: one that is removed meanwhile is one whose rollout was trained there, and is left out here.
    if (home / "rollouts").is_dir():
        shutil.copytree(home / "rollouts", target / "rollouts", dirs_exist_ok=True)
    part = target / "journal.db.part"
    part.unlink(missing_ok=True)
    with closing(sqlite3.connect(home / "journal.db")) as old, closing(sqlite3.connect(part)) as new:
        old.backup(new)
        new.execute("PRAGMA journal_mode = DELETE")  # one file, which the rename takes with it
        new.execute("DELETE FROM lineages")  # of the other run, and so are its steps
        if new.execute("SELECT 1 FROM sqlite_master WHERE name = 'unmoved'").fetchone():  # since format 3
            new.execute("DELETE FROM unmoved")
        new.execute("UPDATE changes SET step = 0 WHERE state = 'trained'")
        new.commit()
    part.rename(target / "journal.db")


async def train_only(run: Run, recipe: Recipe, model: Path) -> dict[str, Any]:
    """Trains on the ready groups of the run's own journal, oldest first; leaves a checkpoint behind the last step."""
    run.begin(STAGE)
    rl = recipe.rl
    latest = run.latest(STAGE)
    checkpoint = Checkpoint.read(latest) if latest is not None else Checkpoint()
    journal = Journal(run.path / "rl" / "journal.db", run.lineage)
    with closing(journal):
        ready = ReadyRollouts(rl.ready_bytes, journal.files, journal.find)
        resumed = journal.resume(checkpoint.row, checkpoint.step)
        groups = [group for group in untrained_groups(resumed, journal, ready) if group.ready]
        if not groups:
            raise EtudeError(
                f"the journal in {run.path} has no group whose rollouts are all finished; those of a group that was "
                "trained are removed once no checkpoint needs them: `etude rl RECIPE --rollouts-only --run NEW` makes "
                "some that stay"
            )
        async with AsyncExitStack() as stack:
            learner = await _launch(run, recipe, model, latest)
            stack.push_async_callback(learner.close)
            return await _train(run, recipe, journal, checkpoint, groups[: rl.groups * rl.steps], learner, ready)


async def _launch(run: Run, recipe: Recipe, model: Path, latest: Path | None) -> LearnerClient:
    rl, logs = recipe.rl, run.path / "rl" / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    threads = recipe.run.threads or process.available_cores()  # all of them: nobody samples
    spec = replace(learner_spec(run, recipe, model, latest, threads), weights="")  # nothing is published
    log = logs / f"learner-{run.lineage}.log"
    return await launch_learner(spec, log=log, deadline=rl.start_seconds, verb_deadline=rl.learner_seconds)


async def _train(
    run: Run,
    recipe: Recipe,
    journal: Journal,
    checkpoint: Checkpoint,
    groups: list[RolloutGroup],
    learner: LearnerClient,
    ready: ReadyRollouts,
) -> dict[str, Any]:
    rl, algorithm = recipe.rl, build_algorithm(recipe.rl.algorithm)
    check_algorithm(algorithm, rl)
    algorithm.load_state(checkpoint.algorithm)
    shape = BatchShape(rl.groups, rl.group, rl.normaliser, recipe.harness.limits.sampled_tokens)
    step, first, rewards = checkpoint.step, checkpoint.step, []
    batches = [groups[at : at + rl.groups] for at in range(0, len(groups), rl.groups)]
    with track("training on a journal", total=len(batches), unit="steps") as bar:
        for batch in batches:
            if run.stopping:
                break
            began = time.monotonic()
            await ready.take(batch)
            prepared = await prepare(batch, algorithm, shape, rl, learner, step)
            learnt = await learner.forward_backward(prepared.batch) if prepared.batch.items else {}
            learnt |= await learner.step(rl.optim.lr)
            step += 1
            journal.trained([(group.number, group.members) for group in batch], step)
            row = trained_row(batch, prepared, learnt) | {"seconds": time.monotonic() - began}
            run.log(STAGE, step, **row)
            rewards.append(row["reward"])
            bar.advance(1)
            bar.note(reward=row["reward"], loss=row.get("loss", 0.0))
            for slot in (slot for group in batch for slot in group.slots):
                slot.rollout = None  # learnt from, and in the journal: it may be large
    with run.checkpoint(STAGE, step) as directory:
        journal.sync()
        await learner.save(directory)
        row_known = Checkpoint(step, journal.row, checkpoint.totals, [], algorithm.state())
        row_known.write(directory)
    return {
        "steps": step - first,
        "groups": len(groups),
        "reward": sum(rewards) / max(1, len(rewards)),
        "checkpoint": str(run.latest(STAGE)),
        "stopped": run.stopping,
    }
