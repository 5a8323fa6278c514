"""`etude rl --rollouts-only` and `--train-only`: one half of the loop on a run, for debugging.

Neither finishes the stage: the whole loop goes on from what they left.
"""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

from etude.core.recipe import Recipe
from etude.pipeline.execute import open_run
from etude.pipeline.find_model import check_device
from etude.pipeline.stages.base import starting_model
from etude.pipeline.stages.reinforcement import RL
from etude.sandbox.hosts import backend_of


def rollouts_only(recipe: Recipe, path: Path, *, fresh: bool = False) -> dict[str, Any]:
    """Fills the run's journal with rollouts of the model that it has; trains nothing."""
    from etude.rl.orchestrator import train
    from etude.rl.rollouts_only import collect

    return _half(
        recipe,
        path,
        fresh,
        partial(train, backend=backend_of(recipe.run.sandbox, recipe.cluster.sandbox_hosts), work=collect),
        None,
    )


def train_only(recipe: Recipe, path: Path, journal: Path, *, fresh: bool = False) -> dict[str, Any]:
    """Trains on the rollouts in the journal of the run `journal`, which is left as it is unless it is this run."""
    from etude.rl.train_only import train_only

    return _half(recipe, path, fresh, train_only, journal)


def _half(recipe: Recipe, path: Path, fresh: bool, work: Any, journal: Path | None) -> dict[str, Any]:
    from etude.rl.train_only import copy_journal

    RL.check(recipe)
    check_device(recipe.run.device)
    with open_run(path, recipe, fresh=fresh) as run:
        start = starting_model(run, recipe.rl.model, "sft", "rl")
        if journal is not None and journal.resolve() != run.path:
            copy_journal(journal, run.path)
        run.begin(RL.name, RL.reads)
        found: dict[str, Any] = asyncio.run(work(run, recipe, start))
        return {"run": str(run.path)} | found
