"""Scripted rollouts each second: start, four tool calls, hardened grade, close; and where the time goes.

    python benchmarks/rollouts.py [--seconds 20] [--at-once 3] [--json]

Each rollout is a kata of its own, solved by a script through the real harness: it reads, runs `true`, edits and
finishes. Nothing is reused between rollouts but the host. The bar is 12 a second on two cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import resource
import statistics
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

from etude.core.policy import Assistant, Call
from etude.core.process import available_cores
from etude.forge.katas.task_source import katas
from etude.policies.scripted import Scripted, edits_between
from etude.rollout.rollout import Scored, Void, build_setup, run_rollout
from etude.sandbox.hosts import open_host
from etude.tasks.format.task import Task
from etude.tasks.grading.grader import RUNNER

BAR = 12.0  # rollouts a second
WARM_UP = 10  # rollouts before the clock starts


def four_calls(task: Task) -> list[Assistant]:
    """A turn each to read, run, edit and finish; a kata with more edits makes them in the same turn."""
    edits = [
        Call("edit", {"path": path, "old": old, "new": new})
        for path in task.solution
        for old, new in edits_between(task.workspace.text(path), task.solution.text(path))
    ]
    path = edits[0].arguments["path"]
    turns = [(Call("read", {"path": path}),), (Call("run", {"command": "true"}),), tuple(edits), (Call("finish"),)]
    return [Assistant(calls=calls) for calls in turns]


async def measure(seconds: float, at_once: int, seed: int) -> dict[str, object]:
    setup = build_setup()
    stream = (task for task in katas("train", seed=seed, levels=[1, 2]) if _edits_once(task))
    voids: list[Void] = []
    took: list[float] = []
    graded: list[float] = []
    unsolved = 0
    with tempfile.TemporaryDirectory() as folder:
        async with await open_host("local", Path(folder), [RUNNER]) as host:
            prepared = list(islice(stream, WARM_UP))
            for task in prepared:
                await run_rollout(task, Scripted(four_calls(task)), host, setup)
            deadline = time.monotonic() + seconds

            async def work() -> None:
                nonlocal unsolved
                while time.monotonic() < deadline:
                    task = next(stream)
                    outcome = await run_rollout(task, Scripted(four_calls(task)), host, setup)
                    if isinstance(outcome, Scored):
                        took.append(outcome.seconds)
                        graded.append(outcome.grade.seconds)
                        unsolved += not outcome.passed
                    else:
                        voids.append(outcome)

            started, used = time.monotonic(), time.process_time()
            await asyncio.gather(*(work() for _ in range(at_once)))
            wall, used = time.monotonic() - started, time.process_time() - used
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)  # the launcher and all sandboxes, now that they are gone
    processor = used + (spent.ru_utime + spent.ru_stime) * len(took) / (len(took) + WARM_UP)
    return {
        "rollouts_per_second": round(len(took) / wall, 2),
        "rollouts": len(took),
        "unsolved": unsolved,
        "void": len(voids),
        "at_once": at_once,
        "rollout_ms_p50": round(statistics.median(took) * 1000, 1),
        "rollout_ms_p95": round(statistics.quantiles(took, n=20)[-1] * 1000, 1),
        "grade_ms_p50": round(statistics.median(graded) * 1000, 1),
        "orchestrator_cpu_ms": round(used / len(took) * 1000, 1),
        "cpu_ms": round(processor / len(took) * 1000, 1),  # all processes together
        "load": round(os.getloadavg()[0], 1),  # of the machine, ours included
        "cores": available_cores(),
        "python": platform.python_version(),
        "bar": BAR,
        "ok": len(took) / wall >= BAR and not voids and not unsolved,
    }


def _edits_once(task: Task) -> bool:
    return len(task.solution) == 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--at-once", type=int, default=3, help="rollouts in flight")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result = asyncio.run(measure(options.seconds, options.at_once, options.seed))
    if options.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:22} {value}")
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
