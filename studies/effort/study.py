"""A non-linear penalty on effort shortens easy tasks and spares hard ones: tokens by difficulty, three penalties."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from etude.bench.report.charts import Line
from etude.bench.result import TaskRow, load_result, mean_tokens
from etude.bench.stats import Interval
from etude.bench.studies.measures import BENCH, mean_of, paired_by_task, points, ratio_by_seed, ratio_by_task, times
from etude.bench.studies.nano import LEARNT, reinforced, tuned
from etude.bench.studies.study import Arm, Figure, Results, Study, Verdict

PIECES = 3  # functions of a hard task; an easy one has one


def both(split: str, seed: str, invented: float) -> str:
    """Easy and hard tasks in turn, of the same families."""
    of = f"split='{split}', levels=[1], prompt_styles=['terse'], seed={seed}, invented={invented}, families={LEARNT}"
    easy, hard = f"{{use='katas', {of}}}", f"{{use='kata_chains', pieces={PIECES}, {of}}}"
    return f"{{use='mixture', seed={seed}, sources=[{easy}, {hard}]}}"


# A hard task takes three times the turns and tokens. Demonstrations think, and read again what they wrote, half of the
# time: work that can be left out.
ROOM = ("harness.limits.turns=14", "harness.limits.sampled_tokens=460", "harness.limits.context_tokens=1024")
# The longest demonstration of three seeds has 1,128 tokens.
ROOM += ("sft.sequence=1280", "sft.micro_tokens=1280", "sft.batch_tokens=2560", "engine.max_length=1088")
HABITS = "demos.habits={think=0.5, look=0.0, together=0.0, slip=0.0, whole=0.0, check=0.0, report=0.0, verify=0.5}"
DEMOS = (f"demos.tasks={both('train', '0', 0.7)}", "demos.count=1200", HABITS, "demos.habits.one_by_one=1.0")
# A hard task passes where three functions do. After two epochs 34% of easy and 0 of 30 hard rollouts passed (seed 0,
# held-out words; 72% of reads named a path that is not there), and a penalty had nothing to spare.
EFFORT = tuned("effort", *DEMOS, *ROOM, "sft.epochs=10", minutes=14)
STEPS = 60
# Penalties of the same size on an easy task (about 0.25 of effort, as the reward weighs it): there linear and
# non-linear cost alike, 0.3 of the 1 that a pass is worth. On a hard one of 0.75 the first costs 0.9, more than its
# pass rate is worth, and the second 0.5.
PARTS = {
    "none": "",
    "linear": ", {use='effort', weight=1.2, k=1.0, q=0.0}",
    "non-linear": ", {use='effort', weight=2.4, k=10.0, q=1.0}",
}


def arm(penalty: str) -> Arm:
    parts = f"reward.parts=[{{use='tests'}}, {{use='ending', weight=0.2}}{PARTS[penalty]}]"
    tasks = (f"rl.tasks={both('train', '{seed}', 0.7)}", "rl.first_task=1200")
    steps = (f"rl.steps={STEPS}", "rl.seconds=0", "rl.eval_every=0")
    rl = reinforced(EFFORT, *tasks, *ROOM, parts, *steps)
    # New tasks with words of the training side: a model of this size miscopies paths of others, three in a row.
    new = (f"bench.tasks={both('train', '77', 0.7)}", "bench.count=160", "bench.samples=2")
    bench = ("bench", "{run}", *new, *ROOM, "--recipe", "nano", "--save", "{arm}/bench.json")
    return Arm(f"{penalty} penalty", (rl, bench), (EFFORT,))


def measure(run: Path) -> dict[str, Any]:
    rows = load_result(run.parent / BENCH).rows()
    found: dict[str, Any] = {}
    for name, some in (
        ("easy", [row for row in rows if not _hard(row)]),
        ("hard", [row for row in rows if _hard(row)]),
    ):
        tried = sum(row.tally.rollouts for row in some)
        found |= {f"{name}_tokens": mean_tokens(some), f"{name}_passes": sum(row.tally.passed for row in some) / tried}
        found[name] = {row.name: f"{row.tally.passed}/{row.tally.rollouts}" for row in some}
        found[f"{name}_task_tokens"] = {row.name: round(mean_tokens([row]), 1) for row in some}
    return found


def _hard(row: TaskRow) -> bool:
    return " + " in row.family


def conclude(results: Results) -> Verdict:
    none, linear, bent = results["none"], results["linear"], results["non-linear"]
    told, ratios, kept = [], {}, {}
    for level in ("easy", "hard"):
        for name, some in (("linear", linear), ("non-linear", bent)):
            ratios[level, name] = _there(ratio_by_task(none, some, f"{level}_task_tokens"))
            kept[level, name] = _there(paired_by_task(none, some, level))
            told.append(
                f"{level} tasks, {name}: {times(ratios[level, name])} of the tokens without a penalty, pass rate "
                f"{points(kept[level, name])}"
            )
    spared = _there(ratio_by_task(linear, bent, "hard_task_tokens"))
    passes = _there(paired_by_task(linear, bent, "hard"))
    told.append(f"hard tasks, non-linear against linear: {times(spared)} of the tokens, pass rate {points(passes)}")
    bent_ratio = ratios["easy", "non-linear"].mean / ratios["hard", "non-linear"].mean
    told.append(f"non-linear shortens easy tasks {1 / bent_ratio:.2f} times as much as hard ones")
    told.append(f"over seeds easy tasks, non-linear: {times(ratio_by_seed(none, bent, 'easy_tokens'))} of the tokens")
    # Shorter where it is easy, and not by giving up there; on hard tasks it takes away less than the linear one does.
    pairs = zip(none, bent, strict=True)
    shorter = all(new.values["easy_tokens"] < old.values["easy_tokens"] for old, new in pairs)
    shorter = shorter and ratios["easy", "non-linear"].high < 1 and kept["easy", "non-linear"].high >= 0
    sure = shorter and bent_ratio < 1 and (spared.low > 1 or passes.low > 0)
    head = f"{mean_of(none, 'easy_tokens'):.0f} and {mean_of(none, 'hard_tokens'):.0f} tokens without a penalty. "
    return Verdict("confirmed" if sure else "not confirmed", f"{head}{'; '.join(told)} ({len(none)} seeds).")


def _there(found: Interval | None) -> Interval:
    assert found is not None  # the same tasks in all arms
    return found


def figures(results: Results) -> list[Figure]:
    at = [("tokens", "Tokens of a rollout", False), ("passes", "Pass rate", True)]
    found = []
    for name, title, share in at:
        lines = [
            Line(
                arm, [(x, mean_of(some, f"{level}_{name}")) for x, level in ((1.0, "easy"), (float(PIECES), "hard"))], c
            )
            for c, (arm, some) in enumerate(results.items(), 1)
            if some
        ]
        found.append(Figure(f"{title} by difficulty", lines, "functions to write", share))
    return found


STUDY = Study(
    claim="A penalty that grows ever more slowly with effort shortens easy tasks and spares hard ones.",
    shown="Tokens by difficulty in pairs of tasks, against no penalty: fewer on easy tasks (the interval of the ratio "
    "below 1, and every seed) and no fewer passes (the interval of the difference reaches 0), a smaller cut on hard "
    "ones, and there more tokens or passes than under a linear penalty of the same size on easy tasks.",
    arms={"cpu": {penalty: arm(penalty) for penalty in PARTS}},
    measure=measure,
    conclude=conclude,
    figures=figures,
    columns={"easy: tokens": "easy_tokens", "easy: pass rate": "easy_passes", "hard: tokens": "hard_tokens"}
    | {"hard: pass rate": "hard_passes"},
    minutes=5.5,
)
