"""How many values change in one step of reinforcement learning, and how many bytes does that publish?

    python -m benchmarks.reliability.delta_density MODEL [--lr 3e-4 1e-5 1e-6] [--steps 20] [--json]

MODEL is a fine-tuned checkpoint of the recipe nano. For each learning rate it is trained for so many real steps on
rollouts in sandboxes, with its weights published in bfloat16 as deltas (`cluster.weights`). The figures are those that
the run itself logs with every step (`publish_density`, `publish_bytes`); the first version is a full copy, and is what
the bytes of the others are compared with. The moments of AdamW begin at zero, so the first steps are not like later
ones: the second half of the steps is reported apart. What was found is in delta_density.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean
from typing import Any


def train(model: Path, lr: float, steps: int, folder: Path) -> dict[str, Any]:
    """One run; shares of all values and of a full copy's bytes that its steps published."""
    run = folder / f"lr-{lr:g}"
    options = [f"rl.model={model.absolute()}", f"rl.steps={steps}", f"rl.optim.lr={lr}", "rl.optim.warmup=0"]
    options += ["rl.eval_every=0", f"rl.save_every={steps}", "rl.groups=4", "rl.group=8", "run.threads=1"]
    options += [f"cluster.weights={run}-weights", "cluster.weights_dtype=bfloat16"]
    options += [f"cluster.weights_base_every={steps + 1}"]
    # On a CPU the learner computes in float32 what the engine then has in bfloat16, so the numerics differ.
    options += ["rl.probe_mean=1", "rl.probe_p99=1", "rl.probe_max=10", "rl.probe_k3=1"]
    command = [sys.executable, "-m", "etude", "rl", "nano", "--run", str(run), *options]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"the run at {lr:g} failed:\n{done.stdout[-1000:]}{done.stderr[-2000:]}")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row["stage"] == "rl" and "publish_bytes" in row]
    full, deltas = rows[0]["publish_bytes"], rows[1:]
    later = deltas[len(deltas) // 2 :]
    return {
        "lr": lr,
        "steps": len(rows),
        "full_bytes": full,
        "density": round(mean(row["publish_density"] for row in deltas), 5),
        "bytes_of_full": round(mean(row["publish_bytes"] for row in deltas) / full, 5),
        "density_later": round(mean(row["publish_density"] for row in later), 5),
        "bytes_of_full_later": round(mean(row["publish_bytes"] for row in later) / full, 5),
        "densities": [round(row["publish_density"], 5) for row in deltas],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--lr", type=float, nargs="+", default=[3e-4, 1e-5, 1e-6])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="density-") as folder:
        found = [train(options.model, lr, options.steps, Path(folder)) for lr in options.lr]
    if options.json:
        print(json.dumps({"model": options.model.name, "rates": found}, indent=1))
        return
    for each in found:
        print(f"lr {each['lr']:g}: {each['density']:.2%} of the values, {each['bytes_of_full']:.2%} of the bytes")


if __name__ == "__main__":
    main()
