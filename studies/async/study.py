"""Asynchronous training is faster at equal quality: time to a pass rate at staleness 0, 1, 4 and 8."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from etude.bench.report.charts import Line
from etude.bench.run_data import read_run
from etude.bench.stats import mean_interval
from etude.bench.studies.study import Arm, Figure, Results, Study, Verdict

BASE = ("sft", "nano", "run.seed={seed}", "--run", "{base}")
TARGET = 0.5  # pass rate whose time is compared: between the 42% that fine-tuning gives and the 58% after RL
ARMS = {"0": ("rl.concurrent=false",), **{str(lag): (f"rl.staleness={lag}",) for lag in (1, 4, 8)}}


def measure(run: Path) -> dict[str, Any]:
    data = read_run(run)
    rows = data.rows("rl.eval")
    began = min(row["time"] - row["seconds"] for row in rows)
    curve = [[row["time"] - began, row["pass_rate"]] for row in rows]
    reached = [seconds for seconds, rate in curve if rate >= TARGET]
    steps = data.series("rl", "reward")
    return {
        "curve": curve,
        "seconds_to_target": reached[0] if reached else None,
        "pass_rate": curve[-1][1],
        "steps": len(steps),
        "seconds_a_step": (curve[-1][0]) / max(1, len(steps)),
    }


def conclude(results: Results) -> Verdict:
    turns, others = results["0"], {lag: some for lag, some in results.items() if lag != "0"}
    if len(turns) < 2:
        return Verdict("open", f"{len(turns)} of 3 seeds are here, and one says nothing about the spread")
    told, faster, equal = [], False, False
    for lag, some in others.items():
        ratio = mean_interval(
            [b.values["seconds_a_step"] / a.values["seconds_a_step"] for a, b in zip(turns, some, strict=True)]
        )
        gain = mean_interval([b.values["pass_rate"] - a.values["pass_rate"] for a, b in zip(turns, some, strict=True)])
        told.append(f"staleness {lag}: {ratio.mean:.2f} of the time a step, pass rate {gain.mean:+.1%}")
        faster, equal = faster or ratio.high < 1, equal or (ratio.high < 1 and gain.high > 0)
    verdict = "confirmed" if faster and equal else "not confirmed"
    return Verdict(verdict, f"Against taking turns, {'; '.join(told)} ({len(turns)} seeds).")


def figures(results: Results) -> list[Figure]:
    lines = [
        Line("in turns" if lag == "0" else f"staleness {lag}", [tuple(p) for p in some[0].values["curve"]], colour)
        for colour, (lag, some) in enumerate(results.items(), 1)
        if some
    ]
    return [Figure("Pass rate on held-out tasks over wall time, first seed", lines, x_label="seconds", percent=True)]


STUDY = Study(
    claim="Asynchronous reinforcement learning is faster than taking turns, at equal quality.",
    shown="Seconds a step and the pass rate after the same seconds, at staleness 1, 4 and 8 against turns.",
    arms={
        "cpu": {
            lag: Arm(
                "sampling and learning take turns" if lag == "0" else f"tokens at most {lag} versions old",
                (("rl", "nano", "rl.model={base}", "run.seed={seed}", *keys, "--run", "{run}"),),
            )
            for lag, keys in ARMS.items()
        }
    },
    measure=measure,
    conclude=conclude,
    figures=figures,
    columns={"pass rate": "pass_rate", "steps": "steps", "seconds a step": "seconds_a_step"},
    prepare=(BASE,),
    minutes=8,
)
