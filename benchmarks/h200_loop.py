"""The whole way on one GPU, one command: what each stage took, what was learnt, and where the loop's time went.

    python benchmarks/h200_loop.py [--run runs/h200] [--recipe h200] [--show] [OVERRIDE ...]

`--show` prints what a run holds so far and starts nothing. Bar: 10 minutes for everything.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

BAR = 600.0  # seconds


def show(run: Path) -> dict[str, Any]:
    """Seconds of each stage and the curves, from the run's own files."""
    from etude.core.run_files import read_facts, read_metrics

    facts, rows = read_facts(run), read_metrics(run)
    seconds = {}
    for name, stage in facts["stages"].items():
        ended = stage.get("finished")
        if ended:
            seconds[name] = (datetime.fromisoformat(ended) - datetime.fromisoformat(stage["began"])).total_seconds()
    curves: dict[str, Any] = {}
    for stage, figure in (("pretrain", "loss"), ("pretrain", "held_out_bits_per_byte"), ("sft", "loss")):
        curves[f"{stage}.{figure}"] = thin(
            [(row["step"], row[figure]) for row in rows if figure in row and row["stage"] == stage]
        )
    learning = [row for row in rows if row["stage"] == "rl" and "pass_rate" in row]
    curves["rl.pass_rate"] = thin([(row["step"], row["pass_rate"]) for row in learning])
    evaluated = [row for row in rows if row["stage"] == "rl.eval"]
    curves["rl.eval"] = [{k: v for k, v in row.items() if k not in ("lineage", "stage", "time")} for row in evaluated]
    names = ("seconds", "learner_busy", "engine_busy", "wait_data", "drift_mean", "k3", "zero_variance", "malformed")
    means = {
        name: round(sum(row[name] for row in learning if name in row) / max(1, len(learning)), 5) for name in names
    }
    speeds = [row["tokens_per_second"] for row in rows if row["stage"] == "pretrain" and "tokens_per_second" in row]
    results = json.loads((run / "results.json").read_text()) if (run / "results.json").exists() else {}
    return {
        "seconds": seconds,
        "total": round(sum(seconds.values()), 1),
        "pretrain_tokens_per_second": sorted(speeds)[len(speeds) // 2] if speeds else 0,
        "rl_steps": len(learning),
        "rl_means": means,
        "facts": {name: stage.get("facts", {}) for name, stage in facts["stages"].items()},
        "curves": curves,
        "results": results,
    }


def thin(points: list[tuple[int, float]], most: int = 10) -> list[tuple[int, float]]:
    every = max(1, -(-len(points) // most))
    return [(step, round(value, 4)) for step, value in points[every - 1 :: every]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, default=Path("runs/h200"))
    parser.add_argument("--recipe", default="h200")
    parser.add_argument("--show", action="store_true")
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_args()
    if options.show:
        print(json.dumps(show(options.run)))
        return 0
    began = time.monotonic()
    command = [
        sys.executable,
        "-m",
        "etude",
        "run",
        options.recipe,
        *options.overrides,
        "--run",
        str(options.run),
    ]
    code = subprocess.run([*command, "--fresh"], check=False).returncode
    spent = time.monotonic() - began
    found = show(options.run) if (options.run / "run.json").exists() else {}
    print(json.dumps({"seconds_in_all": round(spent, 1), "bar": BAR, "met": not code and spent <= BAR, **found}))
    return code


if __name__ == "__main__":
    raise SystemExit(main())
