"""Rollout workers, engine replicas and a learner that are killed while a run goes on: nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sqlite3
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from etude.core import recipe as recipes
from etude.core.recipe import Recipe
from etude.core.run import Run
from etude.core.run_files import read_metrics
from etude.rl.orchestrator import board_path, train
from etude.rollout.store import load_rollout, saved_rollouts

MODULES = {"worker": "etude.rl.workers.process", "engine": "etude.serve.server", "learner": "etude.rl.learner.process"}
VICTIMS = {1: "worker", 2: "engine", 4: "learner"}  # by the step after which it is killed
STEPS = 6


def kill(kind: str) -> None:
    """The first of our children that runs the module."""
    for child in Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split():
        with contextlib.suppress(OSError):
            if MODULES[kind].encode() in Path(f"/proc/{child}/cmdline").read_bytes():
                os.kill(int(child), signal.SIGKILL)
                return
    raise AssertionError(f"there is no {kind}")


def test_a_killed_worker_engine_and_learner_come_back_and_the_run_goes_on(
    toy_model: Path, toy_recipe: Callable[..., Recipe], tmp_path: Path
) -> None:
    cluster = ("cluster.rollout_workers=2", "cluster.engines=2", "cluster.save_tokens=4")
    recipe = toy_recipe(*cluster, f"rl.steps={STEPS}", "rl.eval_every=6", "run.threads=1")
    path, killed = tmp_path / "run", Counter[str]()
    with Run.open(path, recipes.to_dict(recipe)) as run:
        log = run.log

        def logged(stage: str, step: int, **values: Any) -> None:
            log(stage, step, **values)
            if stage == "rl" and step in VICTIMS and not killed[VICTIMS[step]]:
                killed[VICTIMS[step]] += 1
                kill(VICTIMS[step])

        run.log = logged  # type: ignore[method-assign]
        facts = asyncio.run(train(run, recipe, toy_model))
    assert sorted(killed) == sorted(VICTIMS.values())
    assert (facts["steps"], facts["void"]) == (STEPS, 0)
    # Row by row of the history that survives: every step once, with every group once.
    rows = [row for row in read_metrics(path) if row["stage"] == "rl"]
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert rows[-1]["lineage"] == 1 and max(row["restarts"] for row in rows) >= 1
    base = sqlite3.connect(path / "rl" / "journal.db")
    starts = dict(base.execute("SELECT lineage, row FROM lineages").fetchall())
    trained = Counter(
        (number, slot)
        for row, lineage, number, slot in base.execute(
            "SELECT row, lineage, number, slot FROM changes WHERE state = 'trained'"
        )
        if all(row <= at for later, at in starts.items() if later > lineage)
    )
    base.close()
    assert trained == Counter({(number, slot): 1 for number in range(2 * STEPS) for slot in range(3)})
    # An evaluation and what people may read came from the workers, too; nothing else is left.
    assert [row["rollouts"] for row in read_metrics(path) if row["stage"] == "rl.eval"][-1] == 2
    assert all(load_rollout(folder).trajectory for folder in saved_rollouts(path / "rl" / "trajectories"))
    left = [board_path(path.resolve()), *(path / "rl" / name for name in ("store", "candidate", "workers"))]
    assert not any(place.exists() for place in left)
    assert not list((path / "rl" / "turns").glob("*"))
