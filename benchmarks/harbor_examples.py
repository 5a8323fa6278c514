"""Whether tasks of other people in Harbor's format load and run here. Prints a row for each, and one JSON object.

    python benchmarks/harbor_examples.py DIR... [--base IMAGE] [--timeout SECONDS]

Each DIR is a task, or a folder of tasks. Per task: whether `Task.load` reads it, whether its image is built, the
reward of its own solution/solve.sh and the reward of doing nothing, both as its tests/test.sh tells. `--base` replaces
the image that a Dockerfile starts from, for a machine that reaches no registry, and leaves out the steps that would
need one (`RUN apt-get ...`); a row says so. Needs docker or podman.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from etude.core.errors import EtudeError
from etude.sandbox.hosts import open_host
from etude.tasks.format.task import Task, given_tasks
from etude.tasks.grade import grade
from etude.tasks.grading.submission import Submission
from etude.tasks.kinds.foreign_script import ForeignScript, solve

DOCKERFILES = ("environment/Dockerfile", "tests/Dockerfile")


def rebased(task: Task, base: str) -> Task:
    """The task with another image to start from, and without installing what is not within reach."""
    changes: dict[str, bytes | None] = {DOCKERFILES[0]: f"FROM {base}\nWORKDIR /app\n".encode()}
    for path in DOCKERFILES:
        if path in task.files:
            text = re.sub(r"\\\n", " ", task.files.text(path))
            text = re.sub(r"(?im)^FROM\s+(--\S+\s+)*\S+", f"FROM {base}", text)
            text = re.sub(r"(?im)^RUN .*\b(apt-get|apt|apk|pip3?|curl|wget|uv)\b.*$", "", text)
            changes[path] = text.encode()
    return Task(task.name, task.instruction, task.config, task.facts, task.files.replaced(changes))


async def examine(folder: Path, host: Any, base: str, seconds: float) -> dict[str, Any]:
    row: dict[str, Any] = {"task": str(folder), "loads": False, "builds": False, "oracle": None, "null": None}
    try:
        task = Task.load(folder)
        row["loads"] = True
        if base:
            task, row["base"] = rebased(task, base), base
        if not ForeignScript().owns(task):
            row["note"] = "it has no tests/test.sh, or names tests of ours"
            return row
        async with asyncio.timeout(seconds):
            await ForeignScript().start(task, host)
            row["builds"] = True
            found = await grade(task, host, Submission())
            row["null"] = 1.0 if found.passed else found.details.get("reward", found.reason)
            if task.script("solution", "solve") is None:
                row["note"] = "it has no solution"
                return row
            changes, ended = await solve(task, host)
            found = await grade(task, host, changes)
            row["oracle"] = 1.0 if found.passed else found.details.get("reward", found.reason)
            if not ended.ok:
                row["note"] = f"solve.sh ended with {ended.code}"
    except TimeoutError:
        row["note"] = f"not done within {seconds:g} s"
    except EtudeError as error:
        row["note"] = str(error)
    return row


async def work(roots: list[Path], base: str, seconds: float) -> list[dict[str, Any]]:
    rows = []
    with tempfile.TemporaryDirectory(prefix="etude-harbor-") as store:
        async with await open_host("docker", Path(store)) as host:
            for folder in given_tasks(roots):
                row = await examine(folder, host, base, seconds)
                rows.append(row)
                told = f"{folder.name}: loads {row['loads']}, builds {row['builds']}, oracle {row['oracle']}"
                print(f"{told}, null {row['null']}" + (f" ({row['note']})" if "note" in row else ""), file=sys.stderr)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--base", default="", help="image to start from instead of the task's")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds for one task")
    given = parser.parse_args()
    try:
        rows = asyncio.run(work(given.folders, given.base, given.timeout))
    except EtudeError as error:
        print(json.dumps({"ok": False, "error": str(error)}))
        return 1
    solved = [row for row in rows if row["oracle"] == 1.0 and row["null"] != 1.0]
    print(json.dumps({"ok": bool(rows), "tasks": len(rows), "solved_and_not_by_nothing": len(solved), "rows": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
