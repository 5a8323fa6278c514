"""More synthetic tasks, a better agent: held-out pass rate after RL on 20, 100 and 500 tasks, the same seconds each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from etude.bench.report.charts import Line
from etude.bench.run_data import read_run
from etude.bench.stats import mean_interval
from etude.bench.studies.study import Arm, Figure, Results, Study, Verdict

SIZES = {"1x": 20, "5x": 100, "25x": 500}
BASE = ("sft", "nano", "run.seed={seed}", "--run", "{base}")


def arm(count: int) -> Arm:
    folder = "{run}-tasks"
    make = ("tasks", "katas", folder, "--count", str(count), "--seed", "5", "--split", "train", "--levels", "1")
    # Every task is asked again and again, as one with few tasks has to.
    tasks = ("rl.tasks.use=curriculum", f"rl.tasks.path={folder}", "rl.tasks.uses=100000", "rl.tasks.retire=1")
    rl = ("rl", "nano", "rl.model={base}", "run.seed={seed}", *tasks, "rl.first_task=0", "--run", "{run}")
    return Arm(f"reinforcement learning on {count} tasks", (make, rl))


def measure(run: Path) -> dict[str, Any]:
    data = read_run(run)
    curve = data.series("rl.eval", "pass_rate")
    last = [rate for _, rate in curve[-3:]]  # 48 rollouts have a standard error of 7 points
    return {
        "before": curve[0][1],
        "after": sum(last) / len(last),
        "trained": data.series("rl", "pass_rate")[-1][1],
        "curve": [list(point) for point in curve],
    }


def conclude(results: Results) -> Verdict:
    few, many = results["1x"], results["25x"]
    if len(few) < 2:
        return Verdict("open", f"{len(few)} of 3 seeds are here, and one says nothing about the spread")
    gain = mean_interval([b.values["after"] - a.values["after"] for a, b in zip(few, many, strict=True)])
    said = f"500 tasks against 20: {gain.mean:+.1%} ({gain.low:+.1%} to {gain.high:+.1%}) on held-out tasks"
    return Verdict("confirmed" if gain.low > 0 else "not confirmed", f"{said}, over {len(few)} seeds.")


def figures(results: Results) -> list[Figure]:
    points = []
    for name, some in results.items():
        if some:
            points.append((float(SIZES[name]), sum(each.values["after"] for each in some) / len(some)))
    return [Figure("Held-out pass rate by training tasks", [Line("after RL", points, marked=True)], "tasks", True)]


STUDY = Study(
    claim="More synthetic tasks give a better agent: 25 times more than the generation before.",
    shown="Held-out pass rate after RL for the same seconds on 20, 100 and 500 different tasks.",
    arms={"cpu": {name: arm(count) for name, count in SIZES.items()}},
    measure=measure,
    conclude=conclude,
    figures=figures,
    columns={"before": "before", "held-out, after": "after", "own tasks, last step": "trained"},
    prepare=(BASE,),
    minutes=8,
)
