"""Ladder tasks of one package: candidates tried many at once, those that tests notice written and checked.

The trial runs variants of the code in one sandbox, a process each, so that a candidate costs little more than its
tests. What came of each stands in `ladder.jsonl`; the same command goes on behind the last line. The split is the
package's: all of its tasks are for training, or all are held out.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from typing import Final

from etude.core.errors import EtudeError
from etude.forge.environments.suite_run import SuiteRun
from etude.forge.ladder.answers import PackageAnswers, package_answers
from etude.forge.ladder.check import check_facts, check_null, wrong_edits
from etude.forge.ladder.instruct import instruct
from etude.forge.ladder.propose import Step, steps
from etude.forge.ladder.rungs import RUNGS
from etude.forge.languages.base import LocatedTest
from etude.forge.languages.python.repository import PythonRepository
from etude.forge.pipeline.journal import Journal, JournalEntry
from etude.forge.pipeline.split import Side
from etude.forge.steps.code_change import CodeChange, write_code_change
from etude.forge.steps.context import MakeContext, Refused
from etude.forge.steps.hide_tests import Split
from etude.sandbox.base import SandboxFailure
from etude.tasks.format.task import Task
from etude.tasks.grading.grader import GraderFailure
from etude.tasks.grading.withheld.record import give_answers

FILE: Final = "ladder.jsonl"
VERSION: Final = 1
BATCH: Final = 12  # variants that share a sandbox
MOST_RUN: Final = 30  # tests that a candidate is tried with: enough to show some, hide some and keep some
MOST_OF_ONE: Final = 4  # ids of one test function among them
MOST_ASKED: Final = 8  # tests of each kind, shown and held out, that grade: one mistake can be noticed by dozens
MOST_KEPT: Final = 16  # tests that have to stay green, all in files that are read anyway: grading is what RL waits for
DRY: Final = 80  # candidates in a row without a task, after which a rung has no more


@dataclass(frozen=True)
class LadderRequest:
    """How many tasks of which rungs, and on which side of the split."""

    rungs: tuple[int, ...]
    count: int  # of each rung
    side: Side


async def make_ladder(
    context: MakeContext,
    request: LadderRequest,
    on_entry: Callable[[JournalEntry], None] = lambda _: None,
) -> Journal:
    """Tasks below the context's folder until each rung has `count`, or no more candidates."""
    repository = context.repository
    if not isinstance(repository, PythonRepository):
        raise EtudeError(f"the ladder is made of Python packages, and {repository.name} is none")
    out = context.request.out
    asked = {
        "repo": repository.name,
        "version": repository.version,
        "environment": repository.environment.digest,
        "seed": context.request.seed,
        "side": request.side,
        "ladder": VERSION,
    }
    journal = Journal(out, asked, FILE)
    for left in out.glob(".*.making"):
        shutil.rmtree(left, ignore_errors=True)
    answers = await package_answers(context, out, context.note)
    for number in request.rungs:
        await _climb(context, repository, request, number, answers, journal, on_entry)
    return journal


async def _climb(
    context: MakeContext,
    repository: PythonRepository,
    request: LadderRequest,
    number: int,
    answers: PackageAnswers,
    journal: Journal,
    on_entry: Callable[[JournalEntry], None],
) -> None:
    """The tasks of one rung."""
    rng = random.Random(f"{context.request.seed}/{repository.name}/{repository.version}/rung {number}")
    known = {entry.candidate for entry in journal.entries}
    made = sum(bool(entry.task) and entry.level == number for entry in journal.entries)
    stream = (step for step in steps(repository, RUNGS[number], rng) if _key(step) not in known)
    dry = 0
    room = asyncio.Semaphore(context.request.workers)

    async def finish(step: Step, trial: Trial) -> JournalEntry:
        async with room:
            return await _try(context, repository, request, step, trial, answers)

    while made < request.count and dry < DRY:
        batch = list(islice(stream, min(BATCH, 2 * (request.count - made) + 2)))
        if not batch:
            break
        context.note(f"{repository.name} rung {number}: {made} of {request.count}, trying {len(batch)}")
        trials = await _trial(context, batch, answers)
        # Settled in their order, so that the same seed gives the same tasks.
        for entry in await asyncio.gather(*(finish(step, trial) for step, trial in zip(batch, trials, strict=True))):
            journal.add(entry)
            on_entry(entry)
            made += bool(entry.task)
            dry = 0 if entry.task else dry + 1


@dataclass(frozen=True)
class Trial:
    """What tests did with a candidate, and with wrong edits in the place of its fix."""

    ran: tuple[str, ...]
    broken: SuiteRun
    wrong: tuple[SuiteRun, ...]


async def _trial(context: MakeContext, batch: Sequence[Step], answers: PackageAnswers) -> list[Trial]:
    """The tests that could notice each candidate, over it and over wrong edits of it: one start for all of them."""
    variants: list[Mapping[str, bytes | None]] = []
    tests: list[list[str]] = []
    sizes = []
    for step in batch:
        ran = _asked(context, step, answers)
        rng = random.Random(f"{context.request.seed}/{_key(step)}/wrong edits")
        made = [step.changes, *wrong_edits(context.repository, step, rng)]
        variants += made
        tests += [ran] * len(made)
        sizes.append(len(made))
    each = 4 * context.base.seconds + 15
    found = iter(await context.run_variants(variants, (), each=each, until_failure=False, own_tests=tests))
    trials: list[Trial] = []
    for size in sizes:
        runs = list(islice(found, size))
        trials.append(Trial(tuple(tests[sum(len(each.wrong) + 1 for each in trials)]), runs[0], tuple(runs[1:])))
    return trials


def _asked(context: MakeContext, step: Step, answers: PackageAnswers) -> list[str]:
    """Tests that reach the change and may judge, those first that run little else; of each function some ids."""
    repository = context.repository
    of_place: dict[LocatedTest, list[str]] = {}
    for test in sorted(step.expected, key=lambda each: (len(repository.traces.get(each, ())), each)):
        if test in answers.telling and test not in context.unsteady:
            of_place.setdefault(repository.place(test), []).append(test)
    turns = zip_longest(*(ids[:MOST_OF_ONE] for ids in of_place.values()))
    return [test for turn in turns for test in turn if test is not None][:MOST_RUN]


async def _try(
    context: MakeContext,
    repository: PythonRepository,
    request: LadderRequest,
    step: Step,
    trial: Trial,
    answers: PackageAnswers,
) -> JournalEntry:
    started = time.monotonic()
    name, reason, detail = "", "", ""
    lists: dict[str, int] = {}
    try:
        task = await _make(context, repository, request, step, trial, answers)
        name = task.name
        lists = {"fail_to_pass": len(task.facts.fail_to_pass), "held_out": len(task.facts.held_out)}
    except Refused as refused:
        reason, detail = refused.reason, refused.detail[:200]
    except (SandboxFailure, GraderFailure) as failure:  # the machinery's trouble: no word about the candidate
        reason, detail = "it could not be graded", str(failure)[:200]
    seconds = round(time.monotonic() - started, 3)
    pieces = [piece.id for piece in step.pieces]
    side = request.side if name else ""
    return JournalEntry(
        _key(step), step.origin, step.how, seconds, name, reason, detail, step.rung, lists, pieces, split=side
    )


async def _make(
    context: MakeContext,
    repository: PythonRepository,
    request: LadderRequest,
    step: Step,
    trial: Trial,
    answers: PackageAnswers,
) -> Task:
    rng = random.Random(f"{context.request.seed}/{_key(step)}")
    proof = _prove(repository, step, trial, answers, rng)
    instructions = instruct(step, repository.name, proof.split.shown[0], rng)
    task = write_code_change(context, proof, instructions, rng.choice(context.request.prompt_styles))
    # A task is named by its rung too: rungs 1 and 2 can have the same mistake.
    name = f"{repository.name}-rung{step.rung}-{step.key.rpartition('-')[2]}".lower()
    read = {test.partition("::")[0] for test in (*proof.split.shown, *proof.split.held_out)}
    kept = [test for test in task.facts.pass_to_pass if test.partition("::")[0] in read and test in answers.tests]
    facts = task.facts.model_copy(
        update={
            "rung": step.rung,
            "bits": step.bits,
            "level": step.rung,
            "split": request.side,
            "pass_to_pass": kept[:MOST_KEPT],
        }
    )
    task = replace(task, name=name, facts=facts)
    of_task = answers.of(task)
    if of_task is None:
        raise Refused("it cannot be graded", "a test was not recorded")
    task = give_answers(task, of_task, {})
    check_facts(task)
    folder = context.request.out / f".{name}.making"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        await asyncio.to_thread(task.save, folder)
        await check_null(context, replace(Task.load(folder), name=name))
        final = context.request.out / name
        shutil.rmtree(final, ignore_errors=True)
        folder.rename(final)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return task


def _prove(
    repository: PythonRepository,
    step: Step,
    trial: Trial,
    answers: PackageAnswers,
    rng: random.Random,
) -> CodeChange:
    """The tests that notice, split into shown and held out; wrong edits fail one of them too."""
    run = trial.broken
    if not run.complete:
        raise Refused("the suite does not come to its end", run.reason)
    broken = [test for test in trial.ran if test not in run.passed]
    if not broken:
        raise Refused("no test notices")
    if len({repository.place(test) for test in broken}) < step.least_places:
        raise Refused("too few tests notice", ", ".join(broken[:3]))
    parted = _hide(repository, step, broken, rng)
    first = parted.shown[0]
    if not RUNGS[step.rung].names_place and not _can_be_found(repository, step, first, run.texts.get(first, "")):
        raise Refused("the failing test does not lead to the place")
    for wrong in trial.wrong:
        if wrong.complete and wrong.passed.issuperset((*parted.shown, *parted.held_out)):
            raise Refused("a wrong edit is accepted")
    kept = tuple(test for test in trial.ran if test in run.passed)
    return CodeChange(step, removed=step.pieces, split=parted, kept=kept, output=run.texts)


def _hide(repository: PythonRepository, step: Step, broken: Sequence[str], rng: random.Random) -> Split:
    """Half of the test functions that notice leave the workspace; the one that says most stays, and is named first."""
    places: dict[LocatedTest, list[str]] = {}
    for test in broken:
        places.setdefault(repository.place(test), []).append(test)
    reached = {test: len(repository.traces.get(test, ())) for test in broken}
    # The test that runs least beside what is wrong says most about it.
    named = min(broken, key=lambda test: (reached[test], test))
    others = [place for place in places if place != repository.place(named) and repository.is_movable(place)]
    rng.shuffle(others)
    hidden = frozenset(others[: max(1, len(places) // 2)])
    if not hidden:
        raise Refused("too few tests can be held out")
    shown = [named, *(test for test in broken if test != named and repository.place(test) not in hidden)]
    held_out = [test for place in others if place in hidden for test in places[place]]
    files = dict(repository.without_tests(hidden))
    return Split(tuple(shown[:MOST_ASKED]), tuple(held_out[:MOST_ASKED]), files, hidden)


def _can_be_found(repository: PythonRepository, step: Step, test: str, said: str) -> bool:
    """Whether a test's source or its output names the function or its class."""
    named = set(step.pieces[0].name.split("."))
    return bool(named & repository.mentioned([test])) or any(
        f"in {name}" in said or f"def {name}" in said for name in named
    )


def _key(step: Step) -> str:
    return f"rung{step.rung}-{step.key}"
