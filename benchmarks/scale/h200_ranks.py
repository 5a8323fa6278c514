"""What of the learner's ranks only a machine with one H200 and 16 cores can show, in two parts with a limit each.

    python -m benchmarks.scale.h200_ranks gpu --seconds 420 --out OUT
    python -m benchmarks.scale.h200_ranks cpu --seconds 420 --out OUT
    python -m benchmarks.scale.h200_ranks gpu --seconds 300 --out OUT --tiny      tries the script itself on a CPU

`gpu`: five shapes against the plan (plan_h200.py); the code for several ranks in a group of one rank over nccl against
the learner without a group (one_rank_group.py); what a checkpoint beside training saves (save_beside.py). `cpu`: memory
of eight ranks over gloo against the plan, with experts and with Muon (rank_memory.py); a checkpoint of four ranks;
layouts against one rank, six of them first (layouts.py). The two parts may run side by side, but then the GPU's step
times are not to be quoted.

OUT/PART.json is written anew after each program, OUT/PART.log has what they said; a program that does not end in time
is ended and named. Needs torch, numpy and safetensors only.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Each axis and each model: copies, shards, experts by all-to-all, sequences on two ranks, adapters.
SIX = ("dense:4,2,2", "dense:8,2,2,1,2", "moe:4,1,4,4", "moe:8,1,4,8,2", "lora:4,1,2,1,2", "lora:8,2,4")
SHAPES = ("experts with MLA, EP 8 x CP 2", "dense, Muon", "experts with MLA, EP 8 x CP 2, Muon")


@dataclass
class Piece:
    name: str
    arguments: list[str]
    most: float  # seconds
    found: dict[str, Any] = field(default_factory=dict)


@dataclass
class Part:
    name: str
    out: Path
    until: float  # by the monotonic clock
    pieces: list[Piece] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def left(self) -> float:
        return self.until - time.monotonic()

    def run(self, *pieces: Piece) -> None:
        """Side by side, each with the limit of its own and what is left of all."""
        self.pieces += pieces
        threads = [threading.Thread(target=self._run, args=(piece,)) for piece in pieces]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _run(self, piece: Piece) -> None:
        limit = min(piece.most, self.left)
        if limit < 5:
            piece.found = {"passed": False, "left_out": "no time was left"}
            self._write()
            return
        began = time.monotonic()
        with (self.out / f"{self.name}.log").open("ab") as log:
            log.write(f"--- {piece.name}: {piece.arguments}\n".encode())
            log.flush()
            process = subprocess.Popen(
                [sys.executable, "-m", *piece.arguments, "--json"],
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                text=True,
            )
            try:
                said, _ = process.communicate(timeout=limit)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # the ranks that it started end with it
                said, _ = process.communicate()
        took = round(time.monotonic() - began, 1)
        lines = [line for line in said.splitlines() if line.startswith(("{", "["))]
        piece.found = {"passed": process.returncode == 0, "code": process.returncode, "took": took}
        piece.found["found"] = json.loads(lines[-1]) if lines else f"nothing within {limit:.0f} s; see the log"
        self._write()

    def _write(self) -> None:
        with self.lock:
            rows = {piece.name: piece.found for piece in self.pieces}
            (self.out / f"{self.name}.json").write_text(json.dumps(rows, indent=1) + "\n")


def gpu(part: Part, tiny: bool) -> None:
    device = ["--device", "cpu", "--tiny"] if tiny else []
    group = "benchmarks.scale.one_rank_group"
    part.run(Piece("group of one", [group, *device], 150))
    # The last shape may begin that late, and takes up to a minute.
    begin = max(30, min(200, part.left - 130))
    steps = ["--steps", "1" if tiny else "3", "--seconds", f"{begin:.0f}"]
    part.run(Piece("plan", ["benchmarks.scale.plan_h200", *steps, *device], begin + 90))
    part.run(Piece("speed of a group", [group, "--part", "speed", *device], 150))
    beside = ["--tiny", "--rounds", "1"] if tiny else ["--device", "cuda", "--model", "0.6B", "--rounds", "2"]
    part.run(Piece("checkpoints of 0.6B", ["benchmarks.scale.save_beside", *beside], 120))


def cpu(part: Part, tiny: bool) -> None:
    cores = os.cpu_count() or 1
    small = ["--small", "--steps-only"] if tiny else ["--most", "30"]
    memory = [Piece(shape, ["benchmarks.scale.rank_memory", "--only", shape, *small], 400) for shape in SHAPES]
    first = [argument for cell in SIX for argument in ("--first", cell)]
    pairs = 2 if cores >= 16 else 1  # of eight ranks each, one thread a rank
    for number in range(0, len(memory), pairs):
        part.run(*memory[number : number + pairs])
    beside = ["--ranks", "2", "--tiny", "--rounds", "1"] if tiny else ["--ranks", "4"]
    part.run(Piece("checkpoints of four ranks", ["benchmarks.scale.save_beside", *beside], 90))
    begin = max(10.0, part.left - 40)
    cells = [*first, "--seconds", f"{min(1.0, begin) if tiny else begin:.0f}"]
    part.run(Piece("layouts", ["benchmarks.scale.layouts", *cells], begin + 35))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("gpu", "cpu"))
    parser.add_argument("--seconds", type=float, required=True, help="all that the part may take")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tiny", action="store_true", help="small shapes on a CPU, to try the script itself")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    part = Part(options.part, options.out, time.monotonic() + options.seconds)
    (gpu if options.part == "gpu" else cpu)(part, options.tiny)
    rows = {piece.name: piece.found for piece in part.pieces}
    print(json.dumps(rows))
    return 0 if all(row["passed"] for row in rows.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
