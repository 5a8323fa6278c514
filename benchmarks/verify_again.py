"""Whether valid tasks stay valid under other conditions: hash seed, time zone, order of tests, load, another date.

    python benchmarks/verify_again.py DIR... [--most 100] [--at-once 2] [--load 8] [--save FILE] [--json]

Each task's reference must be accepted and doing nothing rejected, first as the machine is, then under each condition.
Tasks that are not valid to begin with are named and left out. The bar: 99% of all verdicts are the same.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from etude.core.progress import track
from etude.core.settings import GraderSettings
from etude.forge.environments.fake_clock import clock_layer, clock_variables
from etude.rollout.rollout import temporary_host
from etude.sandbox.base import Layer
from etude.sandbox.hosts import StoringHost
from etude.tasks.format.task import Task, given_tasks
from etude.tasks.grade import grade
from etude.tasks.grading.submission import submission_of

BAR = 0.99
DATE = "2031-02-28"
ZONES = ("Pacific/Kiritimati", "America/St_Johns")


@dataclass(frozen=True)
class Condition:
    """What is other than usual."""

    name: str
    hash_seed: int | None = None
    order: int | None = None
    env: dict[str, str] = field(default_factory=dict)
    over: tuple[Layer, ...] = ()
    loaded: bool = False


def conditions(host: StoringHost) -> list[Condition]:
    return [
        Condition("hash seed 11", hash_seed=11),
        Condition("hash seed 4242", hash_seed=4242),
        *(Condition(zone, env={"TZ": zone}) for zone in ZONES),
        Condition("order 1", order=1),
        Condition("order 2", order=2),
        Condition("parallel load", loaded=True),
        Condition(DATE, hash_seed=0, env=clock_variables(DATE), over=(clock_layer(host.store),)),
    ]


async def verdict(task: Task, host: StoringHost, condition: Condition, settings: GraderSettings) -> str:
    """ "valid", or what is wrong."""
    given: dict[str, Any] = {"hash_seed": condition.hash_seed, "order": condition.order}
    given |= {"env": condition.env, "over": condition.over}
    solved = await grade(task, host, submission_of(task, task.reference), settings, **given)
    if not solved.passed:
        return f"the reference is rejected: {solved.reason}"
    null = await grade(task, host, (), settings, quick=True, **given)
    return "doing nothing is accepted" if null.passed else "valid"


async def in_parallel(
    tasks: Sequence[Task], at_once: int, ask: Callable[[Task], Awaitable[str]], done: Callable[[], None]
) -> dict[str, str]:
    room = asyncio.Semaphore(at_once)

    async def one(task: Task) -> tuple[str, str]:
        async with room:
            found = await ask(task)
        done()
        return task.name, found

    return dict(await asyncio.gather(*map(one, tasks)))


async def measure(tasks: Sequence[Task], at_once: int, load: int) -> dict[str, Any]:
    settings = GraderSettings(seconds=300)  # a limit that a busy machine reaches would tell about the machine
    started = time.monotonic()
    async with temporary_host("local") as host:
        others = conditions(host)
        with track("verifying", total=len(tasks) * (1 + len(others)), unit="verdicts") as bar:

            async def under(condition: Condition, of: Sequence[Task]) -> dict[str, str]:
                width = load if condition.loaded else at_once
                return await in_parallel(
                    of, width, lambda task: verdict(task, host, condition, settings), lambda: bar.advance(1)
                )

            first = await under(Condition("as it is"), tasks)
            valid = [task for task in tasks if first[task.name] == "valid"]
            found = {condition.name: await under(condition, valid) for condition in others}
    changed = {
        f"{task}, {name}": said
        for name, verdicts in found.items()
        for task, said in verdicts.items()
        if said != "valid"
    }
    asked = len(valid) * len(others)
    same = {name: sum(said == "valid" for said in verdicts.values()) for name, verdicts in found.items()}
    unsteady = {name.partition(", ")[0] for name in changed}
    return {
        "tasks": len(valid),
        "not_valid_at_first": {name: said for name, said in first.items() if said != "valid"},
        "verdicts": asked,
        "same": round(sum(same.values()) / asked, 5) if asked else 0.0,
        "same_under": same,
        "steady_tasks": round(1 - len(unsteady) / len(valid), 5) if valid else 0.0,
        "changed": changed,
        "seconds": round(time.monotonic() - started, 1),
    }


def found_tasks(directories: Iterable[Path], most: int, seed: int) -> list[Task]:
    folders = given_tasks(directories)
    random.Random(seed).shuffle(folders)
    return [Task.load(folder) for folder in folders[:most]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directories", nargs="+", type=Path)
    parser.add_argument("--most", type=int, default=100, help="tasks, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--load", type=int, default=8, help="gradings at once under load")
    parser.add_argument("--save", type=Path)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    tasks = found_tasks(given.directories, given.most, given.seed)
    figures = asyncio.run(measure(tasks, given.at_once, given.load))
    figures["ok"] = bool(figures["tasks"]) and figures["same"] >= BAR
    if given.save:
        given.save.write_text(json.dumps(figures, indent=1) + "\n")
    if given.json:
        print(json.dumps(figures))
    else:
        for name, count in figures["same_under"].items():
            print(f"{name:24} {count} of {figures['tasks']}")
        for name, said in {**figures["not_valid_at_first"], **figures["changed"]}.items():
            print(f"  {name}: {said[:200]}")
        print(f"{figures['same']:.2%} of {figures['verdicts']} verdicts are the same (bar {BAR:.0%})")
    return 0 if figures["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
