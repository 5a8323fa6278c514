"""What targeted feedback does to the errors it is about: reinforcement learning alone against the same with feedback.

    python benchmarks/learning/feedback_effect.py arm --arm rl --seed 0 --model MODEL --out rl-0.json
    python benchmarks/learning/feedback_effect.py arm --arm feedback --seed 0 --model MODEL --out feedback-0.json
    python benchmarks/learning/feedback_effect.py compare rl-*.json feedback-*.json

MODEL is a run or checkpoint of `etude sft nano-feedback`, where both arms begin: same demonstrations, same tasks, same
steps. The rate is sites of `text_not_found` for each rollout, as the monitor counts them in both arms, over the last
third of the steps; so is the pass rate. Intervals are from resampling seeds, and steps within them. 100 steps take
about 5 minutes on 2 cores.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from etude.core import recipe as recipes
from etude.core.run_files import read_metrics
from etude.pipeline.execute import execute
from etude.pipeline.find_model import find_model

KINDS = ("text_not_found", "no_such_file", "malformed")
BAR = 0.5  # of the rate of reinforcement learning alone
DRAWS = 2000


def run_arm(options: argparse.Namespace) -> dict[str, Any]:
    changes = [f"rl.model={find_model(Path(options.model))}", f"run.seed={options.seed}", f"rl.steps={options.steps}"]
    changes += ["rl.seconds=0.0", f"rl.eval_every={options.steps}", f"rl.save_every={options.steps}"]
    # Other tasks for other seeds: the same first tasks each time would be one sample, not three.
    changes += [f"rl.first_task={1500 + 10_000 * options.seed}"]
    changes += ["rl.feedback.behaviours=[]"] if options.arm == "rl" else []
    recipe = recipes.load("nano-feedback", [*changes, *options.change])
    with tempfile.TemporaryDirectory() as folder:
        execute("rl", recipe, Path(folder) / "run")
        metrics = read_metrics(Path(folder) / "run")
    rows = [row for row in metrics if row["stage"] == "rl"]
    kept = ["pass_rate", "reward", "rollouts", "seconds", "entropy", "twin_kl", "twin_change", "twins"]
    kept += ["twins_filtered", *(f"feedback_{name}" for name in ("sites", "dropped", "capped", "hinted"))]
    steps = [
        {kind: row.get(f"behaviour_tool_errors.{kind}", 0.0) for kind in KINDS}
        | {name: row[name] for name in kept if name in row}
        for row in rows
    ]
    evaluations = [
        {k: row.get(k) for k in ("step", "pass_rate", "tool_errors")} for row in metrics if row["stage"] == "rl.eval"
    ]
    return {"arm": options.arm, "seed": options.seed, "change": options.change, "steps": steps, "eval": evaluations}


def late(run: dict[str, Any]) -> list[dict[str, float]]:
    """The last third of the steps."""
    steps: list[dict[str, float]] = run["steps"]
    return steps[-max(1, len(steps) // 3) :]


def mean(runs: list[list[dict[str, float]]], name: str) -> float:
    return statistics.mean(statistics.mean(step[name] for step in steps) for steps in runs)


def compare(files: list[Path]) -> dict[str, Any]:
    runs = [json.loads(file.read_text()) for file in files]
    arms = {arm: [late(run) for run in runs if run["arm"] == arm] for arm in ("rl", "feedback")}
    if not all(arms.values()):
        raise SystemExit("give at least one file of each arm")
    rng = random.Random(0)
    ratios, gains = [], []
    for _ in range(DRAWS):
        drawn = {
            arm: [rng.choices(steps, k=len(steps)) for steps in rng.choices(seeds, k=len(seeds))]
            for arm, seeds in arms.items()
        }
        ratios.append(mean(drawn["feedback"], KINDS[0]) / max(1e-9, mean(drawn["rl"], KINDS[0])))
        gains.append(mean(drawn["feedback"], "pass_rate") - mean(drawn["rl"], "pass_rate"))
    found: dict[str, Any] = {"seeds": {arm: len(seeds) for arm, seeds in arms.items()}}
    for arm, seeds in arms.items():
        found[arm] = {name: mean(seeds, name) for name in (*KINDS, "pass_rate")}
    found["ratio"] = found["feedback"][KINDS[0]] / max(1e-9, found["rl"][KINDS[0]])
    found["gain"] = found["feedback"]["pass_rate"] - found["rl"]["pass_rate"]
    for name, values in (("ratio", ratios), ("gain", gains)):
        values.sort()
        found[f"{name}_interval"] = [values[int(0.025 * DRAWS)], values[int(0.975 * DRAWS)]]
    # Not lower: the interval of the difference does not lie below zero.
    found["passed"] = found["ratio"] <= BAR and found["gain_interval"][1] >= 0
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    one = verbs.add_parser("arm")
    one.add_argument("--arm", choices=("rl", "feedback"), required=True)
    one.add_argument("--seed", type=int, default=0)
    one.add_argument("--model", required=True)
    one.add_argument("--steps", type=int, default=100)
    one.add_argument("--out", type=Path, required=True)
    one.add_argument("change", nargs="*", help="of the recipe, such as rl.feedback.weight=2.0")
    both = verbs.add_parser("compare")
    both.add_argument("files", type=Path, nargs="+")
    both.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.verb == "arm":
        found = run_arm(options)
        options.out.write_text(json.dumps(found) + "\n")
        shown = {name: round(mean([late(found)], name), 4) for name in (*KINDS, "pass_rate")}
        print(json.dumps({"arm": options.arm, "seed": options.seed, **shown}))
        return 0
    found = compare(options.files)
    for arm in ("rl", "feedback"):
        print(arm, " ".join(f"{name} {value:.4f}" for name, value in found[arm].items()))
    low, high = found["ratio_interval"]
    print(f"rate of {KINDS[0]}: {found['ratio']:.2f} of that alone ({low:.2f} to {high:.2f}; bar {BAR})")
    low, high = found["gain_interval"]
    print(f"pass rate: {found['gain']:+.3f} ({low:+.3f} to {high:+.3f})")
    if options.json:
        print(json.dumps(found))
    return 0 if found["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
