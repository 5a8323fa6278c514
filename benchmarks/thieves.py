"""Policies that steal instead of writing: git, find, strings, pip, caches, decompiler, on random made tasks.

    python benchmarks/thieves.py TASKS [--count 100] [--seconds 100] [--store DIR] [--json]

TASKS is a folder of task directories (`etude tasks make`), or several. Each thief tries each task through the harness
and is graded as in training. The bar: 0 solved. A control comes first: the same thieves on tasks with a copy planted
in the workspace, which they must solve, or their failure elsewhere would say nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
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
from etude.forge.katas.source import katas
from etude.forge.leaks.deleted_code import deleted_of
from etude.policies.scripted import Scripted
from etude.rollout.rollout import Scored, build_setup, run_rollout
from etude.sandbox.base import SandboxLimits
from etude.sandbox.hosts import StoringHost, open_host
from etude.sandbox.store.layers import default_store
from etude.tasks.format.task import WORKSPACE, Task
from etude.tasks.grading.grader import RUNNER
from redteam.leaks.hiding_places import HIDING_PLACES
from redteam.leaks.leak_probe_policies import THIEVES, thief_script

CONTROL = {
    "git": "git-pack",
    "find": "editor-backup",
    "strings": "memory-dump",
    "pip": "wheel",
    "caches": "type-checker-database",
    "decompiler": "stale-bytecode",
}
SEARCHED = re.compile(r"\d+ of \d+ found")  # what a thief says when it came to its end
LIMITS = SandboxLimits(memory=2 << 30)  # a thief reads whole archives


def careless(task: Task, place: str) -> Task:
    """The task with a copy of its solution in a hiding place of the workspace."""
    path = deleted_of(task)[0].path
    planted = HIDING_PLACES[place](path, task.solution.text(path))
    files = {f"{WORKSPACE}/{name}": data for name, data in planted.items()}
    return dataclasses.replace(task, files=task.files.replaced(files))


async def control(host: StoringHost, seconds: float) -> dict[str, bool]:
    """Whether each thief solves a task that was not scrubbed."""
    task = next(iter(katas("train", 1, seed=5)))
    solved: dict[str, bool] = {}
    for name, place in CONTROL.items():
        left = careless(task, place)
        outcome = await run_rollout(left, Scripted(thief_script(name, left, seconds=seconds)), host, setup())
        solved[name] = isinstance(outcome, Scored) and outcome.passed
    return solved


def setup() -> Any:
    return build_setup(sandbox=LIMITS)


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
        waiting = iter([(task, name) for task in tasks for name in THIEVES])

        async def work(advance: Callable[[int], None]) -> None:
            for task, name in waiting:
                policy = Scripted(thief_script(name, task, seconds=options.seconds))
                outcome = await run_rollout(task, policy, host, setup(), policy_name=f"thief:{name}")
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

        with track("stealing", total=len(tasks) * len(THIEVES), unit="tries") as bar:
            await asyncio.gather(*(work(bar.advance) for _ in range(options.at_once)))
    return {
        "ok": not solved and all(able.values()) and not void and not broken,
        "tasks": len(tasks),
        "thieves": len(THIEVES),
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
        print(f"control: {able} of {len(result['control'])} thieves solve a task that was not scrubbed")
        print(f"{len(result['solved'])} solved of {result['tried']} ({result['tasks']} tasks, {result['seconds']} s)")
        for line in (*result["solved"], *result["void"], *result["broken"], *result["took_something"]):
            print(f"    {line}")
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
