"""A training run that is to be killed: its command, its settings, its processes and what they leave; for two scripts.

`kill_loop.py` and `ray_cluster.py` run it. As a program this is the command itself, the one that may be the
victim: the orchestrator of a run with real sandboxes, engines, workers and a learner.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import rl_kill

HERE = Path(__file__).resolve()
ROOT = HERE.parents[2]  # from where the command finds this package and the benchmarks
DEADLINE = 240.0  # seconds for a run to come to the next step
MODULES = {"learner": "etude.rl.learner.process", "engine": "etude.serve.server", "worker": "etude.rl.workers.process"}
BAD = ("skipped", "unexpected", "twice", "odd_steps")  # what an audit of the journal must not find
audit = rl_kill.audit


def settings(model: Path, steps: int, workers: int, engines: int, toy: bool) -> list[str]:
    found = [each for each in rl_kill.settings(model, steps) if not each.startswith("cluster.")]
    if not toy:  # the shape and the staleness of its own recipe, with groups as small as the toy's
        found = [each for each in found if each.startswith("rl.") and not each.startswith("rl.staleness=")]
        found += ["rl.seconds=0"]
    else:
        found += ["harness.limits.sampled_tokens=160"]
    found += [f"cluster.rollout_workers={workers}", f"cluster.engines={engines}", "cluster.restarts=8"]
    found += ["run.threads=1", "rl.eval_every=0", "rl.concurrency=12"]
    return found


class Running:
    """The command under way, and its processes."""

    def __init__(self, run: Path, model: Path, options: list[str], recipe: str, temporary: Path) -> None:
        self.run = run
        command = [sys.executable, "-m", "benchmarks.reliability.killed_run", str(run), str(model), recipe, *options]
        # To a file: a pipe that nobody reads would stop it.
        self.log = temporary / "output"
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                command, cwd=ROOT, stdout=output, stderr=output, env={**os.environ, "TMPDIR": str(temporary)}
            )

    def pids(self, kind: str) -> list[int]:
        if kind == "orchestrator":
            return [self.process.pid]
        return [pid for pid in self.candidates() if MODULES[kind] in command_of(pid)]

    def candidates(self) -> list[int]:
        """The command's own children; on Ray programs have other parents, and name the run (ray_cluster.py)."""
        return children(self.process.pid)

    def records(self, pid: int | None) -> list[Path]:
        """The records of rollouts under way: of one process, or of all."""
        folder = self.run / "rl" / "turns"
        if pid is None:
            return list(folder.glob("*.turns"))
        found = []
        for handle in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                place = handle.readlink()
                if place.suffix == ".turns":
                    found.append(place)
        return found

    def rows(self) -> list[dict[str, Any]]:
        path = self.run / "metrics.jsonl"
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        return [row for row in map(json.loads, lines) if row["stage"] == "rl"]

    def wait_rows(self, count: int) -> bool:
        """Whether the run came so far; False when it was finished before."""
        return self._wait(lambda: len(self.rows()) >= count)

    def wait_step(self, step: int) -> bool:
        """The same, of a step: after a kill some are trained once more."""
        return self._wait(lambda: any(row["step"] >= step for row in self.rows()[-1:]))

    def _wait(self, done: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + DEADLINE
        while not done():
            if self.process.poll() is not None:
                return False
            if time.monotonic() > deadline:
                raise SystemExit(f"no step within {DEADLINE:.0f} s:\n{self.log.read_text()[-3000:]}")
            time.sleep(0.02)
        return True


def children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    return []


def command_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    return ""


def alive(pid: int) -> bool:
    try:
        return b"State:\tZ" not in Path(f"/proc/{pid}/status").read_bytes()
    except OSError:
        return False


def make_toy(folder: Path, model: Path | None) -> Path:
    """The model to train: the one that was given, or a toy with random weights."""
    if model is not None:
        return model
    toy = folder / "model"
    toy.mkdir()
    rl_kill.make_model(toy)
    return toy


def options_of(parser: argparse.ArgumentParser, kills: int) -> None:
    """What both scripts are told."""
    parser.add_argument("--kills", type=int, default=kills)
    parser.add_argument("--model", type=Path, help="a fine-tuned checkpoint of the recipe nano; else a toy")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")


def answer(result: dict[str, Any], as_json: bool) -> None:
    """Prints what was found, and ends the script with it."""
    if as_json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:>18}  {value}")
    sys.exit(0 if result["ok"] else 1)


def main(arguments: Sequence[str]) -> int:
    run, model, recipe, *overrides = arguments
    return rl_kill.orchestrate(Path(run), Path(model), recipe or None, overrides)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
