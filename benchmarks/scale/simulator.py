"""Is the simulator right? Rollouts a second and mean staleness of real runs against what it says of them.

    python benchmarks/scale/simulator.py MODEL [--folder runs/simulator] [--recipe nano] [--json]
    python benchmarks/scale/simulator.py --check RUN --fit OTHER_RUN [--json]

MODEL is a fine-tuned checkpoint, such as the newest `sft-*` of a finished `etude run nano`. Four short runs are made:
service times come from the first, and the other three, which differ in concurrency, staleness, groups and engines, are
only compared. `--check` compares finished runs and starts nothing: so it is used on a GPU machine, where `--fit` and
`--check` are two runs of one recipe with different settings of the loop.

On a CPU all processes of a run share the cores with whatever else the machine does. How many threads of others wanted
to compute is taken from each run's own window (its rows `cpu_others`, `cpu_learner` and `learner_busy`), and nothing
else is. Bar: both figures within 15% for all three.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from etude.core import recipe as recipes
from etude.core.run_files import read_metrics
from etude.pipeline.execute import execute
from etude.plan.simulator.measure import measure_run, others
from etude.plan.simulator.service_times import ServiceTimes
from etude.plan.simulator.simulate import Scenario, simulate

BAR = 0.15
WARM = 2  # steps left out
SEEDS = 5  # simulations of a run, whose mean is compared: each draws other groups
ALIKE = ["rl.seconds=0", "rl.eval_every=0", "rl.save_every=100000", "rl.keep_trajectories=4000"]
ARMS = {
    "fit": ["rl.steps=32"],
    "few places, staleness 1": ["rl.steps=40", "rl.concurrency=24", "rl.staleness=1", "rl.groups=4"],
    "small groups, staleness 4": [
        *("rl.steps=60", "rl.concurrency=64", "rl.staleness=4", "rl.groups=4", "rl.group=4"),
    ],
    "two engines, staleness 3": [
        *("rl.steps=40", "rl.concurrency=64", "rl.staleness=3", "rl.groups=6", "cluster.engines=2"),
    ],
}


def service_times(run: Path) -> ServiceTimes:
    return measure_run(run, recipes.load(str(run / "recipe.toml"), []))


def compare(run: Path, times: ServiceTimes) -> dict[str, Any]:
    """What the run did, what is simulated for it with `times` of another one, and how far apart they are."""
    recipe = recipes.load(str(run / "recipe.toml"), [])
    rows = [row for row in read_metrics(run) if row["stage"] == "rl"]
    if times.cores:
        times = replace(times, others=others(rows, times.cores))
    cluster = recipe.cluster
    forecasts = [
        simulate(
            times,
            Scenario(recipe.rl, cluster.engines, cluster.rollout_workers, seed=seed, steps=len(rows), warm=WARM),
        )
        for seed in range(SEEDS)
    ]
    rows = rows[WARM:]
    seconds, tokens = (sum(row[name] for row in rows) for name in ("seconds", "sampled_tokens"))
    real = {
        "rollouts_per_second": sum(row["rollouts"] for row in rows) / seconds,
        "staleness_mean": sum(row["staleness_mean"] * row["sampled_tokens"] for row in rows) / tokens,
    }
    simulated = {name: sum(getattr(each, name) for each in forecasts) / SEEDS for name in real}
    apart = {name: simulated[name] / real[name] - 1 for name in real}
    within = all(abs(each) <= BAR for each in apart.values())
    return {"real": real, "simulated": simulated, "apart": apart, "within": within, "others": times.others}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--folder", type=Path, default=Path("runs/simulator"))
    parser.add_argument("--recipe", default="nano")
    parser.add_argument("--check", type=Path, action="append", default=[], help="a finished run to compare")
    parser.add_argument("--fit", type=Path, help="the finished run whose service times are used")
    parser.add_argument(
        "--own-rollouts", action="store_true", help="also with each run's own rollouts: only service times are foreign"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.check:
        runs = {str(path): path for path in options.check}
        times = service_times(options.fit or options.check[0])
    else:
        if options.model is None:
            parser.error("give a MODEL to run with, or finished runs with --check and --fit")
        runs = {name: options.folder / name.replace(",", "").replace(" ", "-") for name in ARMS}
        for name, path in runs.items():
            words = [f"rl.model={options.model}", *ALIKE, *ARMS[name]]
            if not (path / "run.json").exists():
                execute("rl", recipes.load(options.recipe, words), path)
        times = service_times(runs["fit"])
    found = {name: compare(path, times) for name, path in runs.items()}
    if options.own_rollouts:
        for name, path in runs.items():
            own = replace(times, groups=service_times(path).groups)
            found[f"{name}, its own rollouts"] = compare(path, own)
    for name, facts in found.items():
        said = [
            f"{figure} {facts['real'][figure]:.3g}, simulated {facts['simulated'][figure]:.3g} ({apart:+.1%})"
            for figure, apart in facts["apart"].items()
        ]
        print(f"{name}: {'; '.join(said)}", file=sys.stderr)
    checked = [facts["within"] for name, facts in found.items() if name != "fit"]
    if options.json:
        print(json.dumps({"ok": all(checked), "bar": BAR, "runs": found}))
    return 0 if all(checked) else 1


if __name__ == "__main__":
    sys.exit(main())
