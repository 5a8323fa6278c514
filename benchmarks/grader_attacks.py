"""What the grader accepts: every known attack, every honest solution, and scripted policies over all kata families.

    python benchmarks/grader_attacks.py [--tasks 10] [--pytest-tasks 2] [--families 1] [--json]

Attacks act through the harness as a policy would and are graded as in training, in each of the grader's modes: the
tested code apart from the tests or together with them, unittest or pytest, or in an environment of its own as tasks of
real repositories are. The bar: no attack, null or stub is accepted anywhere; every reference is, three times.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

from etude.forge.katas.task_source import FAMILIES, katas
from etude.policies.scripted import Scripted
from etude.policies.table import make_policy
from etude.rollout.rollout import Outcome, Scored, build_setup, run_rollout
from etude.sandbox.hosts import StoringHost, open_host
from etude.tasks.format.config import Installed
from etude.tasks.format.task import Task
from etude.tasks.grade import grade
from etude.tasks.grading.grader import RUNNER
from etude.tasks.grading.submission import submission_of
from redteam.grader.made_tasks import pytest_environment
from redteam.grader.run import LIMITS, NAMES, PUBLISHED, grader_attack

MODES = (
    *(("unittest", "apart"), ("unittest", "together"), ("pytest", "apart"), ("pytest", "together")),
    ("pytest", "environment"),  # as a task that was made from a repository
)
HONEST = 3  # times each reference is graded


class Tally:
    """Who was accepted, and what the others were told."""

    def __init__(self) -> None:
        self.tried: Counter[str] = Counter()
        self.accepted: Counter[str] = Counter()
        self.kinds: dict[str, Counter[str]] = {}
        self.void: list[str] = []

    def add(self, name: str, outcome: Outcome) -> None:
        if not isinstance(outcome, Scored):
            self.void.append(f"{name}: {outcome.cause}: {outcome.message}")
            return
        self.tried[name] += 1
        self.accepted[name] += outcome.passed
        self.kinds.setdefault(name, Counter())[outcome.grade.kind] += 1


async def all_of(jobs: Iterable[Callable[[], Awaitable[None]]], at_once: int) -> None:
    waiting = iter(jobs)

    async def work() -> None:
        for job in waiting:
            await job()

    await asyncio.gather(*(work() for _ in range(at_once)))


async def attack_matrix(host: StoringHost, options: argparse.Namespace) -> dict[str, Any]:
    setup = build_setup(grader=LIMITS)
    installed = Installed(digest=pytest_environment(host.store), paths=["", "src"])
    tallies = {mode: Tally() for mode in MODES}
    honest = {mode: [0, 0] for mode in MODES}
    names = options.only or list(NAMES)
    jobs: list[Callable[[], Awaitable[None]]] = []
    for mode in MODES:
        suite, grading = mode
        if options.mode and grading not in options.mode:
            continue
        count = options.tasks if suite == "unittest" else options.pytest_tasks
        for task in katas("train", count, seed=11, suite=suite):  # type: ignore[arg-type]
            changed = {"grading": grading} if grading != "environment" else {"environment": installed}
            facts = task.facts.model_copy(update=changed)
            mine = dataclasses.replace(task, facts=facts)

            async def trust(mine: Task = mine, mode: tuple[str, str] = mode) -> None:
                for _ in range(HONEST):
                    found = await grade(mine, host, submission_of(mine, dict(mine.solution)))
                    honest[mode][0] += 1
                    honest[mode][1] += found.passed

            jobs.append(trust)
            for name in names:

                async def attack(mine: Task = mine, mode: tuple[str, str] = mode, name: str = name) -> None:
                    tallies[mode].add(name, await run_rollout(mine, Scripted(grader_attack(name, mine)), host, setup))

                jobs.append(attack)
    await all_of(jobs, options.at_once)
    rows = {
        f"{suite} {grading}": {
            "attacks_tried": sum(tally.tried.values()),
            "attacks_accepted": sum(tally.accepted.values()),
            "accepted": [name for name, count in tally.accepted.items() if count],
            "honest_tried": honest[suite, grading][0],
            "honest_accepted": honest[suite, grading][1],
            "void": tally.void,
            "kinds": {name: dict(kinds) for name, kinds in tally.kinds.items()},
        }
        for (suite, grading), tally in tallies.items()
    }
    return {"attacks": len(names), "published": len(PUBLISHED), "modes": rows}


async def policies_over_families(host: StoringHost, each: int, at_once: int) -> dict[str, Any]:
    """Scripted policies over every family of katas, those that are held out whole included."""
    setup = build_setup()
    tally = Tally()
    tasks: list[Task] = []
    for family in FAMILIES.values():
        split = "unseen" if family.unseen else "train"
        tasks += katas(split, each, seed=23, families=[family.name], levels=[family.level])  # type: ignore[arg-type]
        if not family.unseen:
            tasks += katas("held_out", each, seed=23, families=[family.name], levels=[family.level])
    sample = ("attack:equal-to-all", "attack:special-case", "attack:patched-run", "attack:forged-reward")
    jobs: list[Callable[[], Awaitable[None]]] = []
    for number, task in enumerate(tasks):
        for name in ("reference", "null", "stub", sample[number % len(sample)]):

            async def play(task: Task = task, name: str = name, seed: int = number) -> None:
                outcome = await run_rollout(task, make_policy(name, task, seed=seed), host, setup)
                tally.add(name if name in ("reference", "null", "stub") else "attack", outcome)
                if isinstance(outcome, Scored) and outcome.passed != (name == "reference"):
                    print(f"wrong: {name} on {task.name}: {outcome.grade.reason or 'accepted'}", file=sys.stderr)

            jobs.append(play)
    await all_of(jobs, at_once)
    return {
        "families": len(FAMILIES),
        "tasks": len(tasks),
        "void": tally.void,
        "policies": {
            name: {"tried": tally.tried[name], "solved": tally.accepted[name]}
            for name in ("reference", "null", "stub", "attack")
        },
    }


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        async with await open_host("local", Path(folder), [RUNNER]) as host:
            matrix = await attack_matrix(host, options)
            families = await policies_over_families(host, options.families, options.at_once) if options.families else {}
    modes = matrix["modes"].values()
    solved = families.get("policies", {})
    ok = all(
        not row["attacks_accepted"] and row["honest_accepted"] == row["honest_tried"] and not row["void"]
        for row in modes
    )
    if families:
        right = solved["reference"]["solved"] == solved["reference"]["tried"]
        ok = ok and right and not families["void"] and not any(solved[n]["solved"] for n in ("null", "stub", "attack"))
    return {**matrix, "policies": families, "seconds": round(time.monotonic() - started, 1), "ok": ok}


def show(result: dict[str, Any]) -> None:
    for mode, row in result["modes"].items():
        print(
            f"{mode:20} attacks accepted {row['attacks_accepted']} of {row['attacks_tried']}"
            f"   honest accepted {row['honest_accepted']} of {row['honest_tried']}   void {len(row['void'])}"
        )
        for line in [*row["accepted"], *row["void"]]:
            print(f"    {line}")
    for name, counts in result["policies"].get("policies", {}).items():
        print(f"{name:20} solved {counts['solved']} of {counts['tried']}")
    print(f"{result['attacks']} attacks, {result['published']} of them published; {result['seconds']} s", end="")
    print(f"; ok: {result['ok']}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=10, help="katas for each unittest mode")
    parser.add_argument("--pytest-tasks", type=int, default=2, help="katas for each pytest mode")
    parser.add_argument("--families", type=int, default=1, help="katas of each family and split; 0 leaves them out")
    parser.add_argument("--mode", nargs="*", default=[], help="apart, together, environment")
    parser.add_argument("--only", nargs="*", default=[], help="names of attacks")
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result = asyncio.run(measure(options))
    if options.json:
        print(json.dumps(result))
    else:
        show(result)
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
