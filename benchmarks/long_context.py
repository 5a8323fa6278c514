"""What longer training sequences give: loss by position, needles and state tracking before and after `etude extend`.

    python benchmarks/long_context.py [--run DIR] [--recipe nano] [--sequence 2048] [--yarn 4] [OVERRIDE ...]

Brings a run to the end of `extend` and prints a line before and a line after. The defaults take some minutes on a CPU;
on a GPU give a larger recipe, `extend.sequence` up to 262,144 and `run.device=cuda`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from etude.core.run_files import read_metrics

SMALL = ["pretrain.steps=200", "pretrain.sequence=256", "corpus.max_bytes=3000000", "extend.steps=40"]
SMALL += ["base.histories=4", "base.needle_depths=[0.25,0.75]", "base.needle_trials=2"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, default=Path("runs/long-context"))
    parser.add_argument("--recipe", default="nano")
    parser.add_argument("--sequence", type=int, default=2048)
    parser.add_argument("--yarn", type=float, default=4.0)
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_args()
    lengths = [length for length in (256, 1024, 4096, 16_384, 65_536, 262_144) if length <= options.sequence]
    length = options.sequence
    given = [f"extend.sequence={length}", f"extend.yarn={options.yarn}", f"base.needle_lengths={lengths}"]
    given += [f"extend.batch_tokens={2 * length}", f"extend.micro_tokens={length}", f"extend.eval_tokens={8 * length}"]
    small = SMALL if options.recipe == "nano" else []
    command = [sys.executable, "-m", "etude", "extend", options.recipe, *small, *given, *options.overrides]
    began = time.monotonic()
    code = subprocess.run([*command, "--run", str(options.run)], stdout=sys.stderr, check=False).returncode
    if code:
        return code
    rows = [row for row in read_metrics(options.run) if row["stage"] == "extend" and "held_out_loss" in row]
    for name, row in (("before", rows[0]), ("after", rows[-1])):
        figures = {key: round(value, 4) for key, value in row.items() if isinstance(value, float) and key != "time"}
        print(json.dumps({"what": name, "step": row["step"], "sequence": length, **figures}))
    print(json.dumps({"what": "time", "seconds": round(time.monotonic() - began, 1)}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
