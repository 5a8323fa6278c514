"""Asynchronous training is faster at equal quality: time to a pass rate at staleness 0, 1, 4 and 8."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from etude.bench.run_data import read_run
from etude.bench.stats import mean_interval
from etude.bench.studies.measures import (
    bench_values,
    mean_lines,
    mean_of,
    paired_by_seed,
    paired_by_task,
    points,
    ratio_by_seed,
    times,
)
from etude.bench.studies.nano import NANO, benched, reinforced
from etude.bench.studies.study import Arm, Base, Figure, Results, Study, Verdict

SECONDS = 150
ARMS = {"0": ("rl.concurrent=false",), **{str(lag): (f"rl.staleness={lag}",) for lag in (1, 4, 8)}}
LARGE = Base("h200", (("sft", "h200", "--run", "{run}"),), seeded=False, minutes=4)
WIDE = 10  # steps whose rollouts make one pass rate: 640 of them


def arm(lag: str, base: Base, recipe: str, seconds: int) -> Arm:
    about = "sampling and learning take turns" if lag == "0" else f"tokens at most {lag} versions old"
    keys = (*ARMS[lag], f"rl.seconds={seconds}", "rl.eval_every=0")
    rl = reinforced(base, *keys, recipe=recipe)
    return Arm(about, (rl, benched("bench.count=100", "bench.samples=4", recipe=recipe)), (base,))


def measure(run: Path) -> dict[str, Any]:
    """The curve is of training tasks, each used once: ten steps of them are far sharper than an evaluation."""
    rows = read_run(run).rows("rl")
    ends = [row["time"] for row in rows]
    began = ends[0] - rows[0]["seconds"]
    curve = []
    for last in range(WIDE, len(rows) + 1):
        some = rows[last - WIDE : last]
        curve.append([round(ends[last - 1] - began, 1), sum(row["pass_rate"] for row in some) / WIDE])
    found = {"curve": curve, "steps": len(rows), "seconds_a_step": (ends[-1] - began) / len(rows)}
    found["staleness"] = sum(row["staleness_mean"] for row in rows) / len(rows)
    return bench_values(run) | found


def seconds_to(curve: list[list[float]], target: float) -> float:
    """When a curve first reaches the target; the end of the run where it never does."""
    return next((seconds for seconds, rate in curve if rate >= target), curve[-1][0])


def conclude(results: Results) -> Verdict:
    turns, told, faster = results["0"], [], []
    for lag in ("1", "4", "8"):
        some = results[lag]
        ratio, gain = ratio_by_seed(turns, some, "seconds_a_step"), paired_by_seed(turns, some, "pass_rate")
        tasks = paired_by_task(turns, some) or gain
        soon = []
        for a, b in zip(turns, some, strict=True):
            target = a.values["curve"][-1][1]  # what taking turns comes to
            soon.append(seconds_to(b.values["curve"], target) / seconds_to(a.values["curve"], target))
        reached = mean_interval(soon)
        told.append(
            f"staleness {lag}: {times(ratio)} of the seconds a step, {reached.mean:.2f} of the seconds to the pass "
            f"rate that turns end with, benchmark {points(tasks)}"
        )
        # Two decimals would show an interval that ends at 0.996 as one that ends at 1.
        faster += [f"{lag} (the interval ends at {ratio.high:.3f})"] if ratio.high < 1 and tasks.high > 0 else []
    verdict = "confirmed" if faster else "not confirmed"
    where = f"Both bounds hold at staleness {', '.join(faster)}, of three that were tried." if faster else ""
    said = f"Against taking turns ({mean_of(turns, 'pass_rate'):.1%}), {'; '.join(told)}. {where}".strip()
    return Verdict(verdict, said)


def figures(results: Results) -> list[Figure]:
    first = {lag: some[:1] for lag, some in results.items()}
    lines = mean_lines(first, "curve", lambda lag: "in turns" if lag == "0" else f"staleness {lag}")
    title = "Pass rate of the last 10 steps' rollouts over wall time, first seed"
    return [Figure(title, lines, x_label="seconds", percent=True)]


STUDY = Study(
    claim="Asynchronous reinforcement learning is faster than taking turns, at equal quality.",
    shown="At staleness 1, 4 or 8, after the same seconds: fewer seconds a step (the interval below 1) and a pass rate "
    "on held-out tasks that is not lower (the interval, in pairs of tasks, reaches above 0).",
    arms={
        "cpu": {lag: arm(lag, NANO, "nano", SECONDS) for lag in ARMS},
        "h200": {lag: arm(lag, LARGE, "h200", 60) for lag in ARMS},
    },
    measure=measure,
    conclude=conclude,
    figures=figures,
    columns={
        "held-out pass rate": "pass_rate",
        "steps": "steps",
        "seconds a step": "seconds_a_step",
        "staleness, mean": "staleness",
    },
    minutes=3.5,
)
