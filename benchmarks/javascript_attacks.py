"""Attacks on JavaScript tasks: the reference, doing nothing, and every attack, graded as training would.

python benchmarks/javascript_attacks.py TASKS... [--most 10] [--store DIR] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections import Counter
from pathlib import Path

from etude.sandbox.hosts import open_host
from etude.sandbox.store.layers import Store, default_store
from etude.tasks.format.task import Task, given_tasks
from etude.tasks.grade import grade
from etude.tasks.grading.grader import RUNNER
from etude.tasks.grading.submission import submission_of
from redteam.grader.javascript_attacks import javascript_attacks


async def measure(folders: list[Path], most: int, store: Path) -> dict[str, object]:
    tasks = [task for task in map(Task.load, given_tasks(folders)) if task.facts.suite == "node"][:most]
    accepted: list[str] = []
    kinds: Counter[str] = Counter()
    honest = tried = 0
    started = time.monotonic()
    async with await open_host("local", Store(store), [RUNNER]) as host:
        for task in tasks:
            found = await grade(task, host, submission_of(task, dict(task.solution)))
            honest += found.passed
            print(f"{task.name}: the reference {'is accepted' if found.passed else found.reason}", flush=True)
            for name, files in {"doing nothing": {}, **javascript_attacks(task)}.items():
                found = await grade(task, host, submission_of(task, files), quick=True)
                tried += 1
                kinds[f"{name}: {found.kind}"] += 1
                if found.passed:
                    accepted.append(f"{task.name}: {name}")
                    print(f"ACCEPTED {accepted[-1]}", flush=True)
    return {
        "ok": not accepted and honest == len(tasks),
        "tasks": len(tasks),
        "honest": honest,
        "attacks": tried,
        "accepted": accepted,
        "kinds": dict(sorted(kinds.items())),
        "seconds": round(time.monotonic() - started, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tasks", nargs="+", type=Path)
    parser.add_argument("--most", type=int, default=10)
    parser.add_argument("--store", type=Path, default=default_store())
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    found = asyncio.run(measure(asked.tasks, asked.most, asked.store))
    if asked.json:
        print(json.dumps(found))
    else:
        print(f"{found['honest']} of {found['tasks']} references accepted", end="; ")
        print(f"attacks accepted: {found['accepted'] or 'none'}")
        print(f"{found['attacks']} answers graded in {found['seconds']} s: {found['kinds']}")
    raise SystemExit(0 if found["ok"] else 1)


if __name__ == "__main__":
    main()
