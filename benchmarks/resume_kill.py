"""Does a pretraining run that is killed again and again end with the same bits as one that is left alone?

    python benchmarks/resume_kill.py --kills 10 [--steps 52] [--threads 2] [--seed 0] [--json]

Both runs go through the real command line on the standard library's own source. The victim is killed with
SIGKILL at random moments (while starting, between steps, while saving) and started again with the same command.
Afterwards weights, optimiser state, data position and the surviving loss curve must be equal, bit for bit.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

DEADLINE = 300.0  # seconds for any one process to do what it is waited for
COMPARED = ("model.safetensors", "optimiser.safetensors", "learner.json", "data.json")


def command(run: Path, steps: int, threads: int) -> list[str]:
    settings = {
        "run.threads": threads,
        "corpus.max_bytes": 400_000,
        "corpus.held_out": 0.1,
        "tokens.vocab_size": 512,
        "model.depth": 0,
        "tokens.train_bytes": 100_000,
        "model.width": 64,
        "model.layers": 2,
        "model.heads": 2,
        "model.kv_heads": 1,
        "model.mlp": 128,
        "pretrain.steps": steps,
        "pretrain.batch_tokens": 1024,
        "pretrain.micro_tokens": 512,
        "pretrain.sequence": 128,
        "pretrain.eval_every": 10,
        "pretrain.eval_tokens": 1024,
        "pretrain.save_every": 4,
        "run.save_in_background": "true",  # so that kills meet checkpoints under way, too
    }
    overrides = [f"{key}={value}" for key, value in settings.items()]
    return [sys.executable, "-m", "etude", "pretrain", "nano", *overrides, "--run", str(run), "--json"]


def start(run: Path, steps: int, threads: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command(run, steps, threads), stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )


def finish(process: subprocess.Popen[bytes]) -> None:
    out, err = process.communicate(timeout=DEADLINE)
    if process.returncode != 0:
        raise SystemExit(f"the run failed with {process.returncode}:\n{out.decode()}{err.decode()}")


def rows(run: Path) -> int:
    path = run / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def attack(run: Path, steps: int, threads: int, chance: random.Random, startup: float) -> str | None:
    """Start the run and kill it at a random moment; says when that was, or None when the run was faster."""
    process = start(run, steps, threads)
    before, began = rows(run), time.monotonic()
    if chance.random() < 0.2:
        wait_rows, extra, when = 0, chance.random() * startup, "while starting"
    else:
        # a few steps on, and up to about two steps' time more: in a forward, a backward, an evaluation or a save
        wait_rows, extra, when = chance.randint(1, 6), chance.random() * 0.1, "while training"
    while rows(run) < before + wait_rows and process.poll() is None:
        if time.monotonic() - began > DEADLINE:
            raise SystemExit(f"the run logged no step in {DEADLINE:.0f} s")
        time.sleep(0.002)
    pause = time.monotonic() + extra
    # A start is over with its first step: a small run may end within the seconds that starting took the first time.
    while time.monotonic() < pause and not (when == "while starting" and rows(run) > before):
        time.sleep(0.002)
    if process.poll() is not None:
        finish(process)
        return None
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    saving = any((run / "checkpoints").glob(".*")) if (run / "checkpoints").exists() else False
    return "while saving" if saving else when


def surviving_losses(run: Path) -> list[float]:
    from etude.core.run_files import read_metrics

    return [row["loss"] for row in read_metrics(run) if "loss" in row]


def compare(kills: int, steps: int, threads: int, seed: int, folder: Path) -> dict[str, object]:
    straight, victim = folder / "straight", folder / "victim"
    began = time.monotonic()
    finish(start(straight, steps, threads))
    alone = time.monotonic() - began
    chance, moments, finished = random.Random(seed), [], False
    while len(moments) < kills:
        moment = attack(victim, steps, threads, chance, startup=min(alone, 3.0))
        if moment is None:
            finished = True
            break
        moments.append(moment)
        print(f"kill {len(moments)}: {moment}, {rows(victim)} rows logged so far", file=sys.stderr)
    if not finished:
        finish(start(victim, steps, threads))
    last = f"checkpoints/pretrain-{steps:07d}"
    different = [n for n in COMPARED if (straight / last / n).read_bytes() != (victim / last / n).read_bytes()]
    if surviving_losses(straight) != surviving_losses(victim):
        different.append("losses in metrics.jsonl")
    return {
        "ok": not different and len(moments) == kills,
        "kills": len(moments),
        "moments": {moment: moments.count(moment) for moment in sorted(set(moments))},
        "steps": steps,
        "threads": threads,
        "different": different,
        "seconds_alone": round(alone, 1),
        "seconds": round(time.monotonic() - began, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--steps", type=int, default=0, help="optimiser steps; 0 takes 4 for each kill and 12 more")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        steps = arguments.steps or 12 + 4 * arguments.kills
        result = compare(arguments.kills, steps, arguments.threads, arguments.seed, Path(folder))
    if arguments.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:>14}  {value}")
    sys.exit(0 if result["ok"] else 1)


if __name__ == "__main__":
    main()
