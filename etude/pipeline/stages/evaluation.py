"""Stages that evaluate: the benchmark of each trained model, and the report of the whole run."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from etude.core.recipe import Recipe
from etude.core.run import Run
from etude.pipeline.find_model import find_model
from etude.pipeline.stages.base import Stage, check_agent, check_tasks, starting_model
from etude.pipeline.stages.reinforcement import ROLLOUTS_READ
from etude.sandbox.hosts import backend_of

READS = ("run.sandbox", "bench", *ROLLOUTS_READ)


def benchmark(arm: str, model_of: Callable[[Run, Recipe], Path], run: Run, recipe: Recipe) -> None:
    from etude.bench.result import summarise
    from etude.bench.runner import bench_checkpoint

    model, began = model_of(run, recipe), time.monotonic()
    with run.stop_at_once():
        result = bench_checkpoint(
            model,
            recipe,
            backend=backend_of(recipe.run.sandbox, recipe.cluster.sandbox_hosts),
            save=run.path / "bench" / f"{arm}.json",
            label=f"benchmark of {arm}",
        )
    seconds = round(time.monotonic() - began, 1)
    run.finish(f"bench-{arm}", model=str(model), **summarise(result), seconds=seconds)


def check_bench(recipe: Recipe) -> None:
    check_tasks(recipe.bench.tasks, "bench.tasks")
    check_agent(recipe)


def outline_bench(recipe: Recipe) -> dict[str, Any]:
    bench = recipe.bench
    return {"tasks": bench.count or "all", "unseen": bench.unseen_count, "samples": bench.samples}


def report(run: Run, recipe: Recipe) -> None:
    from etude.bench.report.page import write_report
    from etude.bench.run_results import write_results

    write_results(run.path)
    run.finish("report", page=str(run.path / "report.html"))
    write_report(run.path)


def _before_rl(run: Run, recipe: Recipe) -> Path:
    return starting_model(run, recipe.rl.model, "sft", "rl")


def _before_report(recipe: Recipe) -> tuple[str, ...]:
    if not recipe.rl.steps:
        return ("sft",)
    return ("bench-sft", "bench-rl", *(("bench-sft-more",) if recipe.bench.sft_more else ()))


BENCH_SFT = Stage(
    "bench-sft",
    reads=("rl.model", *READS),
    needs=lambda recipe: () if recipe.rl.model else ("sft",),
    work=partial(benchmark, "sft", _before_rl),
    outline=outline_bench,
    check=check_bench,
)
BENCH_RL = Stage(
    "bench-rl",
    reads=READS,
    needs=lambda _: ("rl",),
    work=partial(benchmark, "rl", lambda run, _: find_model(run.path)),
    outline=outline_bench,
)
BENCH_SFT_MORE = Stage(
    "bench-sft-more",
    reads=READS,
    needs=lambda _: ("sft-more",),
    work=partial(benchmark, "sft-more", lambda run, _: starting_model(run, "", "sft-more", "rl")),
    outline=outline_bench,
)
REPORT = Stage(
    "report",
    reads=(),
    needs=_before_report,
    work=report,
    outline=lambda _: {"page": "report.html"},
)
