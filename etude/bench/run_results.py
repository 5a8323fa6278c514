"""results.json: the figures of a run that a script wants, read from what the run left behind.

    sft, rl         pass@1 [mean, low, high], pass@4, tokens for each rollout, format errors for each turn
    paired_gain     of rl over sft in pass@1; paired_gain_best_of: the same for pass@k, by k
    seconds         of each stage
    numerics        the worst of all publishes: mean and max difference of log-probabilities
    void            rollouts that the machinery spoiled, in training and in all benchmarks
    seed            of the run

Shares are from 0 to 1. What the run has not made yet is null. `unseen` and `arms` appear when there are any. Knows the
names of a run's files and no stage's work.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from etude.bench.result import BenchResult, TaskSet, compare, load_result, save_result, summarise
from etude.core import durable
from etude.core.errors import EtudeError
from etude.core.run_files import read_facts, read_metrics, read_recipe

BEFORE, AFTER = "sft", "rl"
RESULTS = "results.json"


def benchmark_files(run: Path) -> dict[str, Path]:
    """Name -> file of each benchmark in the run's bench/; sft first, then rl, then others by name."""
    files = {path.stem: path for path in (run / "bench").glob("*.json") if not path.name.startswith(".")}
    first = [name for name in (BEFORE, AFTER) if name in files]
    return {name: files[name] for name in [*first, *sorted(files.keys() - {*first})]}


def add_before(run: Path, file: Path) -> None:
    """Takes a benchmark that was saved elsewhere into the run, as that of the model before training."""
    read_facts(run)
    given, kept = load_result(file), run / "bench" / f"{BEFORE}.json"
    if kept.exists() and load_result(kept) != given:
        raise EtudeError(f"{run} has another benchmark before training: {kept}; remove it, or leave --before out")
    save_result(given, kept)


def write_results(run: Path) -> dict[str, Any]:
    """Writes results.json of the run and returns it."""
    benchmarks = {name: load_result(path) for name, path in benchmark_files(run).items()}
    results = collect(read_facts(run), read_recipe(run), read_metrics(run), benchmarks)
    durable.write_whole(run / RESULTS, json.dumps(results, indent=1, allow_nan=False) + "\n")
    return results


def read_results(run: Path) -> dict[str, Any]:
    """results.json of the run, or nothing where it has none."""
    file = run / RESULTS
    return dict(json.loads(file.read_text())) if file.exists() else {}


def collect(
    facts: Mapping[str, Any],
    recipe: Mapping[str, Any],
    metrics: Sequence[Mapping[str, Any]],
    benchmarks: Mapping[str, BenchResult],
) -> dict[str, Any]:
    before, after = benchmarks.get(BEFORE), benchmarks.get(AFTER)
    results: dict[str, Any] = {
        BEFORE: summarise(before) if before else None,
        AFTER: summarise(after) if after else None,
        "paired_gain": gain(before, after),
        "paired_gain_best_of": {str(k): gain(before, after, k) for k in shared_ks(before, after)},
        "seconds": stage_seconds(facts),
        "numerics": numerics(metrics),
        "void": voids(metrics, benchmarks),
        "seed": recipe.get("run", {}).get("seed", 0),
    }
    unseen = {name: result for name, result in benchmarks.items() if result.rows("unseen")}
    if unseen:
        figures: dict[str, Any] = {name: summarise(result, "unseen") for name, result in unseen.items()}
        results["unseen"] = figures | {"paired_gain": gain(unseen.get(BEFORE), unseen.get(AFTER), which="unseen")}
    if arms := {name: result for name, result in benchmarks.items() if name not in (BEFORE, AFTER)}:
        results["arms"] = {
            name: summarise(result) | {"paired_gain": gain(before, result)} for name, result in arms.items()
        }
    return results


def gain(
    before: BenchResult | None, after: BenchResult | None, k: int = 1, which: TaskSet = "held_out"
) -> list[float] | None:
    """[mean, low, high] of the paired gain, where both sides are there and of the same tasks."""
    if before is None or after is None:
        return None
    try:
        interval = compare(before, after, k, which)
    # Benchmarks of other tasks cannot be paired; a run may hold such.
    except EtudeError:
        return None
    return list(interval) if interval else None


def shared_ks(before: BenchResult | None, after: BenchResult | None) -> list[int]:
    """The k above 1 that both sides have."""
    return sorted({*before.ks} & {*after.ks} - {1}) if before and after else []


def stage_seconds(facts: Mapping[str, Any]) -> dict[str, float]:
    """How long each finished stage took: what it says itself, or else from its beginning to its end."""
    seconds = {}
    for name, entry in facts.get("stages", {}).items():
        # From beginning to end would count the time between two starts of a resumed run as well.
        own = entry.get("facts", {}).get("seconds")
        if is_number(own):
            seconds[name] = float(own)
        elif (began := _time(entry.get("began"))) and (finished := _time(entry.get("finished"))):
            seconds[name] = (finished - began).total_seconds()
    return seconds


def numerics(metrics: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """The worst probe of all publishes; null without one."""
    worst: dict[str, float | None] = {}
    for name in ("mean", "max"):
        found = [row[f"probe_{name}"] for row in metrics if is_number(row.get(f"probe_{name}"))]
        worst[name] = max(found) if found else None
    return worst


def voids(metrics: Sequence[Mapping[str, Any]], benchmarks: Mapping[str, BenchResult]) -> int:
    """Void rollouts in training and in the benchmarks, those included that were made again and went well."""
    # They are counted even where a repetition went well: they cost time, and may point at the machine.
    trained = sum(int(row["void"]) for row in metrics if row.get("stage") == "rl" and is_number(row.get("void")))
    return trained + sum(result.void + result.retried for result in benchmarks.values())


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _time(text: Any) -> datetime | None:
    try:
        return datetime.strptime(str(text), "%Y-%m-%dT%H:%M:%S%z")
    except ValueError:
        return None
