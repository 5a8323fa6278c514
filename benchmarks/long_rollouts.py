"""Rollouts of 200,000 tokens and 300 calls, summed up again and again: does memory stay flat?

    python benchmarks/long_rollouts.py --tokens 200000 --calls 300 --rollouts 4 --out long.json

A scripted policy reads a file of many lines in a plain folder, 300 times in a rollout, and sums up when it is asked.
Rollouts run one after another. Reported: tokens, calls, summaries, seconds, and the process's memory after each; the
growth after the first one is what leaks. No model and no GPU: this measures the harness.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import resource
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from etude.core.policy import Assistant, Call, Context, Sample, Sampling, Version
from etude.core.settings import AgentLimits, SummarySettings
from etude.harness.loop import run_agent
from etude.harness.summary import is_request
from etude.harness.tools.table import build_tools
from etude.harness.trajectory import Trajectory
from etude.sandbox.base import WORKSPACE
from etude.sandbox.hosts import open_host
from etude.tokens.native import Native
from etude.tokens.tokenizer import Tokenizer

TEXT = "def add(a, b):\n    return a + b\nx = 12345\n" * 40


class Reader:
    """Reads the same file until it has called often enough. What it has done is counted, not read from the context."""

    def __init__(self, dialect: Native, calls: int) -> None:
        self.dialect, self.calls, self.done = dialect, calls, 0

    async def sample(self, context: Context, sampling: Sampling) -> Sample:
        if is_request(context.messages[-1]):
            turn = Assistant("What is left?", f"Read notes.txt {self.done} times of {self.calls}.")
        elif self.done < self.calls:
            self.done += 1
            lines = {"start": str(self.done), "end": str(self.done + 40)}
            turn = Assistant(calls=(Call("read", {"path": "notes.txt", **lines}),))
        else:
            turn = Assistant(calls=(Call("finish", {}),))
        ids = tuple(self.dialect.turn_ids(turn))[: sampling.max_tokens]
        return Sample("", "stop", ids, (-0.5,) * len(ids), (Version(0, 0),) * len(ids))


async def one(root: Path, dialect: Native, calls: int, limits: AgentLimits) -> Trajectory:
    async with await open_host("plain", root / "store") as host, await host.start(()) as sandbox:
        notes = "".join(f"line {n} of the notes: {n * 7919 % 1000}\n" for n in range(500))
        await sandbox.write(f"{WORKSPACE}/notes.txt", notes.encode())
        return await run_agent(
            "Read the notes.",
            sandbox,
            Reader(dialect, calls),
            dialect=dialect,
            tools=build_tools([{"use": "read"}, {"use": "finish"}]),
            limits=limits,
            sampling=Sampling(max_tokens=512),
            summary=SummarySettings(),
        )


def memory_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=200_000)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--context", type=int, default=16_384)
    parser.add_argument("--rollouts", type=int, default=4)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    dialect = Native(Tokenizer.train([TEXT], 512))
    limits = AgentLimits(
        turns=options.calls + 1,
        sampled_tokens=1 << 30,
        context_tokens=options.context,
        rollout_tokens=1 << 30,
        seconds=3600.0,
    )
    rows: list[dict[str, Any]] = []
    for _ in range(options.rollouts):
        began = time.process_time()
        with TemporaryDirectory() as folder:
            trajectory = asyncio.run(one(Path(folder), dialect, options.calls, limits))
        tokens = sum(len(segment.ids) - segment.copied for segment in trajectory.segments)
        row = {
            "stop": trajectory.stop,
            "failed_calls": sum(entry.error is not None for entry in trajectory.entries),
            "tokens": tokens,
            "calls": trajectory.effort.calls,
            "summaries": trajectory.summaries,
            "longest_segment": max(len(segment.ids) for segment in trajectory.segments),
            "cpu_seconds": round(time.process_time() - began, 2),
        }
        del trajectory
        gc.collect()
        rows.append(row | {"memory_mb": round(memory_mb(), 1)})
        print(json.dumps(rows[-1]), flush=True)
    grown = rows[-1]["memory_mb"] - rows[0]["memory_mb"]
    enough = all(row["tokens"] >= options.tokens and row["calls"] > options.calls for row in rows)  # and `finish`
    found = {"long_enough": enough, "grown_mb_after_first": round(grown, 1)}
    print(json.dumps(found))
    if options.out:
        options.out.write_text(json.dumps(found | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
