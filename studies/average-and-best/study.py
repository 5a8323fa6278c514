"""RL raises the mean and the best of 16: pass@1 and pass@16 on held-out katas over training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from etude.bench.report.charts import Line
from etude.bench.run_data import read_run
from etude.bench.stats import mean_interval
from etude.bench.studies.nano import NANO, reinforced
from etude.bench.studies.study import Arm, Base, Figure, Results, Study, Verdict

EVALUATED = ("rl.eval_tasks=32", "rl.eval_samples=16", "rl.eval_every=50")
RL = reinforced(NANO, *EVALUATED)
# On a GPU: the model of recipe h200 (27M parameters), fine-tuned once for all seeds.
LARGE = Base("h200", (("sft", "h200", "--run", "{run}"),), seeded=False, minutes=4)
LARGE_RL = reinforced(LARGE, "rl.eval_tasks=64", "rl.eval_samples=16", "rl.eval_every=20", recipe="h200")


def measure(run: Path) -> dict[str, Any]:
    data = read_run(run)
    curves = {name: data.series("rl.eval", name) for name in ("pass_at_1", "pass_at_16")}
    found: dict[str, Any] = {f"{name}_curve": [list(point) for point in curve] for name, curve in curves.items()}
    for name, curve in curves.items():
        found |= {f"{name}_before": curve[0][1], f"{name}_after": curve[-1][1]}
        found[f"{name}_gain"] = curve[-1][1] - curve[0][1]
    return found


def conclude(results: Results) -> Verdict:
    (some,) = results.values()
    gains = {k: mean_interval([each.values[f"pass_at_{k}_gain"] for each in some]) for k in (1, 16)}
    said = ", ".join(f"pass@{k} {g.mean:+.1%} ({g.low:+.1%} to {g.high:+.1%})" for k, g in gains.items())
    both = all(gain.low > 0 for gain in gains.values())
    return Verdict("confirmed" if both else "not confirmed", f"After RL: {said}, over {len(some)} seeds.")


def figures(results: Results) -> list[Figure]:
    (some,) = results.values()
    lines = []
    for colour, k in enumerate((1, 16), 1):
        curves = [dict(map(tuple, each.values[f"pass_at_{k}_curve"])) for each in some]
        steps = sorted(set.intersection(*map(set, curves))) if curves else []
        means = [(step, sum(curve[step] for curve in curves) / len(curves)) for step in steps]
        lines.append(Line(f"pass@{k}", means, colour, marked=True))
    # Steps as they are: three or four points would leave a logarithmic axis almost empty.
    return [Figure("Average and best of 16 over training", lines, percent=True)]


STUDY = Study(
    claim="Reinforcement learning raises the average score and the best of 16 tries.",
    shown="pass@1 and pass@16 on held-out tasks before and after RL from one fine-tuned model: both gains above 0.",
    arms={
        "cpu": {"rl": Arm("nano's reinforcement learning, 16 rollouts of each held-out task", (RL,), (NANO,))},
        "h200": {"rl": Arm("h200's reinforcement learning, 16 rollouts of each held-out task", (LARGE_RL,), (LARGE,))},
    },
    measure=measure,
    conclude=conclude,
    figures=figures,
    columns={
        "pass@1 before": "pass_at_1_before",
        "pass@1 after": "pass_at_1_after",
        "pass@16 before": "pass_at_16_before",
        "pass@16 after": "pass_at_16_after",
    },
    minutes=8,
)
