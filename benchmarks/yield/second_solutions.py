"""Whether other right solutions of made tasks pass: the reference in other words, with seeds that no gate has used.

    python benchmarks/yield/second_solutions.py tasks/attrs [--each 2] [--json]     (ETUDE_STORE names another store)

For each task of code changes as many second solutions as asked for, which keep only what its instruction and its
workspace state, are graded as a rollout is. Those that fail are listed with the tests that they fail: each is a hidden
test that asks for what nobody could know, or a rewrite that is not right.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from pathlib import Path
from typing import Any

from etude.forge.languages.python.hidden_demands import Visible
from etude.forge.languages.python.second_solutions import second_solution
from etude.rollout.rollout import temporary_host
from etude.tasks.format.task import Task, given_tasks
from etude.tasks.grade import grade
from etude.tasks.grading.submission import submission_of

FIRST_SEED = 100  # the gate's begin at 0


def seen(task: Task) -> Visible:
    """All that the agent sees."""
    files = [path for path in task.workspace if task.workspace.size(path) < 1 << 20]
    texts = [task.instruction, *map(task.workspace.text, files)]
    return Visible(texts, frozenset(word for text in texts for word in re.findall(r"\w+", text)), "")


def solutions(task: Task, each: int) -> list[dict[str, bytes]]:
    """None for tasks that ask for something else than Python code."""
    deleted: dict[str, set[str]] = {}
    for path, _, name in (symbol.partition(":") for symbol in task.facts.deleted):
        deleted.setdefault(path, set()).add(name)
    reference = {path: task.solution[path] for path in task.solution if path.endswith(".py")}
    if not reference or not deleted or len(reference) < len(task.solution):
        return []
    visible = seen(task)
    return [second_solution(reference, deleted, visible, FIRST_SEED + number) for number in range(each)]


async def measure(folders: list[Path], each: int) -> dict[str, Any]:
    graded, failed = 0, []
    async with temporary_host("local") as host:
        for folder in folders:
            task = Task.load(folder)
            for number, files in enumerate(solutions(task, each)):
                found = await grade(task, host, submission_of(task, dict(files)))
                graded += 1
                if not found.passed:
                    wrong = [name for name, status in found.tests.items() if status != "passed"]
                    told = {"seed": FIRST_SEED + number, "why": found.reason, "tests": wrong[:5]}
                    failed.append({"task": task.name, **told})
                print(f"{task.name}, {number + 1}: {'passed' if found.passed else found.reason}", flush=True)
    return {"solutions": graded, "passed": graded - len(failed), "failed": failed}


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("tasks", type=Path, nargs="+")
    given.add_argument("--each", type=int, default=2)
    given.add_argument("--json", action="store_true")
    options = given.parse_args()
    found = asyncio.run(measure(given_tasks(options.tasks), options.each))
    print(json.dumps(found) if options.json else f"{found['passed']} of {found['solutions']} second solutions pass")


if __name__ == "__main__":
    main()
