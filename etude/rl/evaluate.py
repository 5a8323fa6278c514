"""Evaluation while training goes on: a fixed set of held-out tasks with fixed seeds, and the best model kept.

The tasks come from the benchmark's source but are never the benchmark's own. Rollouts run beside those of training,
in the same engine, so the weights may move under a long one; the row says which versions took part. Knows the run's
folder; how an attempt is made is given.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pydantic

from etude.core import durable
from etude.core.component import load_class
from etude.core.errors import EtudeError
from etude.core.recipe import Recipe
from etude.forge.curriculum.sources import SOURCES, open_source
from etude.rollout.scheduler import RolloutJob, sample_seed

APART = 1000  # added to the seed of the benchmark's source: other tasks of the same kind
FACTS = "best.json"
NOT_THE_MODEL = ("optimiser.safetensors", "learner.json")


def held_out_jobs(recipe: Recipe) -> list[RolloutJob]:
    """Every attempt of one evaluation: the same tasks and seeds each time."""
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


class Best:
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

    def offer(self, candidate: Path, lineage: int, step: int, rate: float, rollouts: int) -> bool:
        """Keeps the model in `candidate` unless it did clearly worse than the best before it; says whether.

        Clearly is a standard error of the pass rate: of two models that an evaluation cannot tell apart, the one that
        has learnt for longer is the better guess.
        """
        highest = max(rate, self.facts.get("highest", 0.0))
        if rate < highest - math.sqrt(highest * (1 - highest) / rollouts):
            return False
        facts = {"lineage": lineage, "step": step, "pass_rate": rate, "highest": highest}
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
