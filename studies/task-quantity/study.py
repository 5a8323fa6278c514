"""More synthetic tasks, a better agent: held-out pass rate after RL on 20, 100 and 500 tasks, the same steps each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from etude.bench.report.charts import Line
from etude.bench.run_data import read_run
from etude.bench.studies.measures import bench_values, last_third, paired_by_seed, paired_by_task, points
from etude.bench.studies.nano import NANO, benched
from etude.bench.studies.study import Arm, Figure, Results, Study, Verdict

SIZES = {"1x": 20, "5x": 100, "25x": 500}
STEPS = 60  # of 64 rollouts: each of 500 tasks is asked about once, each of 20 24 times


def arm(count: int) -> Arm:
    make = ("tasks", "katas", "{arm}/tasks", "--count", str(count), "--seed", "5", "--split", "train", "--levels", "1")
    # Every task is asked again and again, as one with few tasks has to.
    source = "{use='curriculum', path='{arm}/tasks', uses=100000, retire=1.0}"
    start = ("rl", "nano", "rl.model={nano}/model", "run.seed={seed}", f"rl.tasks={source}", "rl.first_task=0")
    rl = (*start, f"rl.steps={STEPS}", "rl.seconds=0", "rl.eval_every=0", "--run", "{run}")
    return Arm(f"reinforcement learning on {count} tasks", (make, rl, benched()), (NANO,))


def measure(run: Path) -> dict[str, Any]:
    data = read_run(run)
    steps = data.rows("rl")
    return bench_values(run) | {
        "trained": last_third(data, "pass_rate"),
        "rollouts": sum(row["rollouts"] for row in steps),
    }


def conclude(results: Results) -> Verdict:
    few, many = results["1x"], results["25x"]
    seeds, tasks = paired_by_seed(few, many, "pass_rate"), paired_by_task(few, many)
    gap = paired_by_seed(many, few, "trained")
    said = f"500 tasks against 20, {STEPS} steps each: {points(tasks or seeds)} on held-out tasks in pairs, "
    said += f"{points(seeds)} over {len(few)} seeds; on their own tasks those with 20 are ahead by {points(gap)}."
    sure = (
        tasks is not None
        and tasks.low > 0
        and all(b.values["pass_rate"] > a.values["pass_rate"] for a, b in zip(few, many, strict=True))
    )
    return Verdict("confirmed" if sure else "not confirmed", said)


def figures(results: Results) -> list[Figure]:
    lines = []
    for colour, (label, name) in enumerate((("held-out tasks", "pass_rate"), ("their own tasks", "trained")), 1):
        some = [(SIZES[arm], [each.values[name] for each in found]) for arm, found in results.items() if found]
        lines.append(Line(label, [(float(x), sum(ys) / len(ys)) for x, ys in some], colour, marked=True))
    return [Figure("Pass rate by training tasks", lines, "tasks", True)]


STUDY = Study(
    claim="More synthetic tasks give a better agent: 25 times more than the generation before.",
    shown="Held-out pass rate after the same steps of RL on 20, 100 and 500 different tasks: 500 ahead of 20 in pairs "
    "of tasks, in every seed.",
    arms={"cpu": {name: arm(count) for name, count in SIZES.items()}},
    measure=measure,
    conclude=conclude,
    figures=figures,
    columns={"held-out tasks": "pass_rate", "own tasks, last third": "trained", "rollouts": "rollouts"},
    minutes=4,
)
