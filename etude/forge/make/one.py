"""One candidate on its way to a task: tried, split, written, scrubbed, and sent through the gates.

Every way that does not lead to a task ends in `Refused`, with the same words for the same kind of trouble. Knows
nothing about the order of candidates or what came of others.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from etude.errors import EtudeError
from etude.forge.gates import pass_gates
from etude.forge.leaks.deleted import Deleted
from etude.forge.make import commits
from etude.forge.make.base import AnyWorld, Place
from etude.forge.make.baseline import Baseline
from etude.forge.make.candidate import Candidate, Origin
from etude.forge.make.choose import LEAST_TESTS
from etude.forge.make.hide import split
from etude.forge.make.trial import attempt
from etude.forge.make.wording import tell
from etude.forge.make.world import World
from etude.forge.make.write import write
from etude.forge.scrub import scrub
from etude.sandbox.base import Layer
from etude.sandbox.hosts import StoringHost
from etude.tasks.config import Register
from etude.tasks.format import WORKSPACE, Task

ORIGINS: Final[tuple[Origin, ...]] = ("deletion", "bug", "commit")
REGISTERS: Final[tuple[Register, ...]] = ("terse", "plain", "detailed")


@dataclass(frozen=True)
class Wanted:
    """What somebody asked for."""

    count: int
    out: Path
    seed: int = 0
    origins: tuple[Origin, ...] = ORIGINS
    registers: tuple[Register, ...] = REGISTERS
    workers: int = 2


@dataclass(frozen=True)
class Shop:
    """Where the work is done."""

    world: AnyWorld[Any]
    base: Baseline
    workspace: Layer
    host: StoringHost
    history: Path | None
    wanted: Wanted
    unsteady: set[str] = field(default_factory=set)  # green at first, and found otherwise since


@dataclass(frozen=True)
class Made:
    """A task that passed, in a folder that has no name of its own yet."""

    task: Task
    folder: Path


class Refused(Exception):
    """Why a candidate is no task."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.reason, self.detail = reason, detail


async def make_one(shop: Shop, candidate: Candidate, spent: dict[str, float]) -> Made:
    """A task below `wanted.out` under a hidden name. `spent` is told the seconds of each part."""
    world, wanted = shop.world, shop.wanted
    with _timed(spent, "trial"):
        trial = await attempt(world, shop.host, shop.workspace, candidate, shop.base.seconds, shop.unsteady)
    if trial.reason:
        raise Refused(trial.reason, trial.detail)
    rng = random.Random(f"{wanted.seed}/{candidate.key}")
    parted = split(world, candidate, trial.broken, rng, _own_tests(shop, candidate))
    if parted is None:
        raise Refused("too few tests can be held out")
    told = tell(world, candidate, parted, trial.said, rng)
    task = write(world, candidate, parted, trial.kept, told, rng.choice(wanted.registers), wanted.seed)
    folder = wanted.out / f".{task.name}.making"
    try:
        with _timed(spent, "write"):
            await asyncio.to_thread(_save, task, folder)
        await _judge(shop, candidate, folder, spent)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return Made(task, folder)


def _own_tests(shop: Shop, candidate: Candidate) -> Sequence[Place]:
    """A commit's own tests are the first to be held out."""
    if candidate.origin != "commit" or shop.history is None or not isinstance(shop.world, World):
        return ()
    return [Place(path, name) for path, name in commits.own_tests(shop.world, shop.history, candidate.how)]


def _save(task: Task, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    try:
        task.save(folder)
    except OSError as error:
        raise EtudeError(
            f"cannot write {folder.parent}: {error.strerror}; make room, the same command goes on"
        ) from error


async def _judge(shop: Shop, candidate: Candidate, folder: Path, spent: dict[str, float]) -> None:
    deleted = [Deleted(piece.path, piece.name, piece.source) for piece in candidate.pieces]
    with _timed(spent, "scrub"):
        scrubbed = await asyncio.to_thread(scrub, folder / WORKSPACE, deleted)
    if not scrubbed.clean:
        raise Refused("leak", "; ".join(f"{path}: {why}" for path, why in scrubbed.refused[:3]))
    verdict = await pass_gates(
        Task.load(folder),
        shop.world.environment,
        shop.host,
        green=[test for test in shop.base.green if test not in shop.unsteady],
        deleted=deleted,
        least_broken=LEAST_TESTS,
    )
    spent |= {f"gate {name}": seconds for name, seconds in verdict.spent.items()}
    shop.unsteady.update(verdict.unsteady)
    if not verdict.valid:
        raise Refused(verdict.reason, verdict.detail)


@contextmanager
def _timed(spent: dict[str, float], part: str) -> Iterator[None]:
    started = time.monotonic()
    yield
    spent[part] = spent.get(part, 0.0) + time.monotonic() - started
