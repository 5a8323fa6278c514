"""Families that no demonstration shows: what passes before, after RL in three ways, and after SFT on the others.

The pretraining text has these families, the demonstrations have not. Where RL does not learn them the reason is
measured, too: how many tasks pass at all in many tries, and in how many groups some rollouts pass and some do not.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from etude.bench.report.charts import Line
from etude.bench.run_data import read_run
from etude.bench.stats import mean_interval
from etude.bench.studies.measures import bench_values, mean_lines, mean_of, mixed_groups, paired_by_task, points
from etude.bench.studies.nano import benched, reinforced, tuned
from etude.bench.studies.study import Arm, Figure, Results, Study, Verdict

BAR = 0.1  # pass rate after RL
STEPS = 100
MOST_SECONDS = 200  # of fine-tuning: about what the steps take
# Families of level 1 that the demonstrations leave out, and those that they have.
LEFT_OUT = ("clamp", "multiples", "lookup", "recent", "initials", "pad")
HIDDEN = str(list(LEFT_OUT))
SHOWN = (
    "['percent', 'crates', 'line', 'fallback', 'ring', 'column', 'worth', 'remap', 'best', 'keep', 'each', 'rotate', "
    "'slices', 'order', 'slug', 'caption', 'trim', 'letters', 'shorten', 'parts', 'clock']"
)
BASE = tuned("nanoshown", f"demos.tasks.families={SHOWN}", "sft.epochs=10", minutes=8)
ON_HIDDEN = (f"bench.tasks.families={HIDDEN}", "bench.count=90")
TRIES = 16  # rollouts of a task before RL: where none of so many passes, there is next to nothing to learn from

PARTIAL = "reward.parts=[{use='tests', partial=0.3}, {use='ending', weight=0.2}]"
# Half of the tasks are of families that demonstrations show: their groups have a signal from the first step on.
OF = "use='katas', split='train', levels=[1], invented=0.7, seed={seed}, families"
BOTH = f"{{name='hidden', {OF}={HIDDEN}}}, {{name='shown', {OF}={SHOWN}}}"
WAYS = {
    "rl": ("RL on them", (f"rl.tasks.families={HIDDEN}",)),
    "soft": (
        "RL on them, temperature 1.2, credit for tests passed",
        (f"rl.tasks.families={HIDDEN}", PARTIAL, "rl.temperature=1.2"),
    ),
    "near": (
        "RL on them and as many tasks of the others, credit for tests passed",
        (f"rl.tasks={{use='mixture', seed={{seed}}, sources=[{BOTH}]}}", PARTIAL),
    ),
}


def learnt(about: str, keys: tuple[str, ...]) -> Arm:
    fixed = (f"rl.steps={STEPS}", "rl.seconds=0", "rl.eval_every=0", "rl.first_task=1500")
    return Arm(about, (reinforced(BASE, *fixed, *keys), benched(*ON_HIDDEN, "bench.samples=4")), (BASE,))


def arms() -> dict[str, Arm]:
    before = benched(*ON_HIDDEN, f"bench.samples={TRIES}", "bench.unseen_count=25", model="{nanoshown}/model")
    start = ("sft.model={nanoshown}/model", "sft.data={nanoshown}/demos.jsonl", "run.seed={seed}")
    more = ("sft", "nano", *start, f"sft.seconds={MOST_SECONDS}", "sft.epochs=200", "--run", "{run}")
    after = (more, benched(*ON_HIDDEN, "bench.samples=4"))
    return (
        {"before": Arm("fine-tuned on the other families", (before,), (BASE,), minutes=1.5)}
        | {name: learnt(*way) for name, way in WAYS.items()}
        | {"sft": Arm("more fine-tuning on the others", after, (BASE,), compared=False, seeds=1)}
    )


def measure(run: Path) -> dict[str, Any]:
    found = bench_values(run) | bench_values(run, "unseen", "unseen_")
    if not run.exists():  # a benchmark of the base alone
        return found
    data = read_run(run)
    if not data.rows("rl"):
        return found
    signal = mixed_groups(data, LEFT_OUT)
    return found | {"signal_curve": signal, "signal_first": signal[0][1], "signal_last": signal[-1][1]}


def conclude(results: Results) -> Verdict:
    before = results["before"]
    said = (
        f"Before: {mean_of(before, 'pass_rate'):.1%} pass, {mean_of(before, 'best'):.1%} of tasks in {TRIES} tries, "
        f"and {mean_of(before, 'unseen_best'):.1%} of those of families that the pretraining text lacks, too"
    )
    above = False
    for arm in (*WAYS, "sft"):
        gain = paired_by_task(before, results[arm])
        if not results[arm] or gain is None:
            continue
        rates = mean_interval([each.values["pass_rate"] for each in results[arm]])
        over = (
            f"{max(0.0, rates.low):.1%} to {min(1.0, rates.high):.1%} over seeds"
            if rates.low > -math.inf
            else "one seed"
        )
        said += f". {arm}: {rates.mean:.1%} ({over}), {points(gain)} in pairs of tasks"
        if arm in WAYS:
            first, last = (mean_of(results[arm], f"signal_{end}") for end in ("first", "last"))
            said += f"; groups with passes and failures {first:.0%} in the first ten steps, {last:.0%} in the last"
            above = above or (rates.mean > BAR and gain.low > 0)
    return Verdict("confirmed" if above else "not confirmed", f"{said} ({len(before)} seeds).")


def figures(results: Results) -> list[Figure]:
    shown = {arm: results[arm] for arm in WAYS if results[arm]}
    rates = [
        Line(arm, [(0.0, mean_of(results["before"], "pass_rate")), (float(STEPS), mean_of(some, "pass_rate"))], colour)
        for colour, (arm, some) in enumerate(shown.items(), 1)
        if results["before"]
    ]
    signal = Figure("Groups with passes and failures", mean_lines(shown, "signal_curve"), percent=True)
    return [Figure("Held-out pass rate of families without demonstrations", rates, percent=True), signal]


STUDY = Study(
    claim="Families that no demonstration shows are learnt by reinforcement learning.",
    shown=f"Held-out pass rate of six families that the demonstrations lack, after {STEPS} steps of RL in at least "
    f"one of three ways: above {BAR:.0%}, and above that before RL in pairs of tasks, the lower bound above 0.",
    arms={"cpu": arms()},
    measure=measure,
    conclude=conclude,
    figures=figures,
    columns={"held-out": "pass_rate", f"best of 4 (before: {TRIES})": "best", "signal, first": "signal_first"}
    | {"signal, last": "signal_last"},
    seeds=2,
    minutes=4.3,
)
