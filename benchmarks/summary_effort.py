"""What summaries and stated effort do to a small agent: a base, arms measured on it, and a comparison with intervals.

    python benchmarks/summary_effort.py base summary --seed 0 --dir runs/terms
    python benchmarks/summary_effort.py arm summary long --seed 0 --dir runs/terms
    python benchmarks/summary_effort.py arm summary none --seed 0 --dir runs/terms
    python benchmarks/summary_effort.py arm summary trained --seed 0 --dir runs/terms
    python benchmarks/summary_effort.py arm summary prompted --seed 0 --dir runs/terms
    python benchmarks/summary_effort.py base effort --seed 0 --dir runs/terms
    python benchmarks/summary_effort.py arm effort low --seed 0 --dir runs/terms        (and medium, high)
    python benchmarks/summary_effort.py compare --dir runs/terms

`base` trains the recipe (nano-summary, nano-effort) to the end of fine-tuning; with --rl-seconds also by reinforcement
learning. `arm` runs held-out tasks and writes one JSON file: the rollouts of all arms have the same tasks and seeds, so
that they are compared in pairs. `compare` reads what is there. Each command takes at most 10 minutes on two cores.

Of summary: `long` is a context that holds a whole rollout, `none` the small one without summary. Bars: trained within
15 points of long, none at most 2%. Of effort: mean tokens at low at least 25% below high, pass rates within 3 points.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import random
import subprocess
import sys
import time
from collections import defaultdict
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

from etude.core.recipe import Recipe, load
from etude.core.settings import HarnessSettings, SummarySettings
from etude.core.terms import Terms
from etude.forge.curriculum.sources import open_source
from etude.pipeline.find_model import find_model
from etude.policies.engine_client import launch
from etude.rollout.effort_curve import effort_curve
from etude.rollout.rollout import Scored, build_setup, temporary_host
from etude.rollout.scheduler import JobRunner, RolloutJob, sample_seed
from etude.tokens.dialect import open_dialect

ARMS = {"summary": ("long", "none", "trained", "prompted"), "effort": ("low", "medium", "high")}
# The built-in long request is longer than nano's whole context, so its baseline is asked in a few sentences.
LONGER = (
    "The conversation will be cut off here. Write down what was asked, which files are done, which files are left and "
    "what comes next, so that the work can go on from your words alone. Call no tool."
)


def train(what: str, folder: Path, seed: int, rl_seconds: float, overrides: list[str]) -> None:
    stage = "rl" if rl_seconds else "sft"
    given = [f"run.seed={seed}", *([f"rl.seconds={rl_seconds}"] if rl_seconds else []), *overrides]
    command = [sys.executable, "-m", "etude", stage, f"nano-{what}", *given, "--run", str(folder)]
    began = time.monotonic()
    subprocess.run(command, check=True)
    print(json.dumps({"base": str(folder), "seconds": round(time.monotonic() - began)}))


def harness_of(what: str, arm: str, recipe: Recipe) -> HarnessSettings:
    harness, limits = recipe.harness, recipe.harness.limits
    if what == "effort":
        return harness
    if arm == "long":
        whole = dataclasses.replace(limits, context_tokens=limits.rollout_tokens, rollout_tokens=0)
        return dataclasses.replace(harness, limits=whole)
    settings = {
        "none": dataclasses.replace(harness.summary, use="off"),
        "trained": harness.summary,
        "prompted": SummarySettings("prompted", request=LONGER, max_tokens=harness.summary.max_tokens),
    }
    return dataclasses.replace(harness, summary=settings[arm])


async def measure(what: str, arm: str, run: Path, tasks: int, samples: int, seed: int, threads: int) -> dict[str, Any]:
    recipe = load(f"nano-{what}")
    harness = harness_of(what, arm, recipe)
    model = find_model(run)
    dialect = open_dialect(model)
    setup = build_setup(harness, recipe.reward, recipe.grader, recipe.audit, dialect=dialect)
    setup = setup.at_temperature(recipe.bench.temperature)
    found = list(islice(open_source(recipe.bench.tasks).tasks(), tasks))
    terms = Terms(effort=arm if what == "effort" else "")
    jobs = [
        RolloutJob(task, sample, sample_seed(seed, task.name, sample), terms=terms)
        for task in found
        for sample in range(samples)
    ]
    engine = dataclasses.replace(recipe.engine, max_length=harness.limits.context_tokens + 64)
    began = time.monotonic()
    async with (
        temporary_host(recipe.run.sandbox) as host,
        await launch(model, engine, threads=threads, decode=dialect.decode) as policy,
    ):
        outcomes = await JobRunner(policy, host, setup).run_all(jobs, recipe.bench.concurrency)
    scored = [outcome for outcome in outcomes if isinstance(outcome, Scored)]
    rows = [
        {
            "task": outcome.task.name,
            "sample": job.sample,
            "passed": outcome.passed,
            "share": fmean(status == "passed" for status in outcome.grade.tests.values()) if outcome.grade.tests else 0,
            "tokens": outcome.trajectory.sampled_tokens,
            "length": sum(len(segment.ids) - segment.copied for segment in outcome.trajectory.segments),
            "summaries": outcome.trajectory.summaries,
            "stop": outcome.trajectory.stop,
        }
        for job, outcome in zip(jobs, outcomes, strict=True)
        if isinstance(outcome, Scored)
    ]
    return {
        "what": what,
        "arm": arm,
        "seed": seed,
        "model": str(model),
        "seconds": round(time.monotonic() - began, 1),
        "void": len(outcomes) - len(rows),
        "pass_rate": fmean(row["passed"] for row in rows),
        "tests_passed": fmean(row["share"] for row in rows),
        "tokens": fmean(row["tokens"] for row in rows),
        "summaries": fmean(row["summaries"] for row in rows),
        "curve": [dataclasses.asdict(point) for point in effort_curve(scored)],
        "rows": rows,
    }


def compare(folder: Path) -> None:
    """Differences between arms over the rollouts that they share, with intervals from resampling tasks."""
    found: dict[tuple[str, str], dict[tuple[int, str, int], dict[str, Any]]] = defaultdict(dict)
    for path in sorted(folder.glob("arm-*.json")):
        result = json.loads(path.read_text())
        for row in result["rows"]:
            found[result["what"], result["arm"]][result["seed"], row["task"], row["sample"]] = row
    for (what, arm), rows in sorted(found.items()):
        stops: dict[str, int] = defaultdict(int)
        for row in rows.values():
            stops[row["stop"]] += 1
        rate, tokens = fmean(r["passed"] for r in rows.values()), fmean(r["tokens"] for r in rows.values())
        sums = fmean(r["summaries"] for r in rows.values())
        print(
            f"{what:8} {arm:9} {len(rows):5} rollouts  pass {rate:6.1%}  tokens {tokens:6.1f}  summaries {sums:.2f}",
            dict(stops),
        )
    for what, first, second in (
        ("summary", "trained", "long"),
        ("summary", "prompted", "long"),
        ("summary", "none", "long"),
        ("effort", "low", "high"),
        ("effort", "medium", "high"),
    ):
        mine, yours = found.get((what, first), {}), found.get((what, second), {})
        keys = sorted(mine.keys() & yours.keys())
        if not keys:
            continue
        by_task: dict[tuple[int, str], list[tuple[int, str, int]]] = defaultdict(list)
        for key in keys:
            by_task[key[:2]].append(key)
        groups = list(by_task.values())
        rng, points, savings = random.Random(0), [], []
        for _ in range(2000):
            drawn = [key for group in rng.choices(groups, k=len(groups)) for key in group]
            points.append(100 * fmean(mine[key]["passed"] - yours[key]["passed"] for key in drawn))
            savings.append(1 - fmean(mine[k]["tokens"] for k in drawn) / fmean(yours[k]["tokens"] for k in drawn))
        points.sort()
        savings.sort()
        mean = 100 * fmean(mine[key]["passed"] - yours[key]["passed"] for key in keys)
        saved = 1 - fmean(mine[k]["tokens"] for k in keys) / fmean(yours[k]["tokens"] for k in keys)
        print(
            f"{what:8} {first} - {second}: pass {mean:+.1f} points [{points[50]:+.1f}, {points[-51]:+.1f}], "
            f"tokens {-saved:+.1%} [{-savings[-51]:+.1%}, {-savings[50]:+.1%}], {len(keys)} pairs"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("base", "arm", "compare"):
        command = commands.add_parser(name)
        command.add_argument("--dir", type=Path, required=True)
        if name != "compare":
            command.add_argument("what", choices=list(ARMS))
            command.add_argument("--seed", type=int, default=0)
        if name == "base":
            command.add_argument("--rl-seconds", type=float, default=0.0)
            command.add_argument("--set", dest="overrides", nargs="*", default=[], help="KEY=VALUE of the recipe")
        if name == "arm":
            command.add_argument("arm", choices=[arm for arms in ARMS.values() for arm in arms])
            command.add_argument("--tasks", type=int, default=250)
            command.add_argument("--samples", type=int, default=4)
            command.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    if options.command == "compare":
        compare(options.dir)
        return
    base = options.dir / f"base-{options.what}-{options.seed}"
    if options.command == "base":
        train(options.what, base, options.seed, options.rl_seconds, options.overrides)
        return
    if options.arm not in ARMS[options.what]:
        parser.error(f"the arms of {options.what} are {', '.join(ARMS[options.what])}")
    result = asyncio.run(
        measure(options.what, options.arm, base, options.tasks, options.samples, options.seed, options.threads)
    )
    target = options.dir / f"arm-{options.what}-{options.arm}-{options.seed}.json"
    target.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({key: value for key, value in result.items() if key not in ("rows", "curve")}))


if __name__ == "__main__":
    main()
