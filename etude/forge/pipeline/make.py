"""From a repository to verified tasks: candidates proposed, tried, written, scrubbed, and passed through the gates.

Candidates come in an order that follows from the repository and the seed alone. Several are worked on at once, and
what came of them is settled in their order, so that the same seed gives the same tasks however busy the machine is.
Every rejection is journalled with its reason; a killed command goes on where it was.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from etude.core.durable import remove_folder
from etude.core.errors import EtudeError
from etude.forge.environments.environment import Environment
from etude.forge.gates.near_duplicates import KnownTasks
from etude.forge.install.checkout import Repo
from etude.forge.languages.table import language_of
from etude.forge.origins.table import AnyOrigin, all_origins, find_origins, turns
from etude.forge.pipeline.journal import Journal, JournalEntry
from etude.forge.pipeline.make_task import make_task
from etude.forge.pipeline.split import SplitDraw, unit_of, write_side
from etude.forge.steps.baseline import Baseline
from etude.forge.steps.candidate import Candidate
from etude.forge.steps.context import MakeContext, MakeRequest, Opening, Refused
from etude.forge.steps.round_robin import in_turns
from etude.forge.steps.trial import SLOW
from etude.forge.steps.write import VERSION
from etude.sandbox.base import SandboxFailure
from etude.sandbox.hosts import StoringHost
from etude.tasks.format.config import Facts
from etude.tasks.format.task import Task
from etude.tasks.kinds.mutants import mutants
from etude.tasks.kinds.table import kind_of

Contexts = Mapping[AnyOrigin, MakeContext]
LONGEST: Final = 300  # characters of a detail that are kept
DRY: Final = 150  # candidates in a row without a task, after which a repository has no more
MOST_WAITING: Final = 4  # times as many candidates at once as were asked for, where their tests wait
AHEAD: Final = 2  # candidates under way beyond those that run, so that a slow one keeps nobody waiting


async def make_tasks(
    repo: Repo,
    environment: Environment,
    host: StoringHost,
    request: MakeRequest,
    on_entry: Callable[[JournalEntry], None] = lambda _: None,
    building: Environment | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> Journal:
    """Tasks below `request.out` until there are `count`, or the repository has no more.

    `building` is the same environment with what builds the repository, for origins that need it. `note` hears what is
    being done."""
    origins = find_origins(request.origins)
    language = language_of(environment).language
    if impossible := [origin.name for origin in origins if language not in origin.languages]:
        possible = [origin.name for origin in all_origins().values() if language in origin.languages]
        raise EtudeError(f"of a {language} repository {', '.join(possible)} can be made, not {', '.join(impossible)}")
    asked = {
        "repo": repo.name,
        "version": repo.version,
        "environment": environment.digest,
        "seed": request.seed,
        "from": [origin.label for origin in origins],
        "registers": list(request.prompt_styles),
        "make": VERSION,
    } | ({"tracker": True} if request.tracker else {})
    journal = Journal(request.out, asked)
    _sweep(request.out)
    if len(journal.tasks) >= request.count:
        journal.stopped = "there are enough tasks"
        return journal
    opening = Opening(repo, environment, host, request, building, note)
    contexts = {
        origin: await origin.open(opening)
        for origin in origins
        if not (origin.needs_history and repo.history is None) and not (origin.needs_build and building is None)
    }
    if not contexts:
        journal.stopped = "none of the origins fits: commits need a git checkout"
        return journal
    await _work(contexts, request, opening.known, journal, on_entry)
    return journal


async def _work(
    contexts: Contexts,
    request: MakeRequest,
    made_before: KnownTasks,
    journal: Journal,
    on_entry: Callable[[JournalEntry], None],
) -> None:
    known = {entry.candidate for entry in journal.entries}
    draw = SplitDraw(unit_of(next(iter(contexts.values())).repository))
    for entry in journal.entries:
        if entry.task:
            earlier = Task.load(request.out / entry.task)
            made_before.add(earlier)
            draw.add(earlier, "held_out" if entry.split == "held_out" else "train")
    stream = ((origin, each) for origin, each in candidates(contexts) if each.key not in known)
    workers = side_by_side(request.workers, next(iter(contexts.values())).base)
    room = asyncio.Semaphore(workers)
    under_way: deque[asyncio.Task[tuple[JournalEntry, Path | None]]] = deque()
    dry = 0
    try:
        while len(journal.tasks) < request.count and dry < DRY:
            while len(under_way) < workers + AHEAD:
                following = next(stream, None)
                _journal_left_out(contexts, known, journal)
                if following is None:
                    break
                origin, each = following
                known.add(each.key)
                under_way.append(asyncio.create_task(_try(origin, contexts[origin], each, room)))
            if not under_way:
                journal.stopped = "there are no more candidates"
                return
            entry, made = await under_way.popleft()
            if made is not None:
                entry = _settle(request.out, entry, made, made_before, draw)
            journal.add(entry)
            on_entry(entry)
            dry = 0 if entry.task else dry + 1
        enough = len(journal.tasks) >= request.count
        journal.stopped = "there are enough tasks" if enough else f"{DRY} candidates in a row gave no task"
    finally:
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        _sweep(request.out)


def side_by_side(workers: int, base: Baseline) -> int:
    """How many candidates are worked on at once: more where a slow suite leaves its processor idle. They wait together,
    then, and not one after the other."""
    return min(MOST_WAITING * workers, round(workers / base.busy)) if base.seconds > SLOW else workers


def _journal_left_out(contexts: Contexts, known: set[str], journal: Journal) -> None:
    """What origins looked at since the last time and do not propose, a line each."""
    for context in {id(each): each for each in contexts.values()}.values():
        for each in context.left_out:
            if each.key not in known:
                known.add(each.key)
                entry = JournalEntry(each.key, each.origin, each.how, 0.0, reason=each.reason, left_out=True)
                journal.add(replace(entry, detail=each.detail[:LONGEST], count=each.count))
        context.left_out.clear()


def _settle(out: Path, entry: JournalEntry, made: Path, others: KnownTasks, draw: SplitDraw) -> JournalEntry:
    """Gives a task that passed its name and its split, unless an earlier one is nearly the same."""
    task = replace(Task.load(made), name=entry.task)
    like = others.near_duplicate(task)
    if not like and kind_of(task).reads_answer:
        like = others.answered(task)
    if like:
        shutil.rmtree(made)
        return replace(entry, task="", reason="like another task", detail=like)
    side = draw.side(task)
    if side is None:
        shutil.rmtree(made)
        why = "it has code in common with tasks for training and with held-out ones"
        return replace(entry, task="", reason="on both sides of the split", detail=why)
    write_side(made, task, side)
    others.add(task)
    draw.add(task, side)
    final = out / entry.task
    if final.exists():  # a process was killed before it could write the line about it
        remove_folder(final)
    made.rename(final)
    return replace(entry, split=side)


def candidates(contexts: Contexts) -> Iterator[tuple[AnyOrigin, Candidate]]:
    """Everything that could be tried, the origins in turns; each rng of its own, so that one never moves another."""
    streams = {origin: _proposals(origin, context) for origin, context in contexts.items()}
    return in_turns([streams[origin] for origin in turns(streams)])


def _proposals(origin: AnyOrigin, context: MakeContext) -> Iterator[tuple[AnyOrigin, Candidate]]:
    repository = context.repository
    rng = random.Random(f"{context.request.seed}/{repository.name}/{repository.version}/{origin.label}")
    for candidate in origin.propose(context, rng):
        yield origin, candidate


async def _try(
    origin: AnyOrigin, context: MakeContext, candidate: Candidate, room: asyncio.Semaphore
) -> tuple[JournalEntry, Path | None]:
    """What came of a candidate, and the folder of its task where there is one."""
    async with room:
        started = time.monotonic()
        spent: dict[str, float] = {}
        made, reason, detail = None, "", ""
        try:
            try:
                made = await make_task(origin, context, candidate, spent)
            except SandboxFailure:  # the machinery's trouble, mostly a moment's: once more, and then it is raised
                made = await make_task(origin, context, candidate, spent)
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


def _sweep(out: Path) -> None:
    """Removes what a killed process left half-made."""
    for entry in out.glob(".*.making"):
        shutil.rmtree(entry, ignore_errors=True)
