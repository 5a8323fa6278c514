"""A run that an engine is lent to and taken back from while rollouts go on."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

from etude.core import recipe as recipes
from etude.core.recipe import Recipe
from etude.core.run import Run
from etude.core.run_files import read_metrics
from etude.rl.loop import Training
from etude.rl.orchestrator import train

MANY = 400  # steps, of which a few are needed: a busy machine may be slow to start an engine


def test_a_lent_engine_samples_until_its_owner_wants_it_back(
    toy_model: Path, toy_recipe: Callable[..., Recipe], tmp_path: Path
) -> None:
    path, lenders = tmp_path / "run", list[subprocess.Popen[bytes]]()
    chain = f"cluster.weights={tmp_path / 'weights'}"
    recipe = toy_recipe(chain, f"rl.steps={MANY}", "rl.eval_every=0", "rl.save_every=50", "cluster.rollout_workers=1")
    seen: list[tuple[int, int]] = []  # engines, and places for rollouts, whenever that changed

    def lend() -> None:
        command = [sys.executable, "-m", "etude", "serve", str(toy_model), "--lend", str(path)]
        lenders.append(subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}))

    # What is done once so many engines are sampled from.
    plan: list[tuple[int, Callable[[], Any]]] = [
        (1, lend),
        (2, lambda: lenders[0].send_signal(signal.SIGINT)),
        (1, lambda: None),
    ]

    async def resized(training: Training) -> dict[str, Any]:
        log = training.run.log

        def logged(stage: str, step: int, **values: Any) -> None:
            log(stage, step, **values)
            if stage != "rl":
                return
            now = (int(values["engines"]), training.dispatcher.scheduler.places)
            if not seen or seen[-1] != now:
                seen.append(now)
            if plan and now[0] == plan[0][0]:
                plan.pop(0)[1]()
            training.run.stopping = training.run.stopping or not plan

        training.run.log = logged  # type: ignore[method-assign]
        return await training.work()

    try:
        with Run.open(path, recipes.to_dict(recipe)) as run:
            facts = asyncio.run(train(run, recipe, toy_model, work=resized))
        lenders[0].wait(60)
    finally:
        for lender in lenders:
            lender.kill()
    each = recipe.rl.concurrency
    assert [count for count, _ in groupby(engines for engines, _ in seen)] == [1, 2, 1]
    assert {places for _, places in seen} == {each, 2 * each}
    rows = [row for row in read_metrics(path) if row["stage"] == "rl"]
    assert facts["void"] == 0 and facts["probe_max"] <= 1e-3 and rows[-1]["restarts"] == 0
    assert not list((path / "rl" / "lent").iterdir())
