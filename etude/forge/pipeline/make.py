"""From a repository to verified tasks: candidates proposed, tried, written, scrubbed, and passed through the gates.

Candidates come in an order that follows from the repository and the seed alone. Several are worked on at once, and
what came of them is settled in their order, so that the same seed gives the same tasks however busy the machine is.
Every rejection is journalled with its reason; a killed command goes on where it was.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import shutil
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from etude.core.durable import remove_folder
from etude.core.errors import EtudeError
from etude.forge.environments.environment import Environment
from etude.forge.gates.near_duplicates import KnownTasks
from etude.forge.install.checkout import Repo
from etude.forge.languages.javascript import bugs as script_bugs
from etude.forge.languages.javascript import deletions as scripts
from etude.forge.languages.javascript.repository import JavaScriptRepository
from etude.forge.languages.python import bugs
from etude.forge.languages.python.repository import PythonRepository
from etude.forge.languages.python.tests import timing_tests
from etude.forge.origins.commit import propose as commits
from etude.forge.origins.deletion import propose as delete
from etude.forge.origins.docstrings import propose as documented
from etude.forge.origins.docstrings.make import make_documentation
from etude.forge.origins.packaging import propose as packaging
from etude.forge.origins.packaging.make import make_release, open_release
from etude.forge.origins.question import propose as questions
from etude.forge.origins.question.make import make_question
from etude.forge.origins.refactoring.make import make_refactoring
from etude.forge.origins.refactoring.propose import refactorings
from etude.forge.origins.test_writing import propose as untested
from etude.forge.origins.test_writing.make import make_testing
from etude.forge.pipeline.journal import Journal, JournalEntry
from etude.forge.steps.baseline import baseline
from etude.forge.steps.candidate import Candidate, Origin
from etude.forge.steps.code_change import MadeTask, MakeContext, MakeRequest, Refused, make_one
from etude.forge.steps.write import VERSION
from etude.sandbox.base import SandboxFailure
from etude.sandbox.hosts import StoringHost
from etude.tasks.format.config import Facts
from etude.tasks.format.files import Files
from etude.tasks.format.task import Task
from etude.tasks.kinds.test_writing import mutants

Propose = Callable[[random.Random], Iterator[Candidate]]
Way = Callable[[MakeContext, Candidate, dict[str, float]], Awaitable[MadeTask]]

# Who proposes next, again and again.
TURN: Final[tuple[Origin, ...]] = (
    "deletion",
    *("bug", "deletion", "commit", "question", "testing", "documentation", "refactor", "devops"),
)
SCRIPTED: Final[tuple[Origin, ...]] = ("deletion", "bug", "commit")  # what can be made of JavaScript
# Each kind of outcome has its own way, where it is no change that brings features back.
WAYS: Final[dict[Origin, Way]] = {
    "question": make_question,
    "testing": make_testing,
    "documentation": make_documentation,
    "refactor": make_refactoring,
    "devops": make_release,
}
LONGEST: Final = 300  # characters of a detail that are kept
DRY: Final = 150  # candidates in a row without a task, after which a repository has no more
AHEAD: Final = 2  # candidates under way beyond those that run, so that a slow one keeps nobody waiting


async def make_tasks(
    repo: Repo,
    environment: Environment,
    host: StoringHost,
    wanted: MakeRequest,
    on_entry: Callable[[JournalEntry], None] = lambda _: None,
    building: Environment | None = None,
) -> Journal:
    """Tasks below `wanted.out` until there are `count`, or the repository has no more.

    `building` is the environment's twin in which the repository can be built, for tasks about that."""
    impossible = [origin for origin in wanted.origins if origin not in SCRIPTED]
    if environment.suite.kind == "node" and impossible:
        raise EtudeError(f"of a JavaScript repository {', '.join(SCRIPTED)} can be made, not {', '.join(impossible)}")
    asked = {
        "repo": repo.name,
        "version": repo.version,
        "environment": environment.digest,
        "seed": wanted.seed,
        "from": list(wanted.origins),
        "registers": list(wanted.prompt_styles),
        "make": VERSION,
    }
    journal = Journal(wanted.out, asked)
    _sweep(wanted.out)
    if len(journal.tasks) >= wanted.count:
        return journal
    release = await open_release(repo, building, host) if building is not None else None
    if release is not None and set(wanted.origins) == {"devops"}:  # nobody asks for what is known of the other one
        shop = MakeContext(release.world, release.base, release.workspace, host, None, wanted, release=release)
        await _work(shop, journal, on_entry)
        return journal
    workspace = host.store.add(repo.tree)
    base = await baseline(host, environment, workspace)
    files = Files.scan(repo.tree)
    kind = JavaScriptRepository if environment.suite.kind == "node" else PythonRepository
    world = kind(repo.name, repo.version, files, environment, base.green, base.traces, base.took)
    timing = timing_tests(world) if isinstance(world, PythonRepository) else set()
    shop = MakeContext(world, base, workspace, host, repo.history, wanted, unsteady=timing, release=release)
    await _work(shop, journal, on_entry)
    return journal


async def _work(shop: MakeContext, journal: Journal, on_entry: Callable[[JournalEntry], None]) -> None:
    known = {entry.candidate for entry in journal.entries}
    for name in journal.tasks:
        shop.known.add(Task.load(shop.wanted.out / name))
    stream = (each for each in candidates(shop) if each.key not in known)
    room = asyncio.Semaphore(shop.wanted.workers)
    under_way: deque[asyncio.Task[tuple[JournalEntry, Path | None]]] = deque()
    dry = 0
    try:
        while len(journal.tasks) < shop.wanted.count and dry < DRY:
            while len(under_way) < shop.wanted.workers + AHEAD and (each := next(stream, None)) is not None:
                known.add(each.key)
                under_way.append(asyncio.create_task(_one(shop, each, room)))
            if not under_way:
                return
            entry, made = await under_way.popleft()
            if made is not None:
                entry = _settle(shop.wanted.out, entry, made, shop.known)
            journal.add(entry)
            on_entry(entry)
            dry = 0 if entry.task else dry + 1
    finally:
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        _sweep(shop.wanted.out)


def _settle(out: Path, entry: JournalEntry, made: Path, others: KnownTasks) -> JournalEntry:
    """Gives a task that passed its name, unless an earlier one is nearly the same."""
    task = replace(Task.load(made), name=entry.task)
    twin = others.near_duplicate(task)
    if not twin and entry.origin == "question":
        twin = others.answered(task)
    if twin:
        shutil.rmtree(made)
        return replace(entry, task="", reason="like another task", detail=twin)
    others.add(task)
    final = out / entry.task
    if final.exists():  # a process was killed before it could write the line about it
        remove_folder(final)
    made.rename(final)
    return entry


def candidates(shop: MakeContext) -> Iterator[Candidate]:
    """Everything that could be tried, the origins in turns; each rng of its own, so that one never moves another."""
    world, wanted = shop.world, shop.wanted
    name = f"{wanted.seed}/{world.name}/{world.version}"
    proposers = _of_scripts(shop, world) if isinstance(world, JavaScriptRepository) else _of_python(shop)
    streams = {
        origin: propose(random.Random(f"{name}/{origin}"))
        for origin, propose in proposers.items()
        if origin in wanted.origins
    }
    for origin in itertools.cycle(TURN):
        if not streams:
            return
        if origin in streams:
            found = next(streams[origin], None)
            if found is None:
                del streams[origin]
            else:
                yield found


def _of_python(shop: MakeContext) -> dict[Origin, Propose]:
    world, history, release = shop.python, shop.history, shop.release
    found: dict[Origin, Propose] = {
        "deletion": partial(delete.deletions, world),
        "bug": partial(bugs.bugs, world),
        "question": partial(questions.questions, world),
        "testing": partial(untested.untested, world),
        "documentation": partial(documented.documented, world),
        "refactor": partial(refactorings, world),
    }
    if history is not None:
        found["commit"] = lambda _: commits.commits(world, history)
    if release is not None:
        found["devops"] = partial(packaging.packagings, release.world.files)
    return found


def _of_scripts(shop: MakeContext, world: JavaScriptRepository) -> dict[Origin, Propose]:
    history = shop.history
    found: dict[Origin, Propose] = {
        "deletion": partial(scripts.deletions, world),
        "bug": partial(script_bugs.bugs, world),
    }
    if history is not None:
        found["commit"] = lambda _: commits.commits(world, history)
    return found


async def _one(shop: MakeContext, candidate: Candidate, room: asyncio.Semaphore) -> tuple[JournalEntry, Path | None]:
    """What came of a candidate, and the folder of its task where there is one."""
    async with room:
        started = time.monotonic()
        spent: dict[str, float] = {}
        made, reason, detail = None, "", ""
        try:
            try:
                made = await _made(shop, candidate, spent)
            except SandboxFailure:  # the machinery's trouble, mostly a moment's: once more, and then it is said
                made = await _made(shop, candidate, spent)
        except Refused as refused:
            reason, detail = refused.reason, refused.detail[:LONGEST]
        seconds = time.monotonic() - started
    facts = made.task.facts if made is not None else Facts()
    lists = {"fail_to_pass": facts.fail_to_pass, "pass_to_pass": facts.pass_to_pass, "held_out": facts.held_out}
    lists |= {"mutants": list(mutants(made.task))} if made is not None else {}
    entry = JournalEntry(
        candidate.key,
        candidate.origin,
        candidate.how,
        round(seconds, 3),
        made.task.name if made is not None else "",
        reason,
        detail,
        facts.level,
        {name: len(tests) for name, tests in lists.items() if tests},
        [piece.id for piece in candidate.pieces],
        {name: round(each, 3) for name, each in spent.items()},
    )
    return entry, made.folder if made is not None else None


async def _made(shop: MakeContext, candidate: Candidate, spent: dict[str, float]) -> MadeTask:
    return await WAYS.get(candidate.origin, make_one)(shop, candidate, spent)


def _sweep(out: Path) -> None:
    """Removes what a killed process left half-made."""
    for entry in out.glob(".*.making"):
        shutil.rmtree(entry, ignore_errors=True)
