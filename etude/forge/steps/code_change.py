"""One candidate on its way to a task: tried, split, written, scrubbed, and sent through the gates.

Every way that does not lead to a task ends in `Refused`, with the same words for the same kind of trouble. Knows
nothing about the order of candidates or what came of others.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from etude.core.errors import EtudeError
from etude.forge.environments.suite_run import SuiteRun, run_suite
from etude.forge.gates.gates import ANOTHER, pass_gates
from etude.forge.gates.near_duplicates import KnownTasks
from etude.forge.languages.base import Repository, TestFunction
from etude.forge.languages.python.repository import PythonRepository
from etude.forge.leaks.audit import audit_leaks
from etude.forge.leaks.deleted_code import Deleted
from etude.forge.leaks.scrub import scrub
from etude.forge.origins.commit import propose as commits
from etude.forge.steps.baseline import Baseline
from etude.forge.steps.candidate import Candidate, Origin, RemovedCode
from etude.forge.steps.choose_functions import LEAST_TESTS
from etude.forge.steps.hide_tests import split
from etude.forge.steps.instructions import tell
from etude.forge.steps.trial import attempt
from etude.forge.steps.write import write
from etude.sandbox.base import Layer
from etude.sandbox.hosts import StoringHost
from etude.tasks.environment.layers import task_layers
from etude.tasks.format.config import PromptStyle
from etude.tasks.format.files import Files
from etude.tasks.format.task import WORKSPACE, Task
from etude.tasks.grading.check import check

if TYPE_CHECKING:
    from etude.forge.origins.packaging.make import Release

ORIGINS: Final[tuple[Origin, ...]] = ("deletion", "bug", "commit")
PROMPT_STYLES: Final[tuple[PromptStyle, ...]] = ("terse", "plain", "detailed")


@dataclass(frozen=True)
class MakeRequest:
    """What somebody asked for."""

    count: int
    out: Path
    seed: int = 0
    origins: tuple[Origin, ...] = ORIGINS
    prompt_styles: tuple[PromptStyle, ...] = PROMPT_STYLES
    workers: int = 2


@dataclass(frozen=True)
class MakeContext:
    """Where the work is done."""

    world: Repository[Any]
    base: Baseline
    workspace: Layer
    host: StoringHost
    history: Path | None
    wanted: MakeRequest
    unsteady: set[str] = field(default_factory=set)  # nobody's judges: taking the time, or found red since
    known: KnownTasks = field(default_factory=KnownTasks)  # tasks that were made
    release: Release | None = None  # the same repository as something that is built

    @property
    def python(self) -> PythonRepository:
        """The same world, for those who only know Python."""
        assert isinstance(self.world, PythonRepository)
        return self.world


@dataclass(frozen=True)
class MadeTask:
    """A task that passed, in a folder that has no name of its own yet."""

    task: Task
    folder: Path


class Refused(Exception):
    """Why a candidate is no task."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.reason, self.detail = reason, detail


class Missed(Exception):
    """A test fails that was not expected to, and so did not run when the candidate was tried."""


async def make_one(shop: MakeContext, candidate: Candidate, spent: dict[str, float]) -> MadeTask:
    """A task below `wanted.out` under a hidden name. `spent` is told the seconds of each part."""
    try:
        return await _make(shop, candidate, spent, whole=False)
    except Missed:
        return await _make(shop, candidate, spent, whole=True)


async def _make(shop: MakeContext, candidate: Candidate, spent: dict[str, float], *, whole: bool) -> MadeTask:
    world, wanted = shop.world, shop.wanted
    with timed(spent, "trial"):
        trial = await attempt(
            world, shop.host, shop.workspace, candidate, shop.base.seconds, shop.unsteady, whole=whole
        )
    if trial.reason:
        raise Refused(trial.reason, trial.detail)
    rng = random.Random(f"{wanted.seed}/{candidate.key}")
    parted = split(world, candidate, trial.broken, rng, _own_tests(shop, candidate))
    if parted is None:
        raise Refused("too few tests can be held out")
    told = tell(world, candidate, parted, trial.said, rng)
    task = write(world, candidate, parted, trial.kept, told, rng.choice(wanted.prompt_styles), wanted.seed)
    try:
        async with being_made(shop, task, spent) as folder:
            deleted = [Deleted(piece.path, piece.name, piece.source) for piece in candidate.pieces]
            await scrub_all(folder, deleted, spent)
            await judge_by_gates(shop, folder, spent, green=shop.base.green, deleted=deleted, whole=world.files)
    except Refused as error:
        if error.reason == ANOTHER and not trial.whole:
            raise Missed from error
        raise
    return MadeTask(task, folder)


def _own_tests(shop: MakeContext, candidate: Candidate) -> Sequence[TestFunction]:
    """A commit's own tests are the first to be held out."""
    if candidate.origin != "commit" or shop.history is None:
        return ()
    return [TestFunction(path, name) for path, name in commits.own_tests(shop.world, shop.history, candidate.how)]


def save(task: Task, folder: Path) -> None:
    """Writes a task where another of the same name may lie half made."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        task.save(folder)
    except OSError as error:
        raise EtudeError(
            f"cannot write {folder.parent}: {error.strerror}; make room, the same command goes on"
        ) from error


@asynccontextmanager
async def being_made(shop: MakeContext, task: Task, spent: dict[str, float]) -> AsyncIterator[Path]:
    """A folder with the task, under a hidden name; gone again where it turns out to be none."""
    folder = shop.wanted.out / f".{task.name}.making"
    try:
        with timed(spent, "write"):
            await asyncio.to_thread(save, task, folder)
        yield folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


async def scrub_all(folder: Path, deleted: Sequence[Deleted], spent: dict[str, float]) -> None:
    """Caches, history, and every copy of what was deleted; one that cannot go is a leak."""
    with timed(spent, "scrub"):
        scrubbed = await asyncio.to_thread(scrub, folder / WORKSPACE, deleted)
    if not scrubbed.clean:
        raise Refused("leak", "; ".join(f"{path}: {why}" for path, why in scrubbed.refused[:3]))


async def judge_by_gates(
    shop: MakeContext,
    folder: Path,
    spent: dict[str, float],
    *,
    green: Collection[str],
    deleted: Sequence[Deleted],
    whole: Files | None = None,
    release: Release | None = None,
) -> None:
    """The gates of an edit, in the environment of the repository or of its release."""
    environment = (release or shop).world.environment
    unsteady = (release or shop).unsteady
    verdict = await pass_gates(
        Task.load(folder),
        environment,
        shop.host,
        green=[test for test in green if test not in unsteady],
        deleted=deleted,
        whole=whole,
        near_duplicate=shop.known.near_duplicate,
        least_broken=LEAST_TESTS,
    )
    for name, seconds in verdict.spent.items():
        spent[f"gate {name}"] = spent.get(f"gate {name}", 0.0) + seconds
    unsteady.update(verdict.unsteady)
    if not verdict.valid:
        raise Refused(verdict.reason, verdict.detail)


async def search_copies(shop: MakeContext, folder: Path, pieces: Sequence[RemovedCode]) -> None:
    """Scrubs the workspace of a task, and refuses it where a copy of these pieces is left for the agent to find."""
    deleted = [Deleted(piece.path, piece.name, piece.source) for piece in pieces]
    scrubbed = await asyncio.to_thread(scrub, folder / WORKSPACE, deleted)
    if not scrubbed.clean:
        raise Refused("leak", "; ".join(f"{path}: {why}" for path, why in scrubbed.refused[:3]))
    leaks = await audit_leaks(shop.host, task_layers(Task.load(folder), shop.host), deleted)
    if leaks:
        raise Refused("leak", "; ".join(str(leak) for leak in leaks[:3]))


async def judge_by_check(shop: MakeContext, folder: Path, spent: dict[str, float]) -> None:
    """The gates of a task that is no edit of the code: all that `etude tasks check` asks."""
    with timed(spent, "check"):
        report = await check(Task.load(folder), shop.host)
    if report.errors:
        raise Refused(f"lint: {report.errors[0].rule}", str(report.errors[0]))
    for trial in report.trials:
        if not trial.ok:
            wrong = "the grader rejects the reference" if trial.wanted == "accepted" else "a cheat is accepted"
            raise Refused(wrong, str(trial))


async def failing(
    shop: MakeContext, changes: Mapping[str, bytes | None], expected: Collection[str] = (), gone: Collection[str] = ()
) -> list[str]:
    """Green tests that fail with these changes made, but for those that are `gone` with them. One that was not expected
    to is asked again, and is nobody's judge from then on if it passes."""
    world, timeout = shop.world, 5 * shop.base.seconds + 30

    async def run(tests: Sequence[str] | None) -> SuiteRun:
        return await run_suite(
            shop.host, world.environment, shop.workspace, changes=changes, tests=tests, timeout=timeout
        )

    whole = await run(None)
    if not whole.complete:
        raise Refused("the suite does not come to its end", whole.reason)
    failed = [test for test in world.green if test not in whole.passed and test not in gone]
    if doubtful := [test for test in failed if test not in expected and test not in shop.unsteady]:
        shop.unsteady.update((await run(doubtful)).passed.intersection(doubtful))
    return [test for test in failed if test not in shop.unsteady]


@contextmanager
def timed(spent: dict[str, float], part: str) -> Iterator[None]:
    """Adds the seconds of a part of the way."""
    started = time.monotonic()
    yield
    spent[part] = spent.get(part, 0.0) + time.monotonic() - started
