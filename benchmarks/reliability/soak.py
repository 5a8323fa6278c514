"""A long run in which everything fails now and then: does it hang, lose or double a group, or grow?

    python benchmarks/reliability/soak.py [--rollouts 100000] [--seconds 5400] [--seed 0] [--json]

The real dispatcher, admission, journal and records of turns carry scripted rollouts, without models and sandboxes, so
that many fit into an hour. One rollout in twenty loses its sandbox, one sample in five hundred its engine (and goes on
when that is back), one grade in a hundred is slow; orchestrator or learner die in one step of fifty and go on from the
last checkpoint; once the disk is full. Every group must be trained exactly once or be void. The memory that was held in
each tenth of the run is reported, at most, after the start has been let pass; and nothing is concluded from it. Killing
real processes is kill_loop.py's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from etude.core import process
from etude.core.errors import EtudeError
from etude.core.frame_calls import ConnectionLost
from etude.core.policy import Assistant, Context, Sample, Sampling, User, Version
from etude.core.rl_settings import RLSettings
from etude.core.terms import Terms
from etude.harness.trajectory import MessageRecord, Segment, Trajectory
from etude.rl.admission import Admission
from etude.rl.checkpoint import Checkpoint
from etude.rl.dispatcher import Dispatcher
from etude.rl.groups import RolloutGroup, Slot, slot_of, unpack
from etude.rl.journal import Journal
from etude.rollout.rollout import Outcome, Scored, Void
from etude.rollout.turn_records import RecordedPolicy, TurnRecords
from etude.tasks.format.task import Task
from etude.tasks.grading.submission import Submission
from etude.tasks.grading.verdict import Grade
from etude.tokens.native import Native
from etude.tokens.tokenizer import Tokenizer

GROUPS, GROUP, CONCURRENCY = 4, 8, 64
SAVE_EVERY = 5  # steps
LOST, SLOW = 0.05, 0.01  # shares of rollouts: sandbox gone, grader slow
GONE = 0.002  # share of samples whose engine dies
TURNS = 3


class Tasks:
    def tasks(self, start: int = 0) -> Iterator[Task]:
        number = start
        while True:
            yield Task(str(number), f"task {number}")
            number += 1


class Killed(Exception):
    """A process of the run died."""


class World:
    """Scripted rollouts with recorded turns, and what goes wrong with them."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.chance, self.folder = chance, folder
        self.dialect = Native(Tokenizer.train(["some text to learn from, and some more of it"], 300))
        self.records = TurnRecords(folder / "turns")
        self.counts: Counter[str] = Counter()
        self.journal: Journal | None = None
        self.version = Version(0, 0)

    async def sample(self, context: Context, sampling: Sampling, on_part: Callable[[Sample], None]) -> Sample:
        await asyncio.sleep(self.chance.random() * 0.002)
        self.counts["samples"] += 1
        ids = tuple(self.chance.randrange(65, 90) for _ in range(8))
        if self.chance.random() < GONE:
            self.counts["engines killed"] += 1
            on_part(Sample("", "abort", ids[:4], (-1.0,) * 4, (self.version,) * 4))
            raise ConnectionLost("the engine is gone")
        return Sample("", "stop", ids, (-1.0,) * 8, (self.version,) * 8)

    async def run_rollout(
        self, task: Task, seed: int, terms: Terms, on_grading: Callable[[], None], name: str
    ) -> Outcome:
        record = self.records.open(name)
        policy = RecordedPolicy(self.sample, record, patience=30.0)
        try:
            trajectory, segment = Trajectory(sampling=Sampling(temperature=1.0), stop="final"), Segment()
            trajectory.segments.append(segment)
            for turn in range(TURNS):
                segment.append(
                    [User(f"{task.instruction} {turn}")], [2 * turn], self.dialect, most=4000, open_turn=True
                )
                trajectory.entries.append(MessageRecord(User(task.instruction)))
                answer = await policy.sample(Context(ids=tuple(segment.ids)), Sampling(seed=seed + turn))
                segment.append_sample(answer, 2 * turn + 1, self.dialect)
                trajectory.entries.append(MessageRecord(Assistant(final="x"), stop="stop"))
                if self.chance.random() < LOST / TURNS:
                    self.counts["sandboxes lost"] += 1
                    return Void(task, "sandbox", True, "the sandbox died")
            on_grading()
            if self.chance.random() < SLOW:
                self.counts["slow grades"] += 1
                await asyncio.sleep(0.2)
            self.counts["kept turns"] += record.kept_tokens // 8
            grade = Grade(False, "tests", "it fails")
            return Scored(task, trajectory, Submission(), grade, self.chance.random(), {"tests": 0.0})
        finally:
            record.close()

    async def check_void(self, void: Void) -> None:
        self.counts["void tries"] += 1

    async def check_broken(self, number: int, scored: Any) -> None:
        return None


def slot(saved: Any, journal: Journal) -> Slot:
    data = journal.files.read(saved.file) if saved.file is not None else saved.data
    return Slot(saved.state, rollout=unpack(data) if data is not None else None)


async def lineage(world: World, number: int, checkpoint: Checkpoint, until: int, dies: float) -> tuple[Checkpoint, int]:
    """One life of the orchestrator: to the last step, or to a death at a random moment."""
    journal = Journal(world.folder / "journal.db", number)
    begun = {slot_of(name)[0] for name in world.records.names()}
    resumed = journal.resume(checkpoint.row, checkpoint.step, begun, until)
    settings = RLSettings(groups=GROUPS, group=GROUP, concurrency=CONCURRENCY, staleness=2, steps=until)
    step, voids = checkpoint.step, 0
    world.version = Version(number, step)
    try:
        async with asyncio.TaskGroup() as tasks:
            dispatcher = Dispatcher(
                settings,
                Admission(settings.staleness, settings.groups, settings.steps),
                journal,
                Tasks(),
                world,
                tasks,
                seed=0,
                step=step,
                groups=[
                    RolloutGroup(at, began, [slot(each, journal) for each in slots])
                    for at, (began, slots) in sorted(resumed.groups.items())
                ],
                next_group=resumed.next,
                replays=resumed.replays,
                on_settled=world.records.remove,
            )
            dispatcher.fill()
            while step < until:
                dispatcher.changed.clear()
                if (groups := dispatcher.take()) is None:
                    await asyncio.wait_for(dispatcher.changed.wait(), 60)
                    continue
                trained = [(g.number, [i for i, s in enumerate(g.slots) if s.rollout is not None]) for g in groups]
                journal.trained(trained, step + 1)
                step += 1
                world.version = Version(number, step)
                dispatcher.publish(step)
                if step % SAVE_EVERY == 0 or step == until:
                    checkpoint = Checkpoint(step, journal.row)
                    journal.sync()
                    journal.forget(checkpoint.row)
                if world.chance.random() < dies:
                    raise Killed
            voids = sum(count for cause, count in dispatcher.voids.items() if cause != "group")
            await dispatcher.stop()
            dispatcher.close()
    except* Killed:
        world.counts["learner or orchestrator killed"] += 1
    finally:
        journal.close()
    return checkpoint, voids


def full_disk(world: World, checkpoint: Checkpoint, number: int) -> None:
    """Once, the journal and the records cannot be written: a sentence, and nothing is lost."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    journal = Journal(world.folder / "journal.db", number)
    size = (world.folder / "journal.db-wal").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (max(1, size), hard))
    try:
        with suppress(EtudeError):
            for _ in range(2000):
                journal.edition(99, {"filler": "x" * 5000})
            raise SystemExit("a full disk was not noticed")
        world.counts["full disks"] += 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        journal.close()


def audit(folder: Path, steps: int) -> dict[str, Any]:
    base = sqlite3.connect(folder / "journal.db")
    starts = base.execute("SELECT lineage, row FROM lineages").fetchall()
    surviving: Counter[tuple[int, int]] = Counter()
    by_step: dict[int, set[int]] = {}
    void = set()
    for row, of, number, place, state, step in base.execute(
        "SELECT row, lineage, number, slot, state, step FROM changes ORDER BY row"
    ):
        if state == "void" and place < 0:
            void.add(number)
        if state == "trained" and all(row <= at for later, at in starts if later > of):
            surviving[number, place] += 1
            by_step.setdefault(step, set()).add(number)
    base.close()
    trained = {number for number, _ in surviving}
    return {
        "twice": sorted({number for (number, _), times in surviving.items() if times > 1}),
        "skipped": sorted(set(range(max(trained, default=0))) - trained - void)[:10],
        "odd_steps": [step for step in range(1, steps + 1) if len(by_step.get(step, ())) != GROUPS],
        "groups": len(trained),
        "void_groups": len(void),
    }


def megabytes() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


async def soak(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    world = World(folder, random.Random(options.seed))
    began, checkpoint, number = time.monotonic(), Checkpoint(), 0
    steps = max(SAVE_EVERY, options.rollouts // (GROUPS * GROUP))
    held: list[float] = []
    reached, disk = 0, False
    while checkpoint.step < steps and time.monotonic() - began < options.seconds:
        # In pieces, so that the time limit is looked at and memory is read.
        until = min(steps, checkpoint.step + 10 * SAVE_EVERY)
        checkpoint, _ = await lineage(world, number, checkpoint, until, dies=0.02)
        number += 1
        held.append(megabytes())
        reached = checkpoint.step
        if not disk and reached > steps // 2:
            disk = True
            full_disk(world, checkpoint, number)
            number += 1
    found = audit(folder, reached)
    # The first life loads code and fills what is kept for good.
    tenth = max(1, -(-len(held[1:]) // 10))
    tenths = [round(max(held[at : at + tenth]), 1) for at in range(1, len(held), tenth)]
    return {
        "ok": reached > 0 and not found["twice"] and not found["skipped"] and not found["odd_steps"],
        "steps": reached,
        "rollouts": reached * GROUPS * GROUP,
        "lives": number,
        **found,
        **world.counts,
        "mb_by_tenth": tenths,
        "seconds": round(time.monotonic() - began, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rollouts", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=5400.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    process.stay_small()  # as the orchestrator does
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        result = asyncio.run(soak(options, Path(folder)))
    print(json.dumps(result) if options.json else "\n".join(f"{k:>30}  {v}" for k, v in result.items()))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
