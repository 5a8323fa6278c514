"""What it costs to grade made tasks whose tests hold no answers, against the same tests with them.

    python benchmarks/grading_cost.py DIR... [--rounds 3] [--json]

The reference of each task is graded both ways in turns. Processor seconds are compared, since a busy machine stretches
the clock's. The bar: 1.3 times over all tasks together. A task whose reference is rejected one way is named and left
out.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from etude.core.progress import track
from etude.core.settings import GraderSettings
from etude.rollout.rollout import temporary_host
from etude.tasks.format.task import Task, given_tasks
from etude.tasks.grade import grade
from etude.tasks.grading.submission import submission_of
from redteam.grader.run_forgers import with_its_answers

BAR = 1.3
LIMITS = GraderSettings(seconds=300)  # a limit that a busy machine reaches would tell about the machine


async def measure(tasks: list[Task], rounds: int) -> dict[str, Any]:
    rows: dict[str, dict[str, float]] = {}
    rejected: dict[str, str] = {}
    async with temporary_host("local") as host:
        with track("grading", total=len(tasks) * rounds, unit="tasks") as bar:
            for task in tasks:
                ways = {"withheld": task, "held": with_its_answers(task)}
                found: dict[str, list[float]] = {name: [] for name in ways}
                for number in range(rounds):
                    for name in sorted(ways, reverse=bool(number % 2)):
                        one = await grade(ways[name], host, submission_of(task, task.reference), LIMITS)
                        found[name].append(one.cpu_seconds)
                        if not one.passed:
                            rejected[task.name] = f"{name}: {one.reason}"
                    bar.advance(1)
                if task.name not in rejected:
                    rows[task.name] = {name: round(statistics.median(each), 4) for name, each in found.items()}
    total = {name: round(sum(row[name] for row in rows.values()), 3) for name in ("withheld", "held")}
    times = round(total["withheld"] / total["held"], 3) if rows else 0.0
    return {"tasks": len(rows), "times": times, **total, "rejected": rejected, "rows": rows}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directories", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    tasks = [Task.load(folder) for folder in given_tasks(given.directories)]
    figures = asyncio.run(measure([task for task in tasks if task.facts.withheld is not None], given.rounds))
    figures["ok"] = bool(figures["tasks"]) and figures["times"] <= BAR
    if given.json:
        print(json.dumps(figures))
    else:
        for name, row in figures["rows"].items():
            print(f"{name:50} {row['withheld']:8.3f} s without answers, {row['held']:8.3f} s with them")
        for name, why in figures["rejected"].items():
            print(f"  {name} is left out: {why[:200]}")
        print(f"{figures['times']:.2f} times the processor seconds over {figures['tasks']} tasks (bar {BAR})")
    return 0 if figures["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
