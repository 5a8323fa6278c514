"""Is the simulator right? Rollouts a second and mean staleness of real runs against what it says of them.

    python benchmarks/scale/simulator.py MODEL [--folder runs/simulator] [--recipe nano] [--json]
    python benchmarks/scale/simulator.py --make-model [--set run.threads=4] [--json]
    python benchmarks/scale/simulator.py --check RUN --fit OTHER_RUN [--json]

MODEL is a fine-tuned checkpoint, such as the newest `sft-*` of a finished `etude run nano`; `--make-model` makes one
first. Four short runs are made:
service times come from the first, and the other three, which differ in concurrency, staleness, groups and engines, are
only compared. `--check` compares finished runs and starts nothing: so it is used on a GPU machine, where `--fit` and
`--check` are two runs of one recipe with different settings of the loop.

On a CPU all processes of a run share the cores with whatever else the machine does. How many threads of others wanted
to compute is taken from each run's own window (its rows `cpu_others`, `cpu_learner` and `learner_busy`), and nothing
else is. Bar: both figures within 15% for all three.

`--own-rollouts` and the table of rollouts say where a miss comes from: what rollouts were like (tokens, groups whose
rewards differ, from the first half of a run to the second), or what everything took. Its standard errors are of one
run's groups, as if they were drawn alone.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
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


@dataclass(frozen=True)
class Figure:
    """A mean over groups and its standard error."""

    mean: float
    error: float

    def __str__(self) -> str:
        return f"{self.mean:.4g} ± {self.error:.2g}"


def figure(found: Sequence[float]) -> Figure:
    return Figure(fmean(found), stdev(found) / len(found) ** 0.5 if len(found) > 1 else 0.0)


def rollouts_of(times: ServiceTimes) -> dict[str, Figure]:
    """What rollouts of a run were like, for each rollout; groups stand newest first."""
    groups = times.groups
    tokens = [fmean(shape.tokens for shape in group) for group in groups]
    turns = [fmean(len(shape.turns) for shape in group) for group in groups]
    signal = [float(len({shape.reward for shape in group}) > 1) for group in groups]
    # What the learner computes: a group of equal rewards costs it nothing.
    learnt = [size * differs for size, differs in zip(tokens, signal, strict=True)]
    half = len(groups) // 2
    return {
        "tokens": figure(tokens),
        "turns": figure(turns),
        "groups with a signal": figure(signal),
        "learner's tokens": figure(learnt),
        "learner's tokens, first half": figure(learnt[half:]),
        "learner's tokens, second half": figure(learnt[:half]),
    }


def make_model(recipe: str, folder: Path, words: Sequence[str]) -> Path:
    """A fine-tuned checkpoint of the recipe."""
    run = folder / "model"
    if not list((run / "checkpoints").glob("sft-*")):
        execute("sft", recipes.load(recipe, list(words)), run)
    return max((run / "checkpoints").glob("sft-*"))


def service_times(run: Path) -> ServiceTimes:
    return measure_run(run, recipes.load(str(run / "recipe.toml"), []))


def compare(run: Path, times: ServiceTimes) -> dict[str, Any]:
    """What the run did, what is simulated for it with `times` of another one, and how far apart they are."""
    recipe = recipes.load(str(run / "recipe.toml"), [])
    rows = [row for row in read_metrics(run) if row["stage"] == "rl"]
    if times.cores:
        times = replace(times, others=others(rows, times.cores, times.devices))
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
    parser.add_argument("--make-model", action="store_true", help="fine-tune the recipe's model first, in the folder")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for all runs")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.check:
        runs = {str(path): path for path in options.check}
        times = service_times(options.fit or options.check[0])
    else:
        if options.model is None and not options.make_model:
            parser.error("give a MODEL to run with, --make-model, or finished runs with --check and --fit")
        model = options.model or make_model(options.recipe, options.folder, options.set)
        runs = {name: options.folder / name.replace(",", "").replace(" ", "-") for name in ARMS}
        for name, path in runs.items():
            words = [f"rl.model={model}", *ALIKE, *options.set, *ARMS[name]]
            if not (path / "run.json").exists():
                execute("rl", recipes.load(options.recipe, words), path)
        times = service_times(runs["fit"])
    found = {name: compare(path, times) for name, path in runs.items()}
    measured = {name: service_times(path) for name, path in runs.items()}
    rollouts = {name: rollouts_of(each) for name, each in measured.items()}
    if options.own_rollouts:
        for name, path in runs.items():
            found[f"{name}, its own rollouts"] = compare(path, replace(times, groups=measured[name].groups))
    for name, facts in found.items():
        said = [
            f"{figure} {facts['real'][figure]:.3g}, simulated {facts['simulated'][figure]:.3g} ({apart:+.1%})"
            for figure, apart in facts["apart"].items()
        ]
        print(f"{name}: {'; '.join(said)}", file=sys.stderr)
    for name, facts in rollouts.items():
        print(f"rollouts of {name}: {'; '.join(f'{key} {value}' for key, value in facts.items())}", file=sys.stderr)
    checked = [facts["within"] for name, facts in found.items() if name != "fit"]
    if options.json:
        shown = {name: {key: asdict(value) for key, value in facts.items()} for name, facts in rollouts.items()}
        print(json.dumps({"ok": all(checked), "bar": BAR, "runs": found, "rollouts": shown}))
    return 0 if all(checked) else 1


if __name__ == "__main__":
    sys.exit(main())
