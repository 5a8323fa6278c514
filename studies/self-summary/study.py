"""Summaries make longer tasks solvable: pass rate at a small context without, with prompted and with trained ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from etude.bench.report.charts import Line
from etude.bench.studies.measures import bench_values, mean_of, paired_by_task, points
from etude.bench.studies.nano import reinforced, tuned
from etude.bench.studies.study import Arm, Figure, Results, Study, Verdict

PIECES = 3  # files of a task, in families that are learnt well: a whole task passes now and then
OF = tuple(f"{where}.tasks.pieces={PIECES}" for where in ("demos", "rl", "bench"))
FEWEST = 0.03  # pass rate below which nothing can be lost
LONG = 1200  # tokens that hold any rollout
# Demonstrations in one context take 389 to 538 tokens, 79 of them up to the first turn: here about two files fit, and a
# summary is asked for behind the first.
SMALL = ("harness.limits.context_tokens=380", "harness.summary.at=250", "harness.summary.max_tokens=64")
SMALL += (f"harness.limits.rollout_tokens={LONG}", "harness.limits.turns=16", "harness.limits.sampled_tokens=800")
SUMMARY = tuned("summary", *OF, *SMALL, "demos.count=1000", recipe="nano-summary", minutes=4)
# Our own long request would be longer than the context.
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
        ("harness.summary.use=prompted", f"harness.summary.request={REQUEST}"),
    ),
    "demonstrated": ("a small one, as fine-tuning showed", ()),
}


def bench(model: str, *keys: str) -> tuple[str, ...]:
    # New tasks with names and numbers of the training side: of held-out ones the model passes 3% in a long context.
    tasks = ("bench.tasks.split=train", "bench.tasks.seed=77", "bench.tasks.invented=0.7")
    size = (*tasks, "bench.count=80", "bench.samples=3", f"engine.max_length={LONG + 64}")
    return ("bench", model, *OF, *SMALL, *keys, *size, "--recipe", "nano-summary", "--save", "{arm}/bench.json")


def measure(run: Path) -> dict[str, Any]:
    return bench_values(run)


def conclude(results: Results) -> Verdict:
    long, none, trained = results["long"], results["none"], results["trained"]
    ceiling = max(mean_of(long, "pass_rate"), mean_of(trained, "pass_rate"))
    said = ", ".join(f"{name} {mean_of(some, 'pass_rate'):.1%}" for name, some in results.items() if some)
    if ceiling < FEWEST:
        return Verdict(
            "not measurable",
            f"A model of this size passes at most {ceiling:.1%} of the tasks, even in a context that holds them whole, "
            f"so there is next to nothing that summaries could save ({said}).",
        )
    solvable, prompted = paired_by_task(none, trained), paired_by_task(results["prompted"], trained)
    tokens = mean_of(trained, "tokens") / mean_of(results["prompted"], "tokens")
    assert solvable is not None and prompted is not None  # the same tasks in all arms
    said = (
        f"{said}. Trained against none {points(solvable)}, against prompted {points(prompted)} with {tokens:.2f} of "
        f"the tokens ({len(long)} seeds)."
    )
    return Verdict("confirmed" if solvable.low > 0 and prompted.low > 0 else "not confirmed", said)


def figures(results: Results) -> list[Figure]:
    shown = [(name, some) for name, some in results.items() if some]
    lines = [
        Line(name, [(0.0, mean_of(some, "pass_rate")), (1.0, mean_of(some, "pass_rate"))], colour)
        for colour, (name, some) in enumerate(shown, 1)
    ]
    return [Figure(f"Pass rate of tasks of {PIECES} files in a small context", lines, "the same tasks", True)]


RL = reinforced(SUMMARY, *OF, *SMALL, "rl.seconds=120", "rl.steps=400", "rl.eval_every=0", recipe="nano-summary")

STUDY = Study(
    claim="Longer tasks become solvable by summaries, and trained ones lose less than prompted ones with fewer tokens.",
    shown="Pass rate at a small context: trained above none and above prompted, in pairs of tasks, both intervals "
    "above 0.",
    arms={
        "cpu": {
            name: Arm(about, (bench("{summary}/model", *keys),), (SUMMARY,), minutes=1.5)
            for name, (about, keys) in HOW.items()
        }
        | {"trained": Arm("a small one, after RL with summaries", (RL, bench("{run}")), (SUMMARY,), minutes=3.8)}
    },
    measure=measure,
    conclude=conclude,
    figures=figures,
    columns={"pass rate": "pass_rate", "best of 3": "best", "tokens": "tokens"},
    minutes=2,
)
