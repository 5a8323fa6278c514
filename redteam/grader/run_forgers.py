"""Forgers on many tasks: none may be accepted, and what is right must be.

    python -m redteam --only forgers                               # the small package of `made_tasks`
    python -m redteam --only forgers --tasks DIR... --seeds 3      # made tasks, of as many packages as there are
    python -m redteam --only forgers --katas 40 --seeds 3          # katas, whose code runs apart from the tests

A seed decides what an attempt meets: the order of tests, the seed of hashes, what the grader draws, which of the
secret constants an oracle lacks and where the right value stands among those that it tries. With a journal every
attempt is a line of it as soon as it is known; started again with the same journal, the command goes on behind it.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from etude.core.settings import GraderSettings
from etude.forge.gates.attacks.base import Files as Changes
from etude.forge.gates.attacks.base import deleted
from etude.forge.gates.withheld_answers import secret_constants
from etude.forge.katas.task_source import katas
from etude.sandbox.base import SandboxFailure
from etude.sandbox.hosts import StoringHost
from etude.tasks.format.task import TESTS, Task
from etude.tasks.grade import grade
from etude.tasks.grading.equivalent_rewrites import rewritten
from etude.tasks.grading.grader import GraderFailure
from etude.tasks.grading.submission import submission_of
from etude.tasks.grading.withheld.answers import FILE
from redteam.grader.forgers import forgers, frozen_constant
from redteam.grader.kata_forgers import kata_forgers
from redteam.grader.made_tasks import LIMITS, recorded_small_task
from redteam.grader.refactoring_forgers import refactoring_forgers
from redteam.grader.test_twins import twins
from redteam.result import SuiteResult

MOST_SECRET = 2  # constants of a task that oracles are asked for, with each seed
MOST_LOOKED_FOR = 3  # that seeds choose from
KATAS_SEED = 19  # that katas are drawn with
PATIENT = GraderSettings(seconds=300, cpu_seconds=60)
KATA_LIMITS = GraderSettings(seconds=10, cpu_seconds=2, memory_mb=256, disk_mb=32)
HONEST = "honest"  # the family of what has to be accepted


@dataclass(frozen=True)
class Try:
    """One submission, and the conditions that it is graded under."""

    task: Task
    family: str
    name: str
    changes: Changes
    seed: int

    @property
    def key(self) -> str:
        return f"{self.task.name} {self.task.digest[:12]} {self.seed} {self.family} {self.name}"

    async def row(self, host: StoringHost) -> dict[str, Any]:
        """What came of it. A failure of the machinery is told and counts for nothing."""
        honest = self.family == HONEST
        row = {"key": self.key, "task": self.task.name, "package": package_of(self.task), "seed": self.seed}
        row |= {"family": self.family, "name": self.name}
        # A kata's tests run in any order, and its interpreter is warm: another one would cost more than all tests.
        again = self.seed if self.task.facts.environment is not None and self.seed else None
        rng = random.Random(self.key)
        submission = submission_of(self.task, self.changes)
        quick = not honest
        graded = partial(grade, self.task, host, submission, rng=rng, quick=quick, hash_seed=again, order=again)
        try:
            found = await graded(GraderSettings() if honest else limits_of(self.task))
            if found.kind == "time" and not honest:
                # On a busy machine that says little: it gets all the time that the task has.
                found = await graded(PATIENT)
        except (GraderFailure, SandboxFailure) as failure:
            return {**row, "void": f"{failure.cause}: {failure}"}
        told = {"passed": found.passed, "kind": found.kind, "reason": found.reason[:200]}
        return {**row, **told, "seconds": round(found.seconds, 2), "cpu_seconds": round(found.cpu_seconds, 2)}


@dataclass
class Journal:
    """What is known of attempts, by their keys; in a file where there is one."""

    path: Path | None = None
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path is not None and self.path.exists():
            for line in self.path.read_text().splitlines():
                try:
                    row = json.loads(line)
                except ValueError:  # a run was ended while it wrote
                    continue
                self.rows[row["key"]] = row

    def add(self, row: dict[str, Any]) -> None:
        if "void" not in row:  # the machinery's failure is tried again
            self.rows[row["key"]] = row
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps(row) + "\n")


@dataclass(frozen=True)
class Breadth:
    """How much is tried."""

    seeds: int = 1
    katas: int = 0
    families: Sequence[str] = ()  # only these
    control: bool = False  # also on tests that hold their answers: what the grader accepts that withholds nothing
    at_once: int = 1  # tasks
    journal: Path | None = None


ONCE = Breadth()


async def run_forgers(host: StoringHost, tasks: Sequence[Path] = (), breadth: Breadth = ONCE) -> SuiteResult:
    """Every forger, or those of some families, on each task with each seed; and the reference and a rewrite of it."""
    result, journal = SuiteResult("forgers"), Journal(breadth.journal)
    loaded = [Task.load(path) for path in tasks]
    if breadth.katas:
        loaded += katas("train", breadth.katas, seed=KATAS_SEED)
    loaded = loaded or [await recorded_small_task(host)]
    # All tasks with one seed before the next: a run that is ended has seen every task.
    units = [(task, seed) for seed in range(breadth.seeds) for task in loaded]
    waiting = iter(enumerate(units, 1))

    async def work() -> None:
        for number, (task, seed) in waiting:
            started, rows = time.monotonic(), [row async for row in _rows(task, seed, host, breadth, journal)]
            for row in rows:
                _count(result, row)
            took = f"{time.monotonic() - started:.0f} s"
            said = f"{len(rows)} graded, {len(result.missed)} forgers accepted so far"
            print(f"{number}/{len(units)} {task.name} seed {seed}: {said}, {took}", file=sys.stderr)

    await asyncio.gather(*(work() for _ in range(breadth.at_once)))
    return result


async def _rows(
    task: Task, seed: int, host: StoringHost, breadth: Breadth, journal: Journal
) -> AsyncIterator[dict[str, Any]]:
    """The rows of one task with one seed, known ones as they were."""
    lacking = await _lacking(task, seed, host, journal) if _has_oracles(task, breadth) else []
    for each in tries(task, seed, lacking):
        if not _chosen(each.family, breadth):
            continue
        if each.key not in journal.rows:
            row = await each.row(host)
            if breadth.control and each.family != HONEST:
                changed = replace(each, task=with_its_answers(task))
                row["control"] = bool((await changed.row(host)).get("passed"))
            journal.add(row)
            yield row
        else:
            yield journal.rows[each.key]


def _chosen(family: str, breadth: Breadth) -> bool:
    return not breadth.families or family in (HONEST, *breadth.families)


def _has_oracles(task: Task, breadth: Breadth) -> bool:
    return _chosen("oracle", breadth) and task.facts.refactor is None and task.facts.testing is None


async def _lacking(task: Task, seed: int, host: StoringHost, journal: Journal) -> list[int]:
    """The constants that oracles lack with this seed: what is secret is looked for once for each task."""
    key = f"{task.name} {task.digest[:12]} secret constants"
    if key not in journal.rows:
        found = []
        async for which in secret_constants(task, host, LIMITS):
            found.append(which)
            if len(found) == MOST_LOOKED_FOR:  # each costs the visible tests with 60 values
                break
        journal.add({"key": key, "secret": found})
    secret: list[int] = journal.rows[key]["secret"]
    chosen = random.Random(f"{task.name}/{seed}").sample(secret, len(secret))
    if not seed:
        return chosen[:MOST_SECRET]
    key = f"{key} {seed}"
    if key not in journal.rows:
        # The wrong value of another seed may be as good as the right one: a factor and its multiples, for example.
        wrong = [which for which in chosen if await _is_wrong(drawn(task, seed), which, host)]
        journal.add({"key": key, "secret": wrong})
    return list(journal.rows[key]["secret"])[:MOST_SECRET]


async def _is_wrong(task: Task, which: int, host: StoringHost) -> bool:
    frozen = frozen_constant(task, which)
    if frozen is None:
        return False
    return not (await grade(task, host, submission_of(task, frozen), limits_of(task), quick=True)).passed


def limits_of(task: Task) -> GraderSettings:
    return KATA_LIMITS if task.facts.environment is None else LIMITS


def drawn(task: Task, seed: int) -> Task:
    """Under another name the values that an oracle tries are others, in another order."""
    return replace(task, name=f"{task.name}/{seed}") if seed else task


def tries(task: Task, seed: int, lacking: Sequence[int]) -> Iterator[Try]:
    """What is right first, then every forger that has something to forge in this task."""
    for name, changes in right_solutions(task, seed).items():
        yield Try(task, HONEST, name, changes, seed)
    if task.facts.refactor is not None or task.facts.testing is not None:
        for family, edits in (("refactoring", refactoring_forgers(task)), ("twin", _twins(task))):
            for name, changes in edits.items():
                yield Try(task, family, name, changes, seed)
        return
    for family, members in (kata_forgers() if task.facts.environment is None else forgers()).items():
        for name, make in members.items():
            # Code that lacks nothing that tests ask for is right, and no forger.
            for which in lacking if family == "oracle" else [0]:
                made = make(drawn(task, seed), which)
                if made is not None:
                    yield Try(task, family, f"{name}, constant {which}" if family == "oracle" else name, made, seed)


def right_solutions(task: Task, seed: int) -> dict[str, Changes]:
    """The reference, and the same written differently where it is code."""
    found: dict[str, Changes] = {"reference": dict(task.reference)}
    rng = random.Random(f"{task.name}/{seed}")
    files: Changes = {}
    for path, data in task.reference.items():
        try:
            own = data is not None and path in deleted(task) and task.facts.testing is None
            files[path] = rewritten((data or b"").decode(), rng).encode() if own else data
        except (SyntaxError, UnicodeDecodeError):
            files[path] = data
    if files != found["reference"]:
        found["rewritten"] = files
    return found


def _twins(task: Task) -> dict[str, Changes]:
    asked = task.facts.testing
    return {name: {asked.file: text} for name, text in twins(task).items()} if asked is not None else {}


def with_its_answers(task: Task) -> Task:
    """The task as one whose tests hold their answers, graded in one process with the tested code."""
    facts = task.facts.model_copy(update={"grading": "together", "withheld": None})
    return replace(task, facts=facts, files=task.files.replaced({f"{TESTS}/{FILE}": None}))


def package_of(task: Task) -> str:
    """The package that a task was made from, as its provenance begins."""
    return "katas" if task.facts.environment is None else (task.facts.provenance or task.name).split()[0]


def _count(result: SuiteResult, row: dict[str, Any]) -> None:
    what = f"{row['task']} seed {row['seed']}: {row['family']}: {row['name']}"
    if "void" in row:
        result.broken.append(f"{what}: {row['void']}")
        return
    honest = row["family"] == HONEST
    for name in (row["family"],) if honest else (row["family"], f"package {row['package']}"):
        counts = result.rows.setdefault(name, {"tried": 0, "accepted": 0, "out of time": 0})
        counts["tried"] += 1
        counts["accepted"] += row["passed"]
        counts["out of time"] += row["kind"] == "time"
        if "control" in row:
            counts["control"] = counts.get("control", 0) + row["control"]
    if honest:
        result.false_alarms += [] if row["passed"] else [f"{what} is rejected: {row['reason']}"]
        return
    result.tried += 1
    result.missed += [what] if row["passed"] else []
