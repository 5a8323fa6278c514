"""A named bad behaviour falls faster with targeted feedback than with RL alone: error rates over steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from etude.bench.run_data import read_run
from etude.bench.studies.measures import (
    bench_values,
    curve,
    last_third,
    mean_lines,
    mean_of,
    paired_by_seed,
    paired_by_task,
    points,
    ratio_by_seed,
    times,
)
from etude.bench.studies.nano import benched, reinforced, tuned
from etude.bench.studies.study import Arm, Figure, Results, Study, Verdict

FEEDBACK = tuned("feedback", recipe="nano-feedback", minutes=8)  # slips on purpose, and has seen hints
STEPS = 50
KINDS = ("no_such_file", "text_not_found")
LAST = f"{{run}}/checkpoints/rl-{STEPS:07d}"  # not the best: an arm that fell apart would show its start
OFF = "rl.feedback.behaviours=[]"
BENCH = ("bench.count=300", "bench.samples=4")  # in pairs of tasks: three seeds of one evaluation say +-8 points
# Without a policy gradient; what their teachers read is theirs to say, and the average follows at 0.95 a step.
OTHERS = {
    "sdpo": ("a model that has read its errors teaches", ("rl.algorithm={use='sdpo'}", "rl.optim.ema=0.95")),
    "sdft": ("a model that has read a demonstration teaches", ("rl.algorithm={use='sdft'}", "rl.optim.ema=0.95")),
    "opsd": ("a model that has read the reference teaches", ("rl.algorithm={use='opsd'}",)),
}


def arm(about: str, *keys: str, **how: Any) -> Arm:
    rl = reinforced(
        FEEDBACK,
        *(f"rl.steps={STEPS}", "rl.seconds=0", f"rl.eval_every={STEPS}", "rl.eval_tasks=100"),
        *keys,
        recipe="nano-feedback",
    )
    return Arm(about, (rl, benched(*BENCH, model=LAST, recipe="nano-feedback")), (FEEDBACK,), **how)


def measure(run: Path) -> dict[str, Any]:
    data = read_run(run)
    found: dict[str, Any] = {"trained": last_third(data, "pass_rate"), "pass_curve": curve(data, "pass_rate")}
    for kind in KINDS:
        name = f"behaviour_tool_errors.{kind}"
        found |= {kind: last_third(data, name), f"{kind}_curve": curve(data, name)}
    ends = data.series("rl.eval", "pass_rate")
    return found | {"before": ends[0][1], "pass_rate": ends[-1][1]} | bench_values(run, prefix="bench_")


def conclude(results: Results) -> Verdict:
    alone, told = results["rl"], results["feedback"]
    falls = {kind: ratio_by_seed(alone, told, kind) for kind in KINDS}
    kept = paired_by_seed(alone, told, "trained")
    said = "; ".join(f"{kind} at {times(ratio)} of its rate" for kind, ratio in falls.items())
    said = f"Last third of {STEPS} steps, feedback against RL alone: {said}; pass rate {points(kept)}"
    held_out = paired_by_task(alone, told, "bench_tasks")
    if held_out is not None:  # results from before 2026-11-19 have no benchmark
        said += f", on held-out tasks in pairs {points(held_out)}"
    for name in OTHERS:
        if some := results[name]:
            rates = ", ".join(f"{kind} {mean_of(some, kind):.2f}" for kind in KINDS)
            said += f"; {name}: {rates}, pass rate {mean_of(some, 'trained'):.1%}"
    # At least one behaviour that feedback is about falls further, and the pass rate is not lower.
    sure = any(ratio.high < 1 for ratio in falls.values()) and all(rate.high > 0 for rate in (kept, held_out) if rate)
    return Verdict("confirmed" if sure else "not confirmed", f"{said} ({len(alone)} seeds).")


def figures(results: Results) -> list[Figure]:
    found = [Figure(f"`{kind}` a rollout over steps", mean_lines(results, f"{kind}_curve")) for kind in KINDS]
    return [*found, Figure("Pass rate over steps", mean_lines(results, "pass_curve"), percent=True)]


STUDY = Study(
    claim="With targeted textual feedback a named bad behaviour falls faster than with RL alone, the pass rate kept.",
    shown="Sites a rollout in the last third, as a multiple of those of RL alone: the interval of at least one "
    "behaviour below 1, and those of the pass rate's difference, in training and on held-out tasks, not below 0.",
    arms={
        "cpu": {"rl": arm("RL alone", OFF), "feedback": arm("RL with feedback, frozen teacher")}
        | {name: arm(about, *keys, compared=False, seeds=1) for name, (about, keys) in OTHERS.items()}
    },
    measure=measure,
    conclude=conclude,
    figures=figures,
    columns={"no_such_file": "no_such_file", "text_not_found": "text_not_found", "pass rate, last third": "trained"}
    | {"held out, before": "before", "held out, after": "pass_rate"},
    minutes=5,
)
