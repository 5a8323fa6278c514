"""A run directory as data: facts, recipe, metrics, checkpoints, benchmarks; for the report and for notebooks.

A run that has not come far gives less and never an error; a file that cannot be read becomes a note.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from etude.bench.result import BenchResult, TaskSet, load_result
from etude.bench.run_results import AFTER, BEFORE, benchmark_files, collect, is_number
from etude.bench.trained_on import called, count_trained, known_trained
from etude.core.errors import EtudeError
from etude.core.run_files import checkpoints_in, read_facts, read_metrics, read_recipe
from etude.rollout.trained_tasks import read_trained_tasks


@dataclass(frozen=True)
class RunData:
    """A run, read."""

    path: Path
    facts: dict[str, Any]  # run.json
    recipe: dict[str, Any]
    metrics: list[dict[str, Any]]  # rows of metrics.jsonl that survived every resume
    checkpoints: list[tuple[str, int, Path]]  # stage, step, folder; oldest step first
    benchmarks: dict[str, BenchResult]
    results: dict[str, Any]  # as results.json would be now
    trained: dict[str, str] | None  # identity -> name of each task that it trained on; None: it kept no list
    trained_in_rl: int  # tasks that reinforcement learning was on, each counted once; 0: it kept no list
    notes: list[str]  # what could not be read
    written: str

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def before(self) -> BenchResult | None:
        return self.benchmarks.get(BEFORE)

    @property
    def after(self) -> BenchResult | None:
        return self.benchmarks.get(AFTER)

    def trained_on(self, result: BenchResult, which: TaskSet = "held_out") -> int | None:
        """How many tasks of a benchmark this run trained on; None where nobody knows."""
        return count_trained(result.rows(which), self.trained)

    def called(self, result: BenchResult, which: TaskSet = "held_out") -> str:
        """What the tasks of a benchmark may be called: held-out ones only where that is known."""
        return called(len(result.rows(which)), self.trained_on(result, which))

    def rows(self, stage: str) -> list[dict[str, Any]]:
        return [row for row in self.metrics if row.get("stage") == stage]

    def series(self, stage: str, key: str) -> list[tuple[float, float]]:
        """(step, value) of a metric, wherever it is a number; the newest row of a step counts."""
        rows = [row for row in self.rows(stage) if is_number(row.get(key)) and is_number(row.get("step"))]
        found = {float(row["step"]): float(row[key]) for row in rows}
        return sorted(found.items())

    def setting(self, *path: str) -> Any:
        """A value of the recipe, or None."""
        value: Any = self.recipe
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    @property
    def recipe_text(self) -> str:
        return tomli_w.dumps(self.recipe)

    @property
    def machine(self) -> dict[str, Any]:
        lineages = self.facts.get("lineages") or [{}]
        machine = lineages[-1].get("machine", {})
        return machine if isinstance(machine, dict) else {}


def read_run(path: str | Path) -> RunData:
    """The run at `path`; only a folder that is no run is refused."""
    path = Path(path)
    notes: list[str] = []
    facts = read_facts(path)
    recipe: dict[str, Any] = {}
    metrics: list[dict[str, Any]] = []
    try:
        recipe = read_recipe(path)
    except EtudeError as error:
        notes.append(str(error))
    try:
        metrics = read_metrics(path)
    except (EtudeError, KeyError, TypeError) as error:
        notes.append(f"metrics.jsonl was left out: {error}")
    benchmarks: dict[str, BenchResult] = {}
    for name, file in benchmark_files(path).items():
        try:
            benchmarks[name] = load_result(file)
        except EtudeError as error:
            notes.append(str(error))
    trained = known_trained(path)
    # Made anew, so that a page shows the run as it is and not as its last results.json was.
    results = collect(facts, recipe, metrics, benchmarks)
    return RunData(
        path=path,
        facts=facts,
        recipe=recipe,
        metrics=metrics,
        checkpoints=checkpoints_in(path),
        benchmarks=benchmarks,
        results=json.loads(json.dumps(results)),
        trained=trained,
        trained_in_rl=len(read_trained_tasks(path, "rl") or {}) if trained is not None else 0,
        notes=notes,
        written=time.strftime("%Y-%m-%d %H:%M"),
    )
