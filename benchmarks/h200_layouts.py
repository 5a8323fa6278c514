"""Rollouts each second of recipe `h200` on one GPU, in one process and with workers and engines; and what they cost.

    python -m benchmarks.h200_layouts [--work runs/layouts] [--model DIR] [--until 165] [--arm "OVERRIDE ..."]...

Without --model a small one is made first, once for a work folder: a corpus of katas, 120 steps of pretraining, three
passes over 700 demonstrations; about a minute on an H200. It reads, edits and finishes as the recipe's own does, and
passes fewer tasks. Then each arm is the same recipe from that model with its overrides, and shares the seconds that
`--until` leaves, the first arm a smaller part. Without --arm there are two: one process, and workers with engines. The
first steps of an arm are left out. The last line is one JSON object: for each arm rollouts each second, milliseconds of
a core by process, and where the waits were. `--tiny` tries it on a CPU with recipe `nano`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.rollout_cost import costs
from etude.core.process import available_cores
from etude.core.run_files import checkpoints_in, read_metrics

BEFORE = 116.0  # rollouts/s that the bar counts from
BAR = 3.0
ARMS = (
    "cluster.rollout_workers=0 cluster.engines=1",
    "cluster.rollout_workers=8 cluster.engines=4 rl.concurrency=512 rl.groups=32",
)
MODEL = (
    "corpus.sources=[{ use = 'katas', weight = 1.0, count = 8_000, invented = 0.7 }]",
    "corpus.max_bytes=6_000_000",
    "tokens.train_bytes=2_000_000",
    *("pretrain.steps=120", "pretrain.save_every=120", "pretrain.eval_every=0"),
    *("demos.count=700", "sft.epochs=3", "sft.save_every=100_000"),
)
TINY = ("pretrain.steps=2", "demos.count=12", "sft.epochs=1", "run.threads=1", "corpus.max_bytes=400_000")
TINY_ARMS = (
    "cluster.rollout_workers=0 rl.groups=2 rl.group=4 rl.concurrency=8",
    "cluster.rollout_workers=2 cluster.engines=2 rl.groups=2 rl.group=4 rl.concurrency=16",
)
GRACE = 12.0  # seconds in which an arm ends and everything of it is closed
SHOWN = (
    *("wait_data", "wait_probe", "wait_learner", "publish_seconds", "swap_seconds", "learner_busy"),
    *("rollout_seconds", "sampling_seconds", "tools_seconds", "pass_rate", "malformed", "grades_reused"),
    *("probe_mean", "real_mean", "staleness_mean", "engine_steps", "engine_computed_tokens", "engine_sampled_tokens"),
)


def command(verb: str, recipe: str, run: Path, overrides: list[str], seconds: float) -> int:
    words = [sys.executable, "-m", "etude", verb, recipe, *overrides, "--run", str(run)]
    with (run.parent / f"{run.name}.log").open("ab") as log:
        try:
            return subprocess.run(words, stdout=log, stderr=log, check=False, timeout=seconds).returncode
        except subprocess.TimeoutExpired:
            return -1


def made_model(work: Path, recipe: str, tiny: bool, until: float) -> Path:
    base = work / "base"

    def tuned() -> list[Path]:
        return [folder for stage, _, folder in checkpoints_in(base) if stage == "sft"]

    if not tuned():
        changes = [*MODEL, *(TINY if tiny else ())]
        if command("sft", recipe, base, changes, until - time.monotonic()) != 0:
            raise SystemExit(f"no model was made:\n{(work / 'base.log').read_text()[-3000:]}")
    return tuned()[-1]


def measured(work: Path, recipe: str, model: Path, arm: str, number: int, seconds: float) -> dict[str, Any]:
    run = work / f"arm-{number}-{time.time_ns()}"
    changes = ["rl.steps=100000", "rl.eval_every=0", "rl.save_every=100000", "rl.staleness=2"]
    changes += [f"rl.model={model}", f"rl.seconds={seconds - GRACE:.0f}", *arm.split()]
    code = command("rl", recipe, run, changes, seconds + GRACE)
    rows = [row for row in read_metrics(run) if row["stage"] == "rl"] if (run / "metrics.jsonl").exists() else []
    warm = max(3, len(rows) // 4)
    if len(rows) <= warm:
        log = (work / f"{run.name}.log").read_text()[-3000:]
        return {"arm": arm, "code": code, "steps": len(rows), "error": f"too few steps to tell:\n{log}"}
    kept = rows[warm:]
    means = {name: round(sum(row[name] for row in kept if name in row) / len(kept), 4) for name in SHOWN}
    found = costs(kept) | {"steps": len(kept), "of": len(rows), "void": rows[-1].get("void", 0), "code": code}
    said = [line for log in (run / "rl" / "logs").glob("engine*") for line in log.read_text().splitlines()]
    return {"arm": arm} | found | {"means": means, "not_recorded": [line for line in said if "not recorded" in line]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("runs/layouts"))
    parser.add_argument("--model", type=Path)
    parser.add_argument("--recipe", default="")
    parser.add_argument("--until", type=float, default=165.0, help="seconds for everything")
    parser.add_argument("--arm", action="append", default=[], help="overrides of one arm, separated by spaces")
    parser.add_argument("--tiny", action="store_true", help="recipe nano on a CPU: tries the script, measures nothing")
    options = parser.parse_args()
    until = time.monotonic() + options.until
    recipe = options.recipe or ("nano" if options.tiny else "h200")
    work = options.work.absolute()
    work.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    model = options.model.absolute() if options.model else made_model(work, recipe, options.tiny, until)
    making = time.monotonic() - began
    arms = options.arm or list(TINY_ARMS if options.tiny else ARMS)
    found: list[dict[str, Any]] = []
    for number, arm in enumerate(arms):
        left = until - time.monotonic()
        # One process warms the machine up and is soon known; what is judged gets the larger part.
        share = 0.4 if number == 0 and len(arms) > 1 else 1 / (len(arms) - number)
        found.append(measured(work, recipe, model, arm, number, left * share))
        print(json.dumps(found[-1]), file=sys.stderr, flush=True)
    best = max((each.get("rollouts_per_second", 0.0) for each in found), default=0.0)
    facts = {"before": BEFORE, "best": best, "times": round(best / BEFORE, 2), "met": best >= BAR * BEFORE}
    print(json.dumps(facts | {"cores": available_cores(), "model_seconds": round(making, 1), "arms": found}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
