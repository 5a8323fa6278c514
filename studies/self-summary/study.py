"""Summaries make longer tasks solvable: pass rate at a small context without, with prompted and with trained ones.

All arms but `trained` measure one checkpoint on the same tasks. What a small context costs is therefore read from
`demonstrated`: `trained` has learnt more, so it may come near to the long context without losing less.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from etude.bench.report.charts import Line
from etude.bench.studies.measures import bench_values, mean_of, paired_by_task, points, ratio_by_seed, times
from etude.bench.studies.nano import NANO, reinforced
from etude.bench.studies.study import Arm, Base, Figure, Results, Study, Verdict

FEWEST = 0.2  # pass rate in a long context below which nothing that counts can be lost
NEAR, NONE = 0.15, 0.02  # bars: demonstrated so near to long, and at most so much without a summary
LONG = 1500  # tokens that hold any rollout; the recipe's context is less than half of what a task takes
# The fine-tuned agent of `nano` knows the tools; what is new here is to follow a trail and to sum up.
SUMMARY = Base(
    "summary",
    (("sft", "nano-summary", "sft.model={nano}/model", "sft.epochs=4", "run.seed={seed}", "--run", "{run}"),),
    needs=(NANO,),
    minutes=8,
)
# Our own long request would be longer than the context. Of this one the model reads about 66 tokens more than of the
# short one, and its summary may be three times as long. Neither is taken from the work: turns and results end where
# they do in the other arms, at about 247 tokens.
PROMPTED = ("harness.limits.context_tokens=402", "harness.summary.max_tokens=72")
PROMPTED += ("harness.limits.rollout_tokens=2000", "harness.limits.sampled_tokens=550")
REQUEST = (
    "The conversation will be cut off here. Write down what was asked, which files are done, which files are left and "
    "what comes next, so that the work can go on from your words alone. Call no tool."
)
HOW = {
    "long": (
        "a context that holds it all",
        (f"harness.limits.context_tokens={LONG}", "harness.limits.rollout_tokens=0"),
    ),
    "none": ("a small context, no summary", ("harness.summary.use=off",)),
    "prompted": (
        "a small one, asked in a long request",
        ("harness.summary.use=prompted", f"harness.summary.request={REQUEST}", *PROMPTED),
    ),
    "demonstrated": ("a small one, as fine-tuning showed", ()),
}
SUMMED = ("prompted", "demonstrated", "trained")  # arms that sum up


def bench(model: str, *keys: str) -> tuple[str, ...]:
    # 200 tasks x 2 of the recipe: new ones, with words of the training side.
    size = f"engine.max_length={LONG + 64}"
    return ("bench", model, *keys, size, "--recipe", "nano-summary", "--save", "{arm}/bench.json")


def measure(run: Path) -> dict[str, Any]:
    return bench_values(run)


def conclude(results: Results) -> Verdict:
    long, none, trained = results["long"], results["none"], results["trained"]
    rates = {name: mean_of(some, "pass_rate") for name, some in results.items() if some}
    said = ", ".join(f"{name} {rate:.1%}" for name, rate in rates.items())
    if max(rates["long"], rates["trained"]) < FEWEST:
        return Verdict(
            "not measurable",
            f"A model of this size passes at most {rates['long']:.1%} of the tasks in a context that holds them whole, "
            f"so there is next to nothing that summaries could save ({said}).",
        )
    near, solvable = paired_by_task(long, results["demonstrated"]), paired_by_task(none, trained)
    prompted = paired_by_task(results["prompted"], trained)
    gained = paired_by_task(results["demonstrated"], trained)
    if any("summary_tokens" not in each.values for name in SUMMED for each in results[name]):
        return Verdict("not confirmed", f"In an arm with summaries none was written ({said}).")
    written = ", ".join(f"{name} {mean_of(results[name], 'summary_tokens'):.0f}" for name in SUMMED)
    shorter = ratio_by_seed(results["prompted"], trained, "summary_tokens")
    assert near and solvable and prompted and gained  # the same tasks in all arms
    said = (
        f"{said}. Demonstrated against a long context, the same checkpoint, {points(near)} (bar -15). Trained against "
        f"none {points(solvable)}, against prompted {points(prompted)}, against demonstrated {points(gained)} "
        f"({len(long)} seeds). Tokens of a summary: {written}; trained against prompted {times(shorter)}. A model of "
        "this size was never shown the long request, so its arm says little about prompting."
    )
    shown = near.mean >= -NEAR and rates["none"] <= NONE and solvable.low > 0 and prompted.low > 0 and shorter.mean < 1
    return Verdict("confirmed" if shown else "not confirmed", said)


def figures(results: Results) -> list[Figure]:
    shown = [(name, some) for name, some in results.items() if some]
    lines = [
        Line(name, [(0.0, mean_of(some, "pass_rate")), (1.0, mean_of(some, "pass_rate"))], colour)
        for colour, (name, some) in enumerate(shown, 1)
    ]
    return [Figure("Pass rate of tasks twice as long as the context", lines, "the same tasks", True)]


# Steps and not seconds, so that a busy machine trains as much as a quiet one.
RL = reinforced(SUMMARY, "rl.steps=50", "rl.seconds=0", "rl.eval_every=0", recipe="nano-summary")

STUDY = Study(
    claim="Longer tasks become solvable by summaries, and trained ones lose less than prompted ones with fewer tokens.",
    shown="Pass rate of tasks twice as long as the context, in pairs of tasks: the same checkpoint with "
    "summaries within 15 points of a long context, at most 2% without, and trained by RL above none and above "
    "prompted, both intervals above 0, with shorter summaries than prompted.",
    arms={
        "cpu": {
            name: Arm(about, (bench("{summary}/model", *keys),), (SUMMARY,), minutes=1.4)
            for name, (about, keys) in HOW.items()
        }
        | {"trained": Arm("a small one, after RL with summaries", (RL, bench("{run}")), (SUMMARY,), minutes=5.5)}
    },
    measure=measure,
    conclude=conclude,
    figures=figures,
    columns={"pass rate": "pass_rate", "best of 2": "best", "tokens": "tokens"}
    | {"summaries": "summaries", "tokens of one": "summary_tokens"},
    minutes=2,
)
