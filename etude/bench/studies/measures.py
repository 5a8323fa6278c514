"""What studies measure alike: benchmarks as values of a result, differences in pairs of tasks or of seeds, curves.

Values are small, since results are committed: of a benchmark the tasks' passes as `3/4`, of a curve its points.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from etude.bench.report.charts import Line
from etude.bench.result import TaskSet, load_result, mean_tokens
from etude.bench.run_data import RunData
from etude.bench.stats import Interval, Tally, mean_interval, paired_gain
from etude.bench.studies.bases import FACTS, Places
from etude.bench.studies.study import ArmResult, Base, Results
from etude.core.errors import EtudeError

BENCH = "bench.json"  # beside an arm's run: {arm}/bench.json, where a command saved a benchmark


def bench_values(run: Path, which: TaskSet = "held_out", prefix: str = "") -> dict[str, Any]:
    """Pass rates, tokens and each task's passes of the benchmark beside a run."""
    result = load_result(run.parent / BENCH)
    rows = result.rows(which)
    if not rows:
        return {}
    best = result.pass_at(result.samples, which)
    found: dict[str, Any] = {"pass_rate": _mean(which, result.pass_at(1, which)), "tokens": mean_tokens(rows)}
    found |= {"best": best.mean if best is not None else None}
    counts = result.counts[which]
    if counts.summaries:
        found |= {"summaries": counts.summaries / counts.rollouts}
        found |= {"summary_tokens": counts.summary_tokens / counts.summaries}
    found |= {"tasks": {row.name: f"{row.tally.passed}/{row.tally.rollouts}" for row in rows}}
    return {f"{prefix}{name}": value for name, value in found.items()}


def _mean(which: str, found: Interval | None) -> float:
    if found is None:
        raise ValueError(f"no rollout of the {which} tasks counts")
    return found.mean


def tallies(result: ArmResult, name: str = "tasks") -> dict[tuple[int, str], Tally]:
    """By seed and task: how many rollouts count and how many passed."""
    found = {}
    for task, shown in result.values.get(name, {}).items():
        passed, _, rollouts = str(shown).partition("/")
        found[result.seed, task] = Tally(int(rollouts), int(passed))
    return found


def paired_by_task(
    before: Sequence[ArmResult], after: Sequence[ArmResult], name: str = "tasks", k: int = 1
) -> Interval | None:
    """How much pass@k is higher in the second arm, over the tasks that both tried under the same seed.

    Seeds try the same tasks, so a task counts once, with the mean of its differences: counted once a seed, the interval
    would be that of more tasks than there are. It says nothing of how seeds differ; `paired_by_seed` does.
    """
    old = {key: tally for each in before for key, tally in tallies(each, name).items()}
    new = {key: tally for each in after for key, tally in tallies(each, name).items()}
    gains: dict[str, list[float]] = {}
    for key in sorted(old.keys() & new.keys()):
        if (gain := paired_gain(k, [old[key]], [new[key]])) is not None:
            gains.setdefault(key[1], []).append(gain.mean)
    if not gains:
        return None
    found = mean_interval([sum(some) / len(some) for some in gains.values()])
    return Interval(found.mean, max(-1.0, found.low), min(1.0, found.high))


def ratio_by_task(before: Sequence[ArmResult], after: Sequence[ArmResult], name: str) -> Interval | None:
    """The second arm's number of a task as a multiple of the first's, over tasks as in `paired_by_task`.

    Geometric means; a number below 1 counts as 1.
    """
    old = {(each.seed, task): value for each in before for task, value in each.values.get(name, {}).items()}
    new = {(each.seed, task): value for each in after for task, value in each.values.get(name, {}).items()}
    ratios: dict[str, list[float]] = {}
    for key in sorted(old.keys() & new.keys()):
        ratios.setdefault(key[1], []).append(math.log(max(1.0, new[key]) / max(1.0, old[key])))
    if not ratios:
        return None
    return _as_ratio(mean_interval([sum(some) / len(some) for some in ratios.values()]))


def paired_by_seed(before: Sequence[ArmResult], after: Sequence[ArmResult], name: str) -> Interval:
    """How much a value is higher in the second arm, over the seeds that both have."""
    old = {each.seed: float(each.values[name]) for each in before}
    new = {each.seed: float(each.values[name]) for each in after}
    return mean_interval([new[seed] - old[seed] for seed in sorted(old.keys() & new.keys())])


def ratio_by_seed(before: Sequence[ArmResult], after: Sequence[ArmResult], name: str) -> Interval:
    """The second arm's value as a multiple of the first's: the geometric mean over seeds, 0 counted as 1e-6."""
    old = {each.seed: max(1e-6, float(each.values[name])) for each in before}
    new = {each.seed: max(1e-6, float(each.values[name])) for each in after}
    return _as_ratio(mean_interval([math.log(new[seed] / old[seed]) for seed in sorted(old.keys() & new.keys())]))


def _as_ratio(logs: Interval) -> Interval:
    return Interval(*(math.exp(min(found, 700.0)) for found in logs))


def mean_of(results: Sequence[ArmResult], name: str) -> float:
    return sum(float(each.values[name]) for each in results) / len(results)


def last_third(run: RunData, name: str, stage: str = "rl") -> float:
    """Mean of a metric over the last third of the steps; a step that does not have it counts 0."""
    values = [float(row.get(name, 0.0)) for row in run.rows(stage)]
    late = values[-max(1, len(values) // 3) :]
    return sum(late) / len(late) if late else 0.0


def base_ends(run: Path, name: str) -> dict[str, Any]:
    """What the stages of a base logged last, by stage: of the one that this arm's run started from."""
    seed = int(run.parent.name.rpartition("-")[2])
    base = Places(run.parent.parent, seed).base(Base(name, ()))
    found: dict[str, Any] | None = json.loads((base / FACTS).read_text()).get("ends")
    if found is None:
        raise EtudeError(f"{base} was made before bases kept their losses; delete it and run the study again")
    return found


def mixed_groups(run: RunData, families: Collection[str] = (), every: int = 10) -> list[list[float]]:
    """[step, share] of groups in which some rollouts passed and some did not: the others say nothing about passing.

    Of each `every` steps together; only of tasks of these families, where some are named.
    """
    found: dict[int, list[bool]] = {}
    for row in run.rows("rl.task"):
        if not families or str(row["task"]).partition("-")[0] in families:
            last = -(-int(row["step"]) // every) * every
            found.setdefault(last, []).append(0 < row["passed"] < row["rollouts"])
    return [[step, sum(some) / len(some)] for step, some in sorted(found.items())]


def curve(run: RunData, name: str, every: int = 5, stage: str = "rl") -> list[list[float]]:
    """[step, mean] of a metric over each `every` steps; a step that does not have it counts 0."""
    rows = run.rows(stage)
    parts = [rows[start : start + every] for start in range(0, len(rows), every)]
    return [[part[-1]["step"], sum(float(row.get(name, 0.0)) for row in part) / len(part)] for part in parts]


def mean_lines(results: Results, name: str, label: Callable[[str], str] = str) -> list[Line]:
    """One line an arm: the mean over seeds of a curve, where all of them have the step."""
    lines = []
    for colour, (arm, some) in enumerate(results.items()):
        curves = [dict(map(tuple, each.values[name])) for each in some if each.values.get(name)]
        steps = sorted(set.intersection(*map(set, curves))) if curves else []
        points = [(float(step), sum(each[step] for each in curves) / len(curves)) for step in steps]
        if points:
            lines.append(Line(label(arm), points, colour % 5 + 1))
    return lines


def points(found: Interval) -> str:
    """A difference of shares, as people read it."""
    return f"{100 * found.mean:+.1f} points ({100 * found.low:+.1f} to {100 * found.high:+.1f})"


def times(found: Interval) -> str:
    """A ratio, as people read it."""
    return f"{found.mean:.2f} ({found.low:.2f} to {found.high:.2f})"
