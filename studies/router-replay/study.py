"""Router replay lowers the mismatch of engine and learner: p50, p99 and KL without it, with it, and with the filter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from etude.bench.run_data import read_run
from etude.bench.studies.measures import curve, mean_lines, paired_by_seed, points, ratio_by_seed, times
from etude.bench.studies.nano import reinforced
from etude.bench.studies.study import Arm, Base, Figure, Results, Size, Study, Verdict

# Half of the recipe's pretraining: the mismatch is asked about, not the agent.
MOE = Base("moe", (("sft", "nano-moe", "pretrain.steps=425", "--run", "{run}"),), seeded=False, minutes=8)
ARMS = {
    "none": ("the learner routes for itself", ("rl.replay=false",)),
    "replay": ("the learner takes the engine's experts", ("rl.replay=true", "rl.plausible=0")),
    "filter": ("those that it finds plausible", ("rl.replay=true", "rl.plausible=0.5")),
}
# What is measured must not stop the run.
OPEN = ("rl.probe_mean=0.5", "rl.probe_max=50", "rl.probe_p99=10", "rl.probe_k3=10", "rl.eval_every=0")
SIZES: dict[Size, tuple[str, ...]] = {
    "cpu": ("rl.steps=60", "rl.seconds=120"),
    "h200": ("rl.steps=120", "rl.seconds=80", "run.device=cuda", "run.threads=2", "run.compute.compile=false"),
}
SKIPPED = 3  # first steps, whose tokens are of the weights of the start
# Of the step's tokens, sampled by weights up to two steps older: what training meets.
DRIFT = {"drift_p50": "p50", "drift_p99": "p99", "drift_mean": "mean", "k3": "k3"}
# Of the probe's, sampled and scored with the same weights: rounding alone.
PROBE = {"probe_p99": "same_p99", "probe_mean": "same_mean", "probe_k3": "same_k3"}


def measure(run: Path) -> dict[str, Any]:
    data = read_run(run)
    rows = data.rows("rl")[SKIPPED:] or data.rows("rl")
    found: dict[str, Any] = {}
    for metric, name in (DRIFT | PROBE).items():
        values = [float(row[metric]) for row in rows if metric in row]
        found[name] = sum(values) / max(1, len(values))
    for metric in ("replay_moved", "replay_refused"):
        values = [float(row[metric]) for row in rows if metric in row]
        found[metric] = sum(values) / len(values) if values else None
    third = rows[-max(1, len(rows) // 3) :]
    found["pass_rate"] = sum(row["pass_rate"] for row in third) / len(third)
    return found | {"steps": len(rows), "curve": curve(data, "drift_p99")}


def conclude(results: Results) -> Verdict:
    none, told, lower = results["none"], [], []
    for name in ("replay", "filter"):
        ratios = {value: ratio_by_seed(none, results[name], value) for value in ("p50", "p99", "k3", "same_p99")}
        # An interval of nothing but zeros would look like a sharp one.
        passes = any(each.values["pass_rate"] for each in (*none, *results[name]))
        kept = (
            f"pass rate {points(paired_by_seed(none, results[name], 'pass_rate'))}" if passes else "no rollout passes"
        )
        told.append(
            f"{name}: p50 {times(ratios['p50'])}, p99 {times(ratios['p99'])}, KL (k3) {times(ratios['k3'])} of that "
            f"without, with the same weights p99 {times(ratios['same_p99'])}; {kept}"
        )
        lower += [name] if ratios["p99"].high < 1 or ratios["k3"].high < 1 else []
    return Verdict("confirmed" if lower else "not confirmed", f"By seed: {'; '.join(told)} ({len(none)} seeds).")


def figures(results: Results) -> list[Figure]:
    lines = mean_lines(
        results, "curve", {"none": "without", "replay": "replay", "filter": "with the filter"}.__getitem__
    )
    return [Figure("99th percentile of |log p(learner) - log p(engine)| of trained tokens", lines)]


STUDY = Study(
    claim="Replaying the experts that the engine chose lowers the mismatch of engine and learner; a filter of "
    "implausible ones lowers its tail.",
    shown="p99 or KL (k3) of the trained tokens' log-probabilities below that without replay, the interval of the "
    "ratio over seeds below 1. The tokens are up to two versions old; `same` is of the probes, at equal weights.",
    arms={
        size: {
            name: Arm(about, (reinforced(MOE, *OPEN, *keys, *of, recipe="nano-moe"),), (MOE,))
            for name, (about, keys) in ARMS.items()
        }
        for size, of in SIZES.items()
    },
    measure=measure,
    conclude=conclude,
    figures=figures,
    columns={"p50": "p50", "p99": "p99", "KL (k3)": "k3", "p99, same weights": "same_p99", "moved": "replay_moved"}
    | {"refused": "replay_refused", "pass rate": "pass_rate", "steps": "steps"},
    minutes=2.8,
)
