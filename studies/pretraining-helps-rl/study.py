"""Lower cross-entropy after continued pretraining predicts a higher reward of RL: three amounts from one base."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from etude.bench.report.charts import Line
from etude.bench.run_data import read_run
from etude.bench.studies.measures import bench_values, last_third, paired_by_seed, points
from etude.bench.studies.study import Arm, Base, Figure, Results, Study, Verdict

LITTLE = Base("little", (("pretrain", "nano", "pretrain.steps=150", "--run", "{run}"),), "pretrain", (), False, 1.5)
AMOUNTS = {"small": 100, "medium": 300, "large": 900}
MINUTES = {"small": 4.5, "medium": 5.0, "large": 7.0}
STEPS = 40  # of RL


def arm(name: str) -> Arm:
    """Continued pretraining, the same fine-tuning and the same RL, all stages of one run."""
    more = ("pretrain.model={little}/model", f"pretrain.steps={AMOUNTS[name]}", f"pretrain.eval_every={AMOUNTS[name]}")
    same = ("demos.count=1000", f"rl.steps={STEPS}", "rl.seconds=0", "rl.eval_every=0", "rl.first_task=1000")
    rl = ("rl", "nano", "run.seed={seed}", *more, "pretrain.eval_tokens=32768", *same, "--run", "{run}")
    bench = ("bench", "{run}", "bench.count=100", "bench.samples=2", "--recipe", "nano", "--save", "{arm}/bench.json")
    about = f"{AMOUNTS[name]} more steps of 2,048 tokens"
    return Arm(about, (rl, bench), (LITTLE,), minutes=MINUTES[name])


def measure(run: Path) -> dict[str, Any]:
    data = read_run(run)
    losses = data.series("pretrain", "held_out_loss")
    found = {"loss": losses[-1][1], "loss_before": losses[0][1], "reward": last_third(data, "reward")}
    first = data.rows("rl")[:5]
    return bench_values(run) | found | {"reward_first": sum(row["reward"] for row in first) / len(first)}


def ranks(values: list[float]) -> list[float]:
    order = sorted(values)
    return [order.index(value) + (order.count(value) - 1) / 2 for value in values]


def correlation(xs: list[float], ys: list[float]) -> float:
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    both = sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True))
    size = math.sqrt(sum((a - x) ** 2 for a in xs) * sum((b - y) ** 2 for b in ys))
    return both / size if size else 0.0


def conclude(results: Results) -> Verdict:
    runs = [(arm, each) for arm, some in results.items() for each in some]
    losses, rewards = ([float(each.values[name]) for _, each in runs] for name in ("loss", "reward"))
    rank = correlation(ranks(losses), ranks(rewards))
    fit = correlation([math.log(AMOUNTS[arm]) for arm, _ in runs], losses)
    gain = paired_by_seed(results["small"], results["large"], "reward")
    held = paired_by_seed(results["small"], results["large"], "pass_rate")
    said = (
        f"Over {len(runs)} runs the rank correlation of held-out loss and RL reward is {rank:+.2f}; the loss falls "
        f"with the logarithm of the steps (R² {fit * fit:.2f}); 900 steps against 100: reward {gain.mean:+.3f} "
        f"({gain.low:+.3f} to {gain.high:+.3f}), held-out pass rate {points(held)}."
    )
    return Verdict("confirmed" if rank < -0.5 and gain.low > 0 else "not confirmed", said)


def figures(results: Results) -> list[Figure]:
    at = sorted((each.values["loss"], each.values["reward"]) for some in results.values() for each in some)
    falls = [
        (math.log2(AMOUNTS[arm]), sum(each.values["loss"] for each in some) / len(some))
        for arm, some in results.items()
        if some
    ]
    return [
        Figure("RL reward by held-out loss after pretraining", [Line("one run", at, 1, marked=True)], "nats a token"),
        Figure("Held-out loss by pretraining", [Line("mean", falls, 2, marked=True)], "log2 of steps"),
    ]


STUDY = Study(
    claim="Lower cross-entropy after continued pretraining predicts a higher reward of reinforcement learning.",
    shown="From one base, 100, 300 and 900 more steps, then the same SFT and RL: a rank correlation of loss and reward "
    "below -0.5, and the largest amount's reward above the smallest's, the interval over seeds above 0.",
    arms={"cpu": {name: arm(name) for name in AMOUNTS}},
    measure=measure,
    conclude=conclude,
    figures=figures,
    columns={"held-out loss": "loss", "reward, first steps": "reward_first", "reward, last third": "reward"}
    | {"held-out pass rate": "pass_rate"},
    minutes=6,
)
