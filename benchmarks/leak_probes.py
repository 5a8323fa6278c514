"""Policies that search instead of writing: git, find, strings, pip, caches, decompiler, on random made tasks.

    python benchmarks/leak_probes.py TASKS [--count 100] [--seconds 100] [--store DIR] [--json]

TASKS is a folder of task directories (`etude tasks make`), or several. Each probe tries each task through the harness
and is graded as in training. The bar: 0 solved. A control comes first: the same probes on tasks with a copy in the
workspace, which they must solve, or their failure elsewhere would say nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from etude.core.policy import ToolResult
from etude.core.progress import track
from etude.forge.gates.near_duplicates import load_tasks
from etude.rollout.rollout import Scored
from etude.sandbox.hosts import open_host
from etude.sandbox.store.layers import default_store
from etude.tasks.grading.grader import RUNNER
from redteam.leaks.leak_probes import LEAK_PROBES
from redteam.leaks.run import control, probe

SEARCHED = re.compile(r"\d+ of \d+ found")  # what a probe says when it came to its end


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    tasks = load_tasks(options.tasks)
    random.Random(options.seed).shuffle(tasks)
    tasks = tasks[: options.count]
    started = time.monotonic()
    solved: list[str] = []
    void: list[str] = []
    found: list[str] = []
    broken: list[str] = []
    tried: Counter[str] = Counter()
    async with await open_host("local", options.store or default_store(), [RUNNER]) as host:
        able = await control(host, options.seconds)
        waiting = iter([(task, name) for task in tasks for name in LEAK_PROBES])

        async def work(advance: Callable[[int], None]) -> None:
            for task, name in waiting:
                outcome = await probe(name, task, host, options.seconds)
                tried[name] += 1
                advance(1)
                if not isinstance(outcome, Scored):
                    void.append(f"{task.name} {name}: {outcome.message}")
                    continue
                said = "\n".join(part.text for part in outcome.trajectory.messages if isinstance(part, ToolResult))
                if SEARCHED.search(said) is None:
                    broken.append(f"{task.name} {name}: {said[-200:]!r}")
                found.extend(f"{task.name} {name}: {line}" for line in said.splitlines() if line.startswith("found "))
                if outcome.passed:
                    solved.append(f"{task.name} {name}")

        with track("searching", total=len(tasks) * len(LEAK_PROBES), unit="tries") as bar:
            await asyncio.gather(*(work(bar.advance) for _ in range(options.at_once)))
    return {
        "ok": not solved and all(able.values()) and not void and not broken,
        "tasks": len(tasks),
        "probes": len(LEAK_PROBES),
        "tried": sum(tried.values()),
        "solved": solved,
        "took_something": found,
        "void": void,
        "broken": broken,
        "control": able,
        "seconds": round(time.monotonic() - started, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", type=Path, nargs="+", help="folders of task directories")
    parser.add_argument("--count", type=int, default=100, help="tasks drawn")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=100.0, help="time of one search")
    parser.add_argument("--store", type=Path, default=None, help="folder of layers; else the one that commands share")
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result = asyncio.run(measure(options))
    if options.json:
        print(json.dumps(result))
    else:
        able = sum(result["control"].values())
        print(f"control: {able} of {len(result['control'])} probes solve a task that was not scrubbed")
        print(f"{len(result['solved'])} solved of {result['tried']} ({result['tasks']} tasks, {result['seconds']} s)")
        for line in (*result["solved"], *result["void"], *result["broken"], *result["took_something"]):
            print(f"    {line}")
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
