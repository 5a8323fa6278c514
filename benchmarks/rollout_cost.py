"""What a rollout of the training loop costs: rollouts each second, and milliseconds of a core by process.

    python benchmarks/rollout_cost.py MODEL [--recipe nano] [--steps 12] [--arm "cluster.rollout_workers=1"] [--json]

MODEL is a fine-tuned checkpoint, such as the newest `sft-*` of a finished `etude run nano`. Every arm is the same
recipe with some overrides (words separated by spaces; without --arm, the recipe as it is) and trains from the same
model. The first two steps are left out: processes warm up in them. On a machine that others use compare the
milliseconds, which count processor time, and not the rollouts each second.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from etude.core import recipe as recipes
from etude.core.run_files import read_metrics
from etude.pipeline.execute import execute

WARM = 2  # steps left out


def play(model: Path, recipe: str, steps: int, overrides: list[str]) -> dict[str, float]:
    changes = [
        f"rl.model={model}",
        f"rl.steps={steps + WARM}",
        "rl.seconds=0",
        "rl.eval_every=0",
        "rl.save_every=100000",
    ]
    with tempfile.TemporaryDirectory(prefix="cost-") as folder:
        execute("rl", recipes.load(recipe, [*changes, *overrides]), Path(folder) / "run")
        return costs([row for row in read_metrics(Path(folder) / "run") if row["stage"] == "rl"][WARM:])


def costs(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Of the metrics of some steps: rollouts each second, and milliseconds of a core for each of them, by process."""
    seconds, rollouts = sum(row["seconds"] for row in rows), sum(row["rollouts"] for row in rows)
    found = {"rollouts": rollouts, "seconds": round(seconds, 2), "rollouts_per_second": round(rollouts / seconds, 2)}
    names = sorted({name for row in rows for name in row if name.startswith("cpu_")})
    for name in names:
        spent = sum(row.get(name, 0.0) * row["seconds"] for row in rows)
        found[f"ms_{name.removeprefix('cpu_')}"] = round(1000 * spent / rollouts, 2)
    # But for those of other people on the same machine.
    found["ms_all"] = round(sum(v for name, v in found.items() if name.startswith("ms_") and name != "ms_others"), 2)
    found["turns"] = round(sum(row["turns"] for row in rows) / len(rows), 2)
    found["tokens"] = round(sum(row["sampled_tokens"] for row in rows) / rollouts, 1)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--recipe", default="nano")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--arm", action="append", default=[], help="overrides of one arm, separated by spaces")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = {arm: play(options.model, options.recipe, options.steps, arm.split()) for arm in options.arm or [""]}
    for arm, facts in found.items():
        print(arm or "as the recipe is", "  ".join(f"{name} {value}" for name, value in facts.items()), file=sys.stderr)
    if options.json:
        print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
