"""Lower cross-entropy after continued pretraining predicts a higher reward of RL: three amounts from one base."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import linear_regression
from typing import Any

from etude.bench.report.charts import Line
from etude.bench.run_data import read_run
from etude.bench.stats import Interval
from etude.bench.studies.measures import base_ends, bench_values, last_third, paired_by_seed, paired_by_task, points
from etude.bench.studies.nano import benched, reinforced
from etude.bench.studies.study import Arm, Base, Figure, Results, Study, Verdict

BEGUN = 150  # steps of 2,048 tokens that all amounts go on from
LITTLE = Base(
    "little", (("pretrain", "nano", f"pretrain.steps={BEGUN}", "--run", "{run}"),), "pretrain", (), False, 1.5
)
AMOUNTS = {"small": 100, "medium": 300, "large": 900}
STEPS = 60  # of RL
BAR = -0.5  # rank correlation


def tuned_after(name: str, steps: int) -> Base:
    """Continued pretraining, then the same fine-tuning."""
    more = ("pretrain.model={little}/model", f"pretrain.steps={steps}", f"pretrain.eval_every={steps}")
    same = ("pretrain.eval_tokens=32768", "demos.count=1000", "sft.epochs=4")
    words = ("sft", "nano", "run.seed={seed}", *more, *same, "--run", "{run}")
    return Base(f"amount-{name}", (words,), needs=(LITTLE,), minutes=4 + steps / 200)


def arm(name: str, steps: int) -> Arm:
    base = tuned_after(name, steps)
    rl = reinforced(base, f"rl.steps={STEPS}", "rl.seconds=0", "rl.eval_every=0", "rl.first_task=1000")
    about = f"{steps} more steps of 2,048 tokens"
    return Arm(about, (rl, benched("bench.count=100", "bench.samples=4")), (base,))


def measure(run: Path) -> dict[str, Any]:
    data, (_, name) = read_run(run), run.parent.name.rpartition("-")[0].split("-cpu-")
    first = data.rows("rl")[:5]
    found = {
        "loss": base_ends(run, f"amount-{name}")["pretrain"]["held_out_loss"],
        "reward": last_third(data, "reward"),
    }
    return bench_values(run) | found | {"reward_first": sum(row["reward"] for row in first) / len(first)}


def ranks(values: list[float]) -> list[float]:
    order = sorted(values)
    return [order.index(value) + (order.count(value) - 1) / 2 for value in values]


def correlation(xs: list[float], ys: list[float]) -> float:
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    both = sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True))
    size = math.sqrt(sum((a - x) ** 2 for a in xs) * sum((b - y) ** 2 for b in ys))
    return both / size if size else 0.0


def rank_interval(xs: list[float], ys: list[float]) -> Interval:
    """Of the rank correlation, by Fisher's transformation with the variance that ranks have (Fieller and others)."""
    found = correlation(ranks(xs), ranks(ys))
    middle, reach = math.atanh(max(-0.999, min(0.999, found))), 1.96 * math.sqrt(1.06 / max(1, len(xs) - 3))
    return Interval(found, math.tanh(middle - reach), math.tanh(middle + reach))


def conclude(results: Results) -> Verdict:
    runs = [(arm, each) for arm, some in results.items() for each in some]
    losses, rewards = ([float(each.values[name]) for _, each in runs] for name in ("loss", "reward"))
    rank, steps = rank_interval(losses, rewards), [math.log2(BEGUN + AMOUNTS[arm]) for arm, _ in runs]
    fit, slope = correlation(steps, losses), linear_regression(steps, losses).slope
    gain = paired_by_seed(results["small"], results["large"], "reward")
    held = paired_by_task(results["small"], results["large"])
    assert held is not None  # the same tasks in all arms
    said = (
        f"Over {len(runs)} runs the rank correlation of held-out loss and RL reward is {rank.mean:+.2f} "
        f"({rank.low:+.2f} to {rank.high:+.2f}); the loss falls by {-slope:.3f} nats a doubling of the steps "
        f"(R² {fit * fit:.2f}); {AMOUNTS['large']} steps against {AMOUNTS['small']}: reward {gain.mean:+.3f} "
        f"({gain.low:+.3f} to {gain.high:+.3f}), held-out pass rate {points(held)} in pairs of tasks."
    )
    return Verdict("confirmed" if rank.mean < BAR and gain.low > 0 else "not confirmed", said)


def figures(results: Results) -> list[Figure]:
    at = sorted((each.values["loss"], each.values["reward"]) for some in results.values() for each in some)
    falls = [
        (math.log2(BEGUN + AMOUNTS[arm]), sum(each.values["loss"] for each in some) / len(some))
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
    arms={"cpu": {name: arm(name, steps) for name, steps in AMOUNTS.items()}},
    measure=measure,
    conclude=conclude,
    figures=figures,
    columns={"held-out loss": "loss", "reward, first steps": "reward_first", "reward, last third": "reward"}
    | {"held-out pass rate": "pass_rate"},
    minutes=2.5,
)
