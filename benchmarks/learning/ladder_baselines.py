"""Pass rates of scripts on ladder tasks: nothing, the inverting script, and the reference.

    python benchmarks/learning/ladder_baselines.py TASKS --rungs 1,2 --split held_out --count 100

Each is graded as a rollout would be. Nothing has to solve 0%, the reference 100%, and the inverting script (which
inverts the token that is likeliest by the way mistakes are drawn) says what a task is worth. With intervals of 95%.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections import defaultdict
from pathlib import Path

from etude.bench.stats import share_interval
from etude.forge.ladder.invert_baseline import inverted
from etude.forge.ladder.source import Ladder
from etude.sandbox.hosts import StoringHost, open_host
from etude.sandbox.store.layers import Store, default_store
from etude.tasks.format.task import Task
from etude.tasks.grade import grade
from etude.tasks.grading.grader import RUNNER
from etude.tasks.grading.submission import submission_of


async def measure(tasks: list[Task], policies: list[str], workers: int) -> dict[str, list[bool]]:
    found: dict[str, list[bool]] = defaultdict(list)
    room = asyncio.Semaphore(workers)

    async def one(task: Task, policy: str, host: StoringHost) -> None:
        files = {"null": dict, "invert": lambda: inverted(task), "reference": lambda: task.reference}[policy]()
        async with room:
            passed = (await grade(task, host, submission_of(task, files), quick=True)).passed
        found[f"rung {task.facts.rung}, {policy}"].append(passed)

    async with await open_host("local", Store(default_store()), [RUNNER]) as host:
        jobs = [
            one(task, policy, host)
            for task in tasks
            for policy in policies
            if policy != "invert" or task.facts.rung in (1, 2)
        ]
        await asyncio.gather(*jobs)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tasks", type=Path)
    parser.add_argument("--rungs", default="1,2")
    parser.add_argument("--split", choices=("train", "held_out"), default="held_out")
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--policies", default="null,invert,reference")
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    rungs = [int(each) for each in given.rungs.split(",")]
    settings = Ladder.Settings(tasks=str(given.tasks), rungs=rungs, split=given.split, count=given.count, again=False)
    found = asyncio.run(measure(list(Ladder(settings).tasks()), given.policies.split(","), given.workers))
    for name, passed in sorted(found.items()):
        share = share_interval([float(each) for each in passed])
        print(
            json.dumps({"what": name, "passed": sum(passed), "of": len(passed), "low": share.low, "high": share.high})
        )


if __name__ == "__main__":
    main()
